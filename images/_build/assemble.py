# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Makes the layers of images, each only where its inputs have changed, and puts images together."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import stat
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import debian
from .components import bin_folder
from .manifest import SCRATCH, Component, Image, digest, file_digest, walk
from .oci import IMAGE_FORMAT, Built, Layer, Store, write_tar
from .progress import BuildError, Progress

PYTHON = "3.11"  # Debian bookworm's
SITE_PACKAGES = f"/usr/local/lib/python{PYTHON}/dist-packages"
GLIBC_MINORS = range(36, 16, -1)  # bookworm has glibc 2.36


@dataclass(frozen=True)
class Assembler:
    repository: Path
    cache: Path
    components: Mapping[str, Component]
    go: str
    store: Store
    progress: Progress

    def key(self, image: Image) -> str:
        """Changes with everything that can change the image."""
        return digest([IMAGE_FORMAT, [key for key, _ in self._recipe(image)], image.config()])

    def assemble(self, image: Image) -> Built:
        key = self.key(image)
        found = self.store.find_image(key)
        if found:
            return found
        layers = [self._layer(layer_key, make) for layer_key, make in self._recipe(image)]
        return self.store.put_image(key, image.config(), layers)

    def missing(self, images: list[Image]) -> list[Image]:
        return [image for image in images if not self.store.find_image(self.key(image))]

    def _layer(self, key: str, make: Callable[[Path], None]) -> Layer:
        found = self.store.find_layer(key)
        if found:
            return found
        self.store.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.store.folder, prefix=".layer-") as work:
            tar = Path(work) / "layer.tar"
            make(tar)
            return self.store.put_layer(key, tar)

    def _recipe(self, image: Image) -> list[tuple[str, Callable[[Path], None]]]:
        """The image's layers from the bottom up: what each depends on, and what makes it."""
        recipe: list[tuple[str, Callable[[Path], None]]] = []
        base = "" if image.base == SCRATCH else self._debian_key(image.base)
        if base:
            recipe.append((base, lambda tar: self._make_debian(image.base, tar)))
        if image.requirements:
            pinned = file_digest(self._source(image, image.requirements))
            key = digest(["requirements", pinned, base, PYTHON, platform.machine()])
            recipe.append((key, lambda tar: self._make_requirements(image, tar)))
        if image.binaries or image.from_debian:
            programs = {path: self._component_key(source) for source, path in image.binaries.items()}
            taken = [dict(image.from_debian), self._debian_key("debian")] if image.from_debian else []
            recipe.append((digest(["programs", programs, taken]), lambda tar: self._make_programs(image, tar)))
        if image.files or image.links:
            files = self._files(image)
            content = {
                path: str(file.readlink())
                if file.is_symlink()
                else [file_digest(file), bool(file.stat().st_mode & stat.S_IXUSR)]
                for path, file in files.items()
            }
            key = digest(["files", content, dict(image.links), base])
            recipe.append((key, lambda tar: self._make_files(image, files, tar)))
        return recipe

    def _source(self, image: Image, path: str) -> Path:
        source = self.repository / path
        if not source.exists():
            raise BuildError(f"image {image.name}: {path} does not exist in the repository.")
        return source

    def _component_key(self, binary: str) -> str:
        name, _, program = binary.partition("/")
        return f"{program} {self.components[name].key(self.go)}"

    def _files(self, image: Image) -> dict[str, Path]:
        files = {}
        for source, target in image.files.items():
            root = self._source(image, source)
            for file in walk(root):
                inside = "" if file == root else f"/{file.relative_to(root)}"
                files[target.rstrip("/") + inside] = file
        return files

    # debian ------------------------------------------------------------------

    def _debian_folder(self, base: str) -> Path:
        folder = self.repository / "images" / base
        if not (folder / "packages.txt").exists():
            raise BuildError(f"images/{base}/packages.txt does not exist; base is scratch, debian or node.")
        return folder

    @property
    def _strip(self) -> Path:
        return self.repository / "images/debian/strip.sh"

    def _debian_key(self, base: str) -> str:
        return debian.key(self._debian_folder(base), self._strip)

    def _make_debian(self, base: str, tar: Path) -> None:
        with self.progress.step(f"Debian packages of images/{base} (about 60 s)"):
            debian.make_root(self._debian_folder(base), self._strip, tar, self.progress)

    def _debian_root(self, base: str) -> Layer:
        return self._layer(self._debian_key(base), lambda tar: self._make_debian(base, tar))

    # the layers above --------------------------------------------------------

    def _make_programs(self, image: Image, tar: Path) -> None:
        files = {}
        for source, path in image.binaries.items():
            name, _, program = source.partition("/")
            files[path] = bin_folder(self.cache, self.components[name], self.go) / program
        if image.from_debian:
            root = self.store.blob(self._debian_root("debian").digest)
            with tarfile.open(root) as archive:
                for number, (source, path) in enumerate(image.from_debian.items()):
                    member = archive.extractfile(f".{source}")
                    if member is None:
                        raise BuildError(f"image {image.name}: {source} is no file of the Debian layer.")
                    files[path] = tar.parent / str(number)
                    files[path].write_bytes(member.read())
                    files[path].chmod(0o755)
        write_tar(tar, files, {})

    def _make_files(self, image: Image, files: Mapping[str, Path], tar: Path) -> None:
        if image.base == SCRATCH or not any(path.endswith(".py") for path in files):
            write_tar(tar, files, image.links)
            return
        tree = tar.parent / "tree"
        for path, file in files.items():
            copy = tree / path.lstrip("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy, follow_symlinks=False)
        self._compile(image.base, tree)
        write_tar(tar, _tree_files(tree), image.links)

    def _make_requirements(self, image: Image, tar: Path) -> None:
        tree = tar.parent / "tree"
        packages = tree / SITE_PACKAGES.lstrip("/")
        packages.mkdir(parents=True)
        requirements = str(self._source(image, image.requirements))
        with self.progress.step(f"Python packages of {image.requirements}"):
            self.progress.run(f"requirements-{image.name}", [*_pip(), "--target", str(packages), "-r", requirements])
            shutil.rmtree(packages / "bin", ignore_errors=True)
            self._compile(image.base, tree)
        write_tar(tar, _tree_files(tree), {})

    def _compile(self, base: str, tree: Path) -> None:
        """Byte-compiles with the image's own interpreter: a pod's read-only file system could never keep it."""
        with tempfile.TemporaryDirectory(dir=self.store.folder, prefix=".python-") as work:
            python = debian.extract_python(self.store.blob(self._debian_root(base).digest), Path(work))
            options = ["-qq", "-j0", "--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", "/"]
            self.progress.run(
                "compile", [*python, "-s", "-m", "compileall", *options, str(tree)], env={"PYTHONHOME": f"{work}/usr"}
            )


def _tree_files(tree: Path) -> dict[str, Path]:
    return {
        f"/{path.relative_to(tree)}": path for path in sorted(tree.rglob("*")) if path.is_symlink() or path.is_file()
    }


def _pip() -> list[str]:
    """The installer at hand, told to choose wheels for the image's Python instead of this one's."""
    machine = platform.machine()
    if importlib.util.find_spec("pip"):
        platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS]
        platforms.append(f"--platform=manylinux2014_{machine}")
        argv = [sys.executable, "-m", "pip", "install", "--no-compile", "--disable-pip-version-check", *platforms]
        return [*argv, f"--python-version={PYTHON}", "--only-binary=:all:", "--root-user-action=ignore"]
    if shutil.which("uv"):
        argv = ["uv", "pip", "install", f"--python-platform={machine}-manylinux_2_36"]
        return [*argv, f"--python-version={PYTHON}", "--only-binary=:all:"]
    raise BuildError(f"Neither pip of {sys.executable} nor uv is installed; install one of them.")
