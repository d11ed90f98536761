# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""The store of layers, the cache of components, the choice of the source, and pushing: nothing is done twice."""

from __future__ import annotations

import json
import os
import tarfile
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from _build import components, debian, upstream
from _build.assemble import Assembler
from _build.hosts import load_all
from _build.manifest import Component, parse_image
from _build.oci import Layer, Store, write_engine_archive, write_oci_archive, write_tar
from _build.progress import BuildError, Progress
from _build.registry import push_all

GO = "go1.26.8 linux/amd64"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/run").write_text("#!/bin/sh\n")
    (tmp_path / "src/run").chmod(0o755)
    (tmp_path / "src/data").write_text("data")
    (tmp_path / "src/__pycache__").mkdir()
    (tmp_path / "src/__pycache__/x.pyc").write_text("left behind")
    return tmp_path


@pytest.fixture
def assembler(repository: Path) -> Assembler:
    cache = repository / "cache"
    return Assembler(repository, cache, {}, GO, Store(cache / "images"), Progress(cache / "logs"))


MANIFEST = {
    "repository": "acme/tool",
    "tag": "1",
    "base": "scratch",
    "files": {"src": "/app"},
    "links": {"/bin/run": "/app/run"},
    "entrypoint": ["/bin/run"],
}


def test_a_tar_depends_on_content_alone(repository: Path) -> None:
    files = {"/app/run": repository / "src/run", "/app/data": repository / "src/data"}
    write_tar(repository / "one.tar", files, {"/bin/run": "/app/run"})
    os.utime(repository / "src/data", (1, 1))
    write_tar(repository / "two.tar", dict(reversed(files.items())), {"/bin/run": "/app/run"})
    assert (repository / "one.tar").read_bytes() == (repository / "two.tar").read_bytes()
    with tarfile.open(repository / "one.tar") as archive:
        assert [(entry.name, oct(entry.mode), entry.uid) for entry in archive if entry.isfile()] == [
            ("app/data", "0o644", 0),
            ("app/run", "0o755", 0),
        ]
        assert archive.getmember("bin/run").linkname == "/app/run"


def test_an_image_is_assembled_once(assembler: Assembler, monkeypatch: pytest.MonkeyPatch) -> None:
    image = parse_image(MANIFEST, "tool", "here", {})
    assert assembler.missing([image]) == [image]
    built = assembler.assemble(image)
    assert assembler.missing([image]) == []
    monkeypatch.setattr(Store, "put_layer", lambda *_: pytest.fail("made a second time"))
    assert assembler.assemble(image) == built


def test_an_image_whose_blob_was_deleted_is_assembled_again(assembler: Assembler) -> None:
    image = parse_image(MANIFEST, "tool", "here", {})
    built = assembler.assemble(image)
    assembler.store.blob(built.layers[0].digest).unlink()
    assert assembler.missing([image]) == [image]
    assert assembler.assemble(image) == built


@pytest.mark.parametrize("change", ["content", "mode", "entrypoint"])
def test_a_change_makes_another_image(assembler: Assembler, repository: Path, change: str) -> None:
    before = assembler.assemble(parse_image(MANIFEST, "tool", "here", {}))
    manifest = dict(MANIFEST)
    if change == "content":
        (repository / "src/data").write_text("other")
    elif change == "mode":
        (repository / "src/run").chmod(0o644)
    else:
        manifest["entrypoint"] = ["/app/run"]
    after = assembler.assemble(parse_image(manifest, "tool", "here", {}))
    assert after.digest != before.digest
    assert (after.layers == before.layers) is (change == "entrypoint")


def test_the_history_has_an_entry_for_each_layer_and_no_time(assembler: Assembler) -> None:
    assembler.store.folder.mkdir(parents=True)
    layers = [Layer(f"sha256:{number:064}", 1) for number in range(3)]
    one, two = (assembler.store.put_image(key, {}, layers) for key in ("one", "two"))
    config = json.loads(assembler.store.blob(one.config).read_bytes())
    assert config["history"] == [{"created_by": "images/build.py"}] * 3
    assert one == two


def test_a_missing_source_is_named(assembler: Assembler) -> None:
    image = parse_image({**MANIFEST, "files": {"nowhere": "/app"}}, "tool", "here", {})
    with pytest.raises(BuildError, match=r"image tool: nowhere does not exist in the repository\."):
        assembler.assemble(image)


def test_the_engine_archive_names_its_parts(assembler: Assembler, tmp_path: Path) -> None:
    built = assembler.assemble(parse_image(MANIFEST, "tool", "here", {}))
    write_engine_archive(tmp_path / "image.tar", assembler.store, built, "localhost/tool:1")
    with tarfile.open(tmp_path / "image.tar") as archive:
        index = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
        assert {index[0]["Config"], *index[0]["Layers"]} < set(archive.getnames())
    assert index[0]["RepoTags"] == ["localhost/tool:1"]


def test_the_hosts_archive_keeps_the_images_digest(assembler: Assembler, tmp_path: Path) -> None:
    built = assembler.assemble(parse_image(MANIFEST, "tool", "here", {}))
    write_oci_archive(tmp_path / "image.tar", assembler.store, built, "docker.io/acme/tool:1")
    with tarfile.open(tmp_path / "image.tar") as archive:
        (entry,) = json.load(archive.extractfile("index.json"))["manifests"]  # type: ignore[arg-type]
        manifest = archive.extractfile(f"blobs/{built.digest.replace(':', '/')}").read()  # type: ignore[union-attr]
        parts = [json.loads(manifest)["config"], *json.loads(manifest)["layers"]]
        assert {f"blobs/{part['digest'].replace(':', '/')}" for part in parts} < set(archive.getnames())
    assert (entry["digest"], entry["size"]) == (built.digest, len(manifest))
    assert entry["annotations"] == {"io.containerd.image.name": "docker.io/acme/tool:1"}


ENGINE = """#!/bin/sh
# exec [--interactive] host ctr --namespace k8s.io images list|import ...
folder=$(dirname "$0")
[ "$2" = --interactive ] && host=$3 && cat >"$folder/$host" && exit
case "$*" in *broken*) echo 'no such container' >&2; exit 125 ;; esac
[ -e "$folder/$2" ] && tar --extract --to-stdout --file "$folder/$2" index.json || true
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    program = tmp_path / "engine" / "podman"
    program.parent.mkdir()
    program.write_text(ENGINE)
    program.chmod(0o755)
    return program


def test_only_hosts_without_the_image_get_it(assembler: Assembler, engine: Path, tmp_path: Path) -> None:
    images = [("acme/tool:1", assembler.assemble(parse_image(MANIFEST, "tool", "here", {})))]
    load = partial(load_all, str(engine), images=images, store=assembler.store, progress=Progress(tmp_path / "logs"))
    assert load(["one"]) == ["acme/tool:1 into one"]
    assert load(["one", "two"]) == ["acme/tool:1 into two"]
    assert load(["one", "two"]) == []


def test_a_host_that_does_not_answer_is_named(assembler: Assembler, engine: Path, tmp_path: Path) -> None:
    images = [("acme/tool:1", assembler.assemble(parse_image(MANIFEST, "tool", "here", {})))]
    with pytest.raises(BuildError, match="broken: containerd does not list its images: no such container"):
        load_all(str(engine), ["broken"], images, assembler.store, Progress(tmp_path / "logs"))


def component(folder: Path) -> Component:
    (folder / "go.mod").write_text("module x\n")
    (folder / "go.sum").write_text("")
    return Component("x", folder, "1.0", {"x": "x"}, "", "", (), "example.org/x", 1)


def test_a_cached_component_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = component(tmp_path)
    components.bin_folder(tmp_path / "cache", one, GO).mkdir(parents=True)
    monkeypatch.setenv("PATH", "")
    assert components.build_components(tmp_path / "cache", [one], GO, Progress(tmp_path)) == []


def test_too_little_disk_is_said_before_anything_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "NEEDED_GB", 10**9)
    with pytest.raises(BuildError, match=r"GB free, building the components takes 1000000000 GB; free some space"):
        components.check_disk([tmp_path / "not/there/yet"])


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = component(tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "go").write_text(
        "#!/bin/sh\n[ $1 = env ] && echo /tmp /tmp && exit\necho 'no such module' >&2\nexit 3\n"
    )
    (programs / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(components, "NEEDED_GB", 0)
    with pytest.raises(BuildError, match=r"(?s)component-x: go ended with 3; .*no such module"):
        components.build_components(tmp_path / "cache", [one], GO, Progress(tmp_path / "logs"))
    assert list((tmp_path / "cache/components").iterdir()) == []


def test_progress_goes_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENANTRY_PROGRESS_FILE", str(tmp_path / "state/progress"))
    with Progress(tmp_path).step("building x"):
        pass
    lines = (tmp_path / "state/progress").read_text().splitlines()
    assert lines[0] == "building x"
    assert lines[1].startswith("building x: done in ")


@pytest.mark.parametrize(
    ("wanted", "recorded", "answers", "result"),
    [
        pytest.param("auto", "", True, "upstream", id="auto, registries answer"),
        pytest.param("auto", "", False, "standin", id="auto, no answer"),
        pytest.param("auto", "standin", True, "standin", id="auto keeps what was chosen"),
        pytest.param("upstream", "standin", False, "upstream", id="told"),
    ],
)
def test_where_components_come_from(wanted: str, recorded: str, answers: bool, result: str) -> None:
    assert upstream.resolve(wanted, recorded, "", lambda _: answers) == result


def test_a_mirror_is_asked_instead_of_the_registries() -> None:
    asked: list[str] = []

    def answer(urls: Iterable[str]) -> bool:
        asked.extend(urls)
        return True

    assert upstream.resolve("auto", "", "mirror.example:5000", answer) == "upstream"
    assert asked == ["http://mirror.example:5000"]


def test_silence_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "PROBE_TIMEOUT_S", 0.05)
    blocked = threading.Event()
    assert not upstream.all_answer(["http://a"], lambda _: blocked.wait(5))
    blocked.set()


@pytest.mark.parametrize(
    ("mirror", "base", "address"),
    [
        ("", "docker.io/kindest/node:v1.36.3", ""),
        ("mirror:5000", "mirror:5000/kindest/node:v1.36.3", "http://mirror:5000"),
        ("https://mirror", "mirror/kindest/node:v1.36.3", "https://mirror"),
    ],
)
def test_the_upstream_node_image(mirror: str, base: str, address: str) -> None:
    folder = Path(__file__).parents[3] / "images/node"
    node = upstream.Node.of(folder, "localhost/tenantry-gpu", "1.36.3", mirror)
    assert (node.base, node.mirror) == (base, address)


@pytest.mark.parametrize(
    ("codename", "source", "expected"),
    [
        ("bookworm", "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\n", "{folder}/debian.sources"),
        (
            "trixie",
            "Types: deb\nURIs: http://mirror.example/debian\n",
            "deb http://mirror.example/debian bookworm main",
        ),
        ("noble", "Types: deb\nURIs: http://mirror.example/ubuntu\nSuites: noble\n", ""),
    ],
)
def test_debian_packages_come_from_the_machines_source(
    tmp_path: Path, codename: str, source: str, expected: str
) -> None:
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (folder / "debian.sources").write_text(source)
    (tmp_path / "os-release").write_text(f"VERSION_CODENAME={codename}\n")
    assert debian.apt_source(tmp_path, tmp_path / "os-release") == expected.format(folder=folder)


class FakeRegistry(BaseHTTPRequestHandler):
    """As much of the distribution API as a push uses."""

    blobs: ClassVar[dict[str, int]] = {}
    manifests: ClassVar[dict[str, str]] = {}
    protocol_version = "HTTP/1.1"

    def answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def do_GET(self) -> None:
        self.answer(200)

    def do_HEAD(self) -> None:
        if "/blobs/" in self.path:
            self.answer(200 if self.path.rsplit("/", 1)[1] in self.blobs else 404)
        elif self.path in self.manifests:
            self.answer(200, Docker_Content_Digest=self.manifests[self.path])
        else:
            self.answer(404)

    def do_POST(self) -> None:
        self.answer(202, Location="http://ignored/v2/acme/tool/blobs/uploads/1?state=s")

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "/uploads/" in self.path:
            self.blobs[self.path.rsplit("digest=", 1)[1].replace("%3A", ":")] = len(body)
        else:
            digest = json.loads(body)["config"]["digest"]
            assert digest in self.blobs
            self.manifests[self.path] = self.server.expected  # type: ignore[attr-defined]
        self.answer(201)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeRegistry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_only_what_is_missing_is_pushed(assembler: Assembler, registry: ThreadingHTTPServer, tmp_path: Path) -> None:
    built = assembler.assemble(parse_image(MANIFEST, "tool", "here", {}))
    registry.expected = built.digest  # type: ignore[attr-defined]
    address = f"127.0.0.1:{registry.server_port}"
    images = [("acme/tool", "1", built)]
    assert push_all(address, images, assembler.store, Progress(tmp_path)) == ["acme/tool:1"]
    assert set(FakeRegistry.blobs) == {built.config, built.layers[0].digest}
    assert push_all(address, images, assembler.store, Progress(tmp_path)) == []
