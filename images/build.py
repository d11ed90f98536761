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
from _build.hosts import load_all
from _build.manifest import Image, check_binaries, digest, load_component, load_components, load_images, load_matrix
from _build.oci import Built, Store, write_engine_archive, write_oci_archive
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
        every = load_components(IMAGES / "components", matrix)
        components = {name: component for name, component in every.items() if not component.on_request}
        images = load_images(IMAGES, matrix)
        check_binaries(images, components)
        store = Store(cache / "images")
        return cls(cache, images, Assembler(IMAGES.parent, cache, components, go_version(), store, progress), progress)

    def build(self, engine: str) -> tuple[bool, Description]:
        """Builds and imports what is missing. Returns whether anything was, and what the roles need to know."""
        assembler = self.assembler
        made = bool(build_components(self.cache, assembler.components.values(), assembler.go, self.progress))
        assembled, built = assemble_all(assembler, self.images)
        imported = self._import(engine, {image: one for image, one in built.items() if image.engine})
        return made or assembled or imported, self._describe(built)

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


@dataclass(frozen=True)
class Upstream:
    """The image set of a machine that reaches image registries: kind's node image, and ours, which are in none."""

    node: Node
    images: list[Image]
    matrix: Mapping[str, str]
    assembler: Assembler
    progress: Progress

    @classmethod
    def load(cls, cache: Path, matrix: Mapping[str, str], mirror: str, progress: Progress) -> Upstream:
        node = Node.of(IMAGES / "node", ENGINE_PREFIX, matrix["kubernetes"], mirror)
        images = [image for image in load_images(IMAGES, matrix) if image.ours]
        # Only a helm that the machine lacks is compiled; else nothing asks for Go.
        components = {} if shutil.which("helm") else {"helm": load_component(IMAGES / "components" / "helm", matrix)}
        if components and not shutil.which("go"):
            raise BuildError("Neither helm nor go is on PATH; install helm 3, or Go with which it is compiled.")
        go = go_version() if components else ""
        assembler = Assembler(IMAGES.parent, cache, components, go, Store(cache / "images"), progress)
        return cls(node, images, matrix, assembler, progress)

    def build(self, engine: str) -> tuple[bool, Description]:
        """Builds what is missing. Returns whether anything was, and what the roles need to know."""
        assembler = self.assembler
        made = bool(build_components(assembler.cache, assembler.components.values(), assembler.go, self.progress))
        assembled, built = assemble_all(assembler, self.images)
        digests = {image.reference: one.digest for image, one in built.items()}
        helm = assembler.components.get("helm")
        return self.node.build(engine, self.progress) or made or assembled, {
            "source": "upstream",
            "hash": digest([self.node.reference, dict(self.matrix), digests], 12),
            "node_image": self.node.reference,
            "registry_image": "",
            "charts": {},
            "images": digests,
            "helm": str(bin_folder(assembler.cache, helm, assembler.go) / "helm") if helm else "helm",
            "kubectl": "kubectl",
        }

    def push(self, engine: str, hosts: list[str]) -> bool:
        images = [(image.reference, self.assembler.assemble(image)) for image in self.images]
        return bool(load_all(engine, hosts, images, self.assembler.store, self.progress))


def assemble_all(assembler: Assembler, images: list[Image]) -> tuple[bool, dict[Image, Built]]:
    """Assembles what is missing. Returns whether anything was, and every image."""
    missing = assembler.missing(images)
    for number, image in enumerate(missing, start=1):
        with assembler.progress.step(f"image {number} of {len(missing)}: assembling {image.reference}"):
            assembler.assemble(image)
    return bool(missing), {image: assembler.assemble(image) for image in images}


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
    engine = argparse.ArgumentParser(add_help=False)
    installed = "podman" if shutil.which("podman") else "docker"
    engine.add_argument("--engine", choices=["podman", "docker"], default=installed)
    phases = parser.add_subparsers(dest="phase", required=True)
    components = phases.add_parser("components", parents=[kept], help="build components alone, where they are missing")
    components.add_argument("names", nargs="+", metavar="NAME", help="a folder of images/components")
    build = phases.add_parser(
        "build", parents=[common, kept, engine], help="build and import what is missing, write images.json"
    )
    build.add_argument(
        "--source",
        choices=["auto", "upstream", "standin"],
        default="auto",
        help="where components come from; a lab keeps to what it began with",
    )
    archive = phases.add_parser(
        "archive", parents=[kept], help="write the images that only we have, as archives that skopeo reads"
    )
    archive.add_argument("--out", type=Path, required=True, help="folder of the archives")
    push = phases.add_parser(
        "push", parents=[common, kept, engine], help="bring the images to where the hosts find them"
    )
    push.add_argument("--registry", required=True, help="the lab's registry, address and port (stand-ins)")
    push.add_argument("--hosts", nargs="*", default=[], help="containers whose containerd gets our images (upstream)")
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


def archive_ours(out: Path, cache: Path, matrix: Mapping[str, str], progress: Progress) -> bool:
    """Writes an OCI archive, <name>-<tag>.tar, of each image that no registry publishes, where it is missing."""
    wanted = {image: out / f"{image.name}-{image.tag}.tar" for image in load_images(IMAGES, matrix) if image.ours}
    missing = {image: file for image, file in wanted.items() if not file.exists()}
    out.mkdir(parents=True, exist_ok=True)
    with only_one(cache, progress):
        assembler = Assembler(IMAGES.parent, cache, {}, "", Store(cache / "images"), progress)
        for image, file in missing.items():
            with progress.step(f"image {image.reference}: into {file}"):
                new = file.with_suffix(f".{os.getpid()}")
                write_oci_archive(new, assembler.store, assembler.assemble(image), image.reference)
                new.replace(file)
    return bool(missing)


def work(options: argparse.Namespace) -> bool:
    """Does one phase. Returns whether anything had to be done."""
    if options.phase == "components":
        cache = options.cache.resolve()
        matrix = load_matrix(options.versions, IMAGES.parent / "galaxy.yml")
        return build_alone(options.names, cache, matrix, Progress(cache / "logs"))
    if options.phase == "archive":
        cache = options.cache.resolve()
        matrix = load_matrix(options.versions, IMAGES.parent / "galaxy.yml")
        return archive_ours(options.out, cache, matrix, Progress(cache / "logs"))
    state = options.state.resolve()
    decided = options.phase == "build" and decide_source(state, options.source, options.mirror)
    cache = options.cache.resolve()
    upstream = recorded_source(state) == "upstream"
    progress = Progress(cache / "logs")
    matrix = load_matrix(options.versions, IMAGES.parent / "galaxy.yml")
    with only_one(cache, progress):
        if options.phase == "push":
            if upstream:
                return Upstream.load(cache, matrix, options.mirror, progress).push(options.engine, options.hosts)
            return StandIn.load(cache, matrix, progress).push(options.registry)
        images = (
            Upstream.load(cache, matrix, options.mirror, progress)
            if upstream
            else StandIn.load(cache, matrix, progress)
        )
        done, description = images.build(options.engine)
        written = write_if_changed(state / "images.json", json.dumps(description, indent=2) + "\n")
        return decided or done or written


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
