# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Builds components with the ordinary Go client, each once, into the cache."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from .manifest import Component
from .progress import BuildError, Progress

NEEDED_GB = 25


def go_version() -> str:
    """The compiler's version and target, as in `go1.26.8 linux/amd64`."""
    argv = ["go", "env", "GOVERSION", "GOOS", "GOARCH"]
    try:
        version, system, machine = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    except FileNotFoundError as missing:
        raise BuildError(
            "The program go is not on PATH; install Go 1.26.8 or newer, or set components_source to upstream."
        ) from missing
    return f"{version} {system}/{machine}"


def bin_folder(cache: Path, component: Component, go: str) -> Path:
    return cache / "components" / f"{component.name}-{component.key(go)}" / "bin"


def check_disk(folders: Iterable[Path]) -> None:
    for folder in folders:
        place = next(path for path in (folder, *folder.parents) if path.exists())
        free_gb = shutil.disk_usage(place).free / 1e9
        if free_gb < NEEDED_GB:
            raise BuildError(
                f"{folder}: {free_gb:.0f} GB free, building the components takes {NEEDED_GB} GB; free some space, "
                "or point tenantry_cache_dir, GOCACHE and GOMODCACHE elsewhere."
            )


def build_components(cache: Path, components: Iterable[Component], go: str, progress: Progress) -> list[str]:
    """Builds what the cache does not have, one after another. Returns the names of those built."""
    missing = [component for component in components if not bin_folder(cache, component, go).exists()]
    if missing:
        paths = subprocess.run(["go", "env", "GOCACHE", "GOMODCACHE"], capture_output=True, text=True, check=True)
        check_disk([cache, *map(Path, paths.stdout.split())])
    for number, component in enumerate(missing, start=1):
        expected = f"about {component.seconds} s on 2 cores when nothing is cached"
        with progress.step(
            f"component {number} of {len(missing)}: building {component.name} {component.version} ({expected})"
        ):
            _build(bin_folder(cache, component, go).parent, component, progress)
    return [component.name for component in missing]


def _build(target: Path, component: Component, progress: Progress) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{component.name}-") as temporary:
        work = Path(temporary) / "work"
        made = work / "bin"
        made.mkdir(parents=True)
        argv = ["go", "build", "-trimpath", "-mod=readonly", "-tags", component.tags, "-ldflags", component.ldflags]
        environment = {"CGO_ENABLED": str(int(component.cgo))}
        progress.run(f"component-{component.name}", [*argv, "-o", f"{made}/", "tool"], component.folder, environment)
        for built, name in component.programs.items():
            if not (made / built).exists():
                raise BuildError(f"component {component.name}: go built no program {built}.")
            (made / built).rename(made / name)
        for chart in component.charts:
            copied = work / "charts" / Path(chart).name
            shutil.copytree(_module_folder(component) / chart, copied, copy_function=shutil.copyfile)
            for path in (copied, *copied.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
        # The whole folder at once: what stands in the cache is complete.
        work.rename(target)


def _module_folder(component: Component) -> Path:
    argv = ["go", "mod", "download", "-json", component.module]
    answer = subprocess.run(argv, cwd=component.folder, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise BuildError(f"component {component.name}: go mod download failed: {answer.stderr.strip()}")
    return Path(json.loads(answer.stdout)["Dir"])
