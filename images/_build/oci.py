# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""OCI images from layers: a store of blobs, reproducible tars, and the archive that a container engine loads."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

# Not compressed: over the lab's bridge a node pulls and unpacks in 40 % of the time that gzip takes.
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
# To be raised when put_image writes something else for the same input: kept images are then written anew.
IMAGE_FORMAT = 2
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Layer:
    digest: str
    size: int  # in bytes


@dataclass(frozen=True)
class Built:
    """An assembled image: its manifest's digest, and what the manifest names."""

    digest: str
    config: str
    layers: tuple[Layer, ...]


class Store:
    """Blobs by digest, and layers and images by the hash of what they are made from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.replace(":", "/")

    def find_layer(self, key: str) -> Layer | None:
        record = self._read(f"layers/{key}.json")
        layer = Layer(**record) if record else None
        return layer if layer and self.blob(layer.digest).exists() else None

    def find_image(self, key: str) -> Built | None:
        record = self._read(f"images/{key}.json")
        if not record:
            return None
        built = Built(record["digest"], record["config"], tuple(Layer(**layer) for layer in record["layers"]))
        blobs = [built.digest, built.config, *(layer.digest for layer in built.layers)]
        return built if all(self.blob(digest).exists() for digest in blobs) else None

    def put_layer(self, key: str, tar: Path) -> Layer:
        """Takes a tar file over as a layer, and remembers it under `key`."""
        with tar.open("rb") as stream:
            digest = f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
        layer = Layer(digest, tar.stat().st_size)
        self._keep(tar, digest)
        self._write(f"layers/{key}.json", asdict(layer))
        return layer

    def put_image(self, key: str, config: Mapping[str, object], layers: Iterable[Layer]) -> Built:
        layers = tuple(layers)
        machine = platform.machine()
        full_config = {
            "architecture": _ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
            # One entry a layer, or engines refuse to build on the image. Without a time: the same bytes every time.
            "history": [{"created_by": "images/build.py"} for _ in layers],
        }
        config_digest, config_size = self._put_json(full_config)
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {"mediaType": CONFIG_TYPE, "digest": config_digest, "size": config_size},
            "layers": [{"mediaType": LAYER_TYPE, "digest": layer.digest, "size": layer.size} for layer in layers],
        }
        built = Built(self._put_json(manifest)[0], config_digest, layers)
        self._write(f"images/{key}.json", asdict(built))
        return built

    def _put_json(self, value: object) -> tuple[str, int]:
        data = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as temporary:
            temporary.write(data)
        self._keep(Path(temporary.name), digest)
        return digest, len(data)

    def _keep(self, temporary: Path, digest: str) -> None:
        target = self.blob(digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.chmod(0o644)
        temporary.replace(target)

    def _read(self, name: str) -> dict:  # type: ignore[type-arg]
        try:
            return json.loads((self.folder / name).read_text(encoding="utf-8"))  # type: ignore[no-any-return]
        except (FileNotFoundError, json.JSONDecodeError):
            return {}

    def _write(self, name: str, record: Mapping[str, object]) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(record), encoding="utf-8")
        temporary.replace(path)


def write_tar(out: Path, files: Mapping[str, Path], links: Mapping[str, str]) -> None:
    """Writes a tar with files and symbolic links (path in the image: what), the same bytes for the same content."""
    names = {name.lstrip("/") for name in (*files, *links)}
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents} - {"."}
    sources = {name.lstrip("/"): path for name, path in files.items()}
    targets = {name.lstrip("/"): target for name, target in links.items()}
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(names | folders):
            entry = tarfile.TarInfo(name)
            entry.mode = 0o755
            if name in targets:
                entry.type, entry.linkname = tarfile.SYMTYPE, targets[name]
                archive.addfile(entry)
            elif name not in sources:
                entry.type = tarfile.DIRTYPE
                archive.addfile(entry)
            elif sources[name].is_symlink():
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(sources[name])
                archive.addfile(entry)
            else:
                status = sources[name].stat()
                entry.size = status.st_size
                entry.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
                with sources[name].open("rb") as stream:
                    archive.addfile(entry, stream)


def write_engine_archive(out: Path, store: Store, built: Built, reference: str) -> None:
    """Writes what `podman load` and `docker load` take (the archive format of `docker save`)."""
    names = [f"{layer.digest.removeprefix('sha256:')}.tar" for layer in built.layers]
    config_name = f"{built.config.removeprefix('sha256:')}.json"
    index = [{"Config": config_name, "RepoTags": [reference], "Layers": names}]
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(store.blob(built.config), config_name)
        for name, layer in zip(names, built.layers, strict=True):
            archive.add(store.blob(layer.digest), name)
        _add_json(archive, "manifest.json", index)


def write_oci_archive(out: Path, store: Store, built: Built, name: str) -> None:
    """Writes what `ctr images import` takes (an OCI layout). Unlike the engine's, it keeps the image's digest."""
    manifest = {
        "mediaType": MANIFEST_TYPE,
        "digest": built.digest,
        "size": store.blob(built.digest).stat().st_size,
        "annotations": {"io.containerd.image.name": name},
    }
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as archive:
        _add_json(archive, "oci-layout", {"imageLayoutVersion": "1.0.0"})
        for digest in dict.fromkeys([built.digest, built.config, *(layer.digest for layer in built.layers)]):
            archive.add(store.blob(digest), f"blobs/{digest.replace(':', '/')}")
        _add_json(archive, "index.json", {"schemaVersion": 2, "manifests": [manifest]})


def _add_json(archive: tarfile.TarFile, name: str, value: object) -> None:
    data = json.dumps(value).encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
