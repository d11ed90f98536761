# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is to be built: components (Go programs) and images, read from their manifests. No side effects."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .progress import BuildError

MODULE_UTILS = "plugins/module_utils"
MODULE_UTILS_IN_IMAGE = "/app/ansible_collections/tenantry/gpu/plugins/module_utils"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SCRATCH = "scratch"


def digest(value: object, length: int = 16) -> str:
    """The hash of a JSON value: the same for equal values, whatever the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def file_digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _mapping(text: object, where: str) -> dict[str, Any]:
    if not isinstance(text, dict):
        raise BuildError(f"{where}: expected keys and values.")
    return text


def _known(data: Mapping[str, Any], required: set[str], optional: set[str], where: str) -> None:
    unknown = sorted(set(data) - required - optional)
    missing = sorted(required - set(data))
    if unknown:
        raise BuildError(f"{where}: unknown key {unknown[0]}; known are {', '.join(sorted(required | optional))}.")
    if missing:
        raise BuildError(f"{where}: the key {missing[0]} is missing.")


@dataclass(frozen=True)
class Component:
    """A folder of images/components: Go programs pinned by go.mod and go.sum."""

    name: str
    folder: Path
    version: str
    programs: Mapping[str, str]  # what go names it: what we name it
    ldflags: str
    tags: str
    charts: tuple[str, ...]  # folders of the module to keep: Helm charts
    module: str
    seconds: int
    cgo: bool = False
    on_request: bool = False  # no part of the lab

    def key(self, go: str) -> str:
        """Changes with everything that can change the programs. `go`: compiler version and target."""
        sources = {name: file_digest(self.folder / name) for name in ("go.mod", "go.sum")}
        build = [dict(self.programs), self.ldflags, self.tags, self.charts, *(["cgo"] if self.cgo else [])]
        return digest([self.name, go, sources, build])


def _program_name(package: str) -> str:
    parts = package.split("/")
    return parts[-2] if re.fullmatch(r"v\d+", parts[-1]) else parts[-1]


def parse_go_mod(text: str) -> tuple[list[str], dict[str, str]]:
    """Takes a go.mod. Returns the packages of its tool directives, and the version of each required module."""
    blocks = re.findall(r"^(\w+) \(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL)
    lines = [(kind, line.strip()) for kind, body in blocks for line in body.splitlines()]
    lines += re.findall(r"^(tool|require) ([^(\s].*)$", text, re.MULTILINE)
    tools = [line for kind, line in lines if kind == "tool" and line]
    pairs = [line.split() for kind, line in lines if kind == "require" and line]
    return tools, {words[0]: words[1].removeprefix("v") for words in pairs}


def load_component(folder: Path, matrix: Mapping[str, str]) -> Component:
    where = f"images/components/{folder.name}/component.yml"
    data = _mapping(yaml.safe_load((folder / "component.yml").read_text(encoding="utf-8")), where)
    _known(data, {"module"}, {"matrix", "tags", "ldflags", "rename", "charts", "seconds", "cgo", "on_request"}, where)
    tools, versions = parse_go_mod((folder / "go.mod").read_text(encoding="utf-8"))
    module = data["module"]
    if module not in versions:
        raise BuildError(f"{where}: go.mod does not require the module {module}.")
    version = versions[module]
    if "matrix" in data and matrix.get(data["matrix"]) != version:
        raise BuildError(
            f"{where}: go.mod pins {module} {version}, the version matrix says "
            f"{data['matrix']} {matrix.get(data['matrix'])}; give both the same version."
        )
    rename = data.get("rename", {})
    return Component(
        name=folder.name,
        folder=folder,
        version=version,
        programs={name: rename.get(name, name) for name in map(_program_name, tools)},
        ldflags=" ".join(["-s", "-w", *(flag.format(version=version) for flag in data.get("ldflags", []))]),
        tags=",".join(data.get("tags", [])),
        charts=tuple(data.get("charts", [])),
        module=module,
        seconds=data.get("seconds", 30),
        cgo=data.get("cgo", False),
        on_request=data.get("on_request", False),
    )


def load_components(folder: Path, matrix: Mapping[str, str]) -> dict[str, Component]:
    return {path.name: load_component(path, matrix) for path in sorted(folder.iterdir()) if path.is_dir()}


@dataclass(frozen=True, eq=False)
class Image:
    """An image: its place in the registry, what it is made of, and how it starts."""

    name: str
    repository: str
    tag: str
    base: str
    engine: bool = False
    binaries: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    from_debian: Mapping[str, str] = field(default_factory=dict)
    requirements: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = "/"
    stop_signal: str = ""

    @property
    def reference(self) -> str:
        return f"{self.repository}:{self.tag}"

    @property
    def ours(self) -> bool:
        """Whether it is published nowhere: no upstream has an image of this name."""
        return self.repository.startswith("tenantry/")

    def config(self) -> dict[str, object]:
        """The part of the OCI image configuration that a container runtime starts from."""
        env = {"PATH": DEFAULT_PATH, **self.env}
        config: dict[str, object] = {
            "Env": [f"{name}={value}" for name, value in env.items()],
            "WorkingDir": self.workdir,
        }
        optional = {
            "Entrypoint": list(self.entrypoint),
            "Cmd": list(self.command),
            "User": self.user,
            "StopSignal": self.stop_signal,
        }
        return config | {key: value for key, value in optional.items() if value}


_IMAGE_OPTIONAL = {
    "engine", "binaries", "files", "links", "module_utils", "from_debian", "requirements",
    "entrypoint", "command", "env", "user", "workdir", "stop_signal",
}  # fmt: skip


def parse_image(data: object, name: str, where: str, matrix: Mapping[str, str]) -> Image:
    """Takes one image's manifest as read from YAML and the version matrix for its tag."""
    fields = dict(_mapping(data, where))
    _known(fields, {"repository", "tag", "base"}, _IMAGE_OPTIONAL, where)
    try:
        fields["tag"] = str(fields["tag"]).format(**matrix)
    except KeyError as missing:
        raise BuildError(f"{where}: the version matrix has no {missing.args[0]}.") from missing
    files = dict(fields.pop("files", {}))
    env = {key: str(value) for key, value in fields.pop("env", {}).items()}
    module_utils = fields.pop("module_utils", [])
    if module_utils:
        files |= {f"{MODULE_UTILS}/{util}.py": f"{MODULE_UTILS_IN_IMAGE}/{util}.py" for util in module_utils}
        env.setdefault("PYTHONPATH", "/app")
    for key in ("entrypoint", "command"):
        fields[key] = tuple(str(word) for word in fields.pop(key, ()))
    return Image(name=name, files=files, env=env, **fields)


def load_images(folder: Path, matrix: Mapping[str, str]) -> list[Image]:
    """Every image of the folder images/: those of programs.yml, then each <name>/image.yml."""
    images = []
    for entry in yaml.safe_load((folder / "programs.yml").read_text(encoding="utf-8")):
        fields = dict(_mapping(entry, "images/programs.yml"))
        name = fields.pop("name", "")
        images.append(parse_image(fields, name, f"images/programs.yml, {name}", matrix))
    for path in sorted(folder.glob("*/image.yml")):
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        images.append(parse_image(data, path.parent.name, f"images/{path.parent.name}/image.yml", matrix))
    return images


def check_binaries(images: list[Image], components: Mapping[str, Component]) -> None:
    """Raises BuildError for a binary that no component builds."""
    for image in images:
        for source in image.binaries:
            component, _, program = source.partition("/")
            programs = components[component].programs.values() if component in components else ()
            if program not in programs:
                has = ", ".join(sorted(programs)) or "none, there is no such component"
                raise BuildError(f"image {image.name}: no program {program} in component {component}; it has: {has}.")


def walk(path: Path) -> Iterator[Path]:
    """The files of a folder (or the file itself), sorted, without what Python and editors leave behind."""
    if path.is_file() or path.is_symlink():
        yield path
        return
    for child in sorted(path.iterdir()):
        if child.name == "__pycache__" or child.name.endswith((".pyc", "~")):
            continue
        if child.is_dir() and not child.is_symlink():
            yield from walk(child)
        else:
            yield child


def load_matrix(versions: Path, galaxy: Path) -> dict[str, str]:
    """The version matrix (tenantry_versions), and the collection's own version as `collection`."""
    matrix = yaml.safe_load(versions.read_text(encoding="utf-8"))["tenantry_versions"]
    collection = yaml.safe_load(galaxy.read_text(encoding="utf-8"))["version"]
    return {key: str(value) for key, value in matrix.items()} | {"collection": str(collection)}
