#!/usr/bin/env python3
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Builds the lab's components and images, and pushes the images to its registry. README.md says how."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from _build.assemble import Assembler
from _build.components import bin_folder, build_components, go_version
from _build.manifest import Image, check_binaries, digest, load_components, load_images, load_matrix
from _build.oci import Built, Store, write_engine_archive
from _build.progress import BuildError, Progress
from _build.registry import push_all
from _build.upstream import Node, resolve

IMAGES = Path(__file__).resolve().parent
VERSIONS = IMAGES.parent / "inventories/lab/group_vars/all/versions.yml"
SOURCE_FILE = "components_source"
ENGINE_PREFIX = "localhost/tenantry-gpu"
TOOLS = {"helm": "helm", "kubectl": "kubernetes"}  # program that the controller itself runs: its component

Description = dict[str, object]


@dataclass(frozen=True)
class StandIn:
    """The image set of a machine that reaches package registries only."""

    cache: Path
    images: list[Image]
    assembler: Assembler
    progress: Progress

    @classmethod
    def load(cls, cache: Path, matrix: Mapping[str, str], progress: Progress) -> StandIn:
        components = load_components(IMAGES / "components", matrix)
        images = load_images(IMAGES, matrix)
        check_binaries(images, components)
        store = Store(cache / "images")
        return cls(cache, images, Assembler(IMAGES.parent, cache, components, go_version(), store, progress), progress)

    def build(self, engine: str) -> tuple[bool, Description]:
        """Builds and imports what is missing. Returns whether anything was, and what the roles need to know."""
        assembler = self.assembler
        made = bool(build_components(self.cache, assembler.components.values(), assembler.go, self.progress))
        missing = assembler.missing(self.images)
        for number, image in enumerate(missing, start=1):
            with self.progress.step(f"image {number} of {len(missing)}: assembling {image.reference}"):
                assembler.assemble(image)
        built = {image: assembler.assemble(image) for image in self.images}
        imported = self._import(engine, {image: one for image, one in built.items() if image.engine})
        return made or bool(missing) or imported, self._describe(built)

    def push(self, registry: str) -> bool:
        images = [
            (image.repository, image.tag, self.assembler.assemble(image)) for image in self.images if not image.engine
        ]
        return bool(push_all(registry, images, self.assembler.store, self.progress))

    def _reference(self, image: Image) -> str:
        return f"{ENGINE_PREFIX}/{image.name}:{self.assembler.key(image)}"

    def _import(self, engine: str, images: Mapping[Image, Built]) -> bool:
        listing = [engine, "images", "--format", "{{.Repository}}:{{.Tag}}"]
        answer = subprocess.run(listing, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise BuildError(f"{engine} does not work: {answer.stderr.strip()}")
        missing = {image: one for image, one in images.items() if self._reference(image) not in answer.stdout.split()}
        for image, one in missing.items():
            with (
                self.progress.step(f"image {image.name}: into {engine}"),
                tempfile.TemporaryDirectory(dir=self.cache, prefix=".import-") as work,
            ):
                archive = Path(work) / "image.tar"
                write_engine_archive(archive, self.assembler.store, one, self._reference(image))
                self.progress.run(f"load-{image.name}", [engine, "load", "--input", str(archive)])
        return bool(missing)

    def _describe(self, built: Mapping[Image, Built]) -> Description:
        engine_images = {image.name: self._reference(image) for image in built if image.engine}
        return {
            "source": "standin",
            "hash": digest({image.reference: one.digest for image, one in built.items()}, 12),
            "node_image": engine_images["node"],
            "registry_image": engine_images["registry"],
            "charts": self._charts(),
            "images": {image.reference: one.digest for image, one in built.items() if not image.engine},
            **{tool: str(self._bin(component) / tool) for tool, component in TOOLS.items()},
        }

    def _bin(self, component: str) -> Path:
        return bin_folder(self.cache, self.assembler.components[component], self.assembler.go)

    def _charts(self) -> dict[str, str]:
        """The folders of Helm charts: our own, and those that Go modules carry, linked from <cache>/charts."""
        charts = {
            yaml.safe_load(path.read_text(encoding="utf-8"))["name"]: str(path.parent)
            for path in sorted(IMAGES.glob("*/chart/Chart.yaml"))
        }
        for component in self.assembler.components.values():
            for chart in component.charts:
                name = Path(chart).name
                link = self.cache / "charts" / name
                replace_link(link, self._bin(component.name).parent / "charts" / name)
                charts[name] = str(link)
        return charts


def build_upstream(matrix: Mapping[str, str], engine: str, mirror: str, progress: Progress) -> tuple[bool, Description]:
    """The image set of a machine that reaches image registries: kind's node image; the rest is pulled."""
    node = Node.of(IMAGES / "node", ENGINE_PREFIX, matrix["kubernetes"], mirror)
    return node.build(engine, progress), {
        "source": "upstream",
        "hash": digest([node.reference, dict(matrix)], 12),
        "node_image": node.reference,
        "registry_image": "",
        "charts": {},
        "images": {},
        **{tool: tool for tool in TOOLS},
    }


def replace_link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    new = link.with_name(f".{link.name}.{os.getpid()}")
    new.symlink_to(target)
    new.replace(link)


def write_if_changed(path: Path, text: str) -> bool:
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
    return True


def recorded_source(state: Path) -> str:
    file = state / SOURCE_FILE
    return file.read_text(encoding="utf-8").strip() if file.exists() else ""


@contextmanager
def only_one(cache: Path, progress: Progress) -> Iterator[None]:
    """Waits for another builder on the same cache, and sweeps what a killed one left half done."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.step("waiting for another builder that uses this cache"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        for left in (*cache.glob(".import-*"), *cache.glob("images/.*"), *cache.glob("components/.*")):
            shutil.rmtree(left, ignore_errors=True)
        yield


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    common = argparse.ArgumentParser(add_help=False)
    kept = argparse.ArgumentParser(add_help=False)
    kept.add_argument("--cache", type=Path, required=True, help="folder of what is kept between labs")
    kept.add_argument("--versions", type=Path, default=VERSIONS, help="file with tenantry_versions")
    common.add_argument("--state", type=Path, required=True, help="folder of this lab")
    common.add_argument("--mirror", default="", help="a registry that serves every image under its upstream path")
    phases = parser.add_subparsers(dest="phase", required=True)
    source = phases.add_parser("source", parents=[common], help="decide where components come from, and keep to it")
    source.add_argument("--source", choices=["auto", "upstream", "standin"], default="auto")
    components = phases.add_parser("components", parents=[kept], help="build components alone, where they are missing")
    components.add_argument("names", nargs="+", metavar="NAME", help="a folder of images/components")
    build = phases.add_parser(
        "build", parents=[common, kept], help="build and import what is missing, write images.json"
    )
    build.add_argument(
        "--engine", choices=["podman", "docker"], default="podman" if shutil.which("podman") else "docker"
    )
    push = phases.add_parser("push", parents=[common, kept], help="push what the lab's registry does not have")
    push.add_argument("--registry", required=True, help="the registry's address and port")
    return parser.parse_args()


def decide_source(state: Path, wanted: str, mirror: str) -> bool:
    return write_if_changed(state / SOURCE_FILE, resolve(wanted, recorded_source(state), mirror) + "\n")


def build_alone(names: list[str], cache: Path, matrix: Mapping[str, str], progress: Progress) -> bool:
    """Builds some components. Where nothing is missing it does not wait for another builder."""
    known = load_components(IMAGES / "components", matrix)
    for name in names:
        if name not in known:
            raise BuildError(f"There is no component {name}; there are: {', '.join(known)}.")
    wanted, go = [known[name] for name in names], go_version()
    if all(bin_folder(cache, component, go).exists() for component in wanted):
        return False
    with only_one(cache, progress):
        return bool(build_components(cache, wanted, go, progress))


def work(options: argparse.Namespace) -> bool:
    """Does one phase. Returns whether anything had to be done."""
    if options.phase == "components":
        cache = options.cache.resolve()
        matrix = load_matrix(options.versions, IMAGES.parent / "galaxy.yml")
        return build_alone(options.names, cache, matrix, Progress(cache / "logs"))
    state = options.state.resolve()
    if options.phase == "source":
        return decide_source(state, options.source, options.mirror)
    cache = options.cache.resolve()
    upstream = recorded_source(state) == "upstream"
    if options.phase == "push" and upstream:
        return False
    progress = Progress(cache / "logs")
    matrix = load_matrix(options.versions, IMAGES.parent / "galaxy.yml")
    with only_one(cache, progress):
        if options.phase == "push":
            return StandIn.load(cache, matrix, progress).push(options.registry)
        if upstream:
            done, description = build_upstream(matrix, options.engine, options.mirror, progress)
        else:
            done, description = StandIn.load(cache, matrix, progress).build(options.engine)
        written = write_if_changed(state / "images.json", json.dumps(description, indent=2) + "\n")
        return done or written


def main() -> int:
    try:
        done = work(arguments())
    except BuildError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    print("changed" if done else "nothing to do")
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # No ordinary exit: a registry's probe may still be resolving a name in its thread, and the interpreter that
    # ends under it crashes now and then.
    os._exit(status)
