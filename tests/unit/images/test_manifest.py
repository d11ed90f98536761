# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Manifests of components and images: what is read, what is refused, and what a hash depends on."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from _build.manifest import (
    MODULE_UTILS_IN_IMAGE,
    check_binaries,
    digest,
    load_component,
    load_components,
    load_images,
    load_matrix,
    parse_go_mod,
    parse_image,
)
from _build.progress import BuildError

REPOSITORY = Path(__file__).parents[3]
GO = "go1.26.8 linux/amd64"
GO_MOD = """module tenantry.gpu/components/store

go 1.26.8

tool (
	example.org/store/ctl/v3
	example.org/store/server/v3
)

require (
	example.org/store/ctl/v3 v3.1.0 // indirect
	example.org/store/server/v3 v3.2.0 // indirect
)
"""
COMPONENT = "{module: example.org/store/server/v3, rename: {server: store}, ldflags: ['-X v={version}']}"
IMAGE = {"repository": "acme/store", "tag": "v{store}", "base": "scratch"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = tmp_path / "store"
    store.mkdir()
    (store / "go.mod").write_text(GO_MOD)
    (store / "go.sum").write_text("sums")
    (store / "component.yml").write_text(COMPONENT)
    return store


def test_go_mod_single_and_block_directives() -> None:
    tools, versions = parse_go_mod("tool example.org/x/cmd/x\n\nrequire (\n\texample.org/x v1.2.3 // indirect\n)\n")
    assert tools == ["example.org/x/cmd/x"]
    assert versions == {"example.org/x": "1.2.3"}


def test_a_component_knows_its_programs_and_version(folder: Path) -> None:
    component = load_component(folder, {})
    assert component.version == "3.2.0"
    assert component.programs == {"ctl": "ctl", "server": "store"}
    assert component.ldflags == "-s -w -X v=3.2.0"


@pytest.mark.parametrize(
    ("file", "content", "same"),
    [
        pytest.param("go.sum", "other sums", False, id="checksums"),
        pytest.param("go.mod", GO_MOD.replace("v3.2.0", "v3.2.1"), False, id="version"),
        pytest.param("component.yml", COMPONENT.replace("-X v=", "-X w="), False, id="flags"),
        pytest.param("component.yml", COMPONENT[:-1] + ", seconds: 9}", True, id="expected seconds"),
        pytest.param("component.yml", COMPONENT[:-1] + ", on_request: true}", True, id="on request"),
        pytest.param("component.yml", COMPONENT[:-1] + ", cgo: true}", False, id="C compiler"),
    ],
)
def test_a_component_is_built_again_for_what_can_change_it(folder: Path, file: str, content: str, same: bool) -> None:
    before = load_component(folder, {}).key(GO)
    (folder / file).write_text(content)
    assert (load_component(folder, {}).key(GO) == before) is same


def test_a_component_is_built_again_for_another_compiler(folder: Path) -> None:
    component = load_component(folder, {})
    assert component.key(GO) != component.key("go1.26.9 linux/amd64")


def test_the_matrix_and_go_mod_must_agree(folder: Path) -> None:
    (folder / "component.yml").write_text(COMPONENT[:-1] + ", matrix: store}")
    assert load_component(folder, {"store": "3.2.0"}).version == "3.2.0"
    with pytest.raises(BuildError, match=r"go.mod pins .* 3\.2\.0, the version matrix says store 9\.9; give both"):
        load_component(folder, {"store": "9.9"})


def test_an_image_takes_its_tag_from_the_matrix() -> None:
    image = parse_image(IMAGE, "store", "here", {"store": "3.2.0"})
    assert image.reference == "acme/store:v3.2.0"
    assert image.config() == {
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        "WorkingDir": "/",
    }


def test_module_utils_are_importable_as_in_the_collection() -> None:
    image = parse_image({**IMAGE, "module_utils": ["_hami"]}, "store", "here", {"store": "1"})
    assert image.files == {"plugins/module_utils/_hami.py": f"{MODULE_UTILS_IN_IMAGE}/_hami.py"}
    assert image.env == {"PYTHONPATH": "/app"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param({**IMAGE, "entry": []}, "here: unknown key entry; known are base, ", id="unknown key"),
        pytest.param({"repository": "a", "tag": "1"}, "here: the key base is missing.", id="missing key"),
        pytest.param({**IMAGE, "tag": "v{none}"}, "here: the version matrix has no none.", id="unknown version"),
        pytest.param(["repository"], "here: expected keys and values.", id="not a mapping"),
    ],
)
def test_a_wrong_manifest_is_named(data: object, message: str) -> None:
    with pytest.raises(BuildError, match=f"^{message}"):
        parse_image(data, "store", "here", {"store": "1"})


def test_a_program_that_nothing_builds_is_named(folder: Path) -> None:
    image = parse_image({**IMAGE, "binaries": {"store/stoer": "/store"}}, "store", "here", {"store": "1"})
    with pytest.raises(BuildError, match="image store: no program stoer in component store; it has: ctl, store"):
        check_binaries([image], {"store": load_component(folder, {})})


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1, "b": 3})


def test_the_manifests_of_this_repository_hold_together() -> None:
    versions = REPOSITORY / "inventories/lab/group_vars/all/versions.yml"
    matrix = load_matrix(versions, REPOSITORY / "galaxy.yml")
    images = load_images(REPOSITORY / "images", matrix)
    check_binaries(images, load_components(REPOSITORY / "images/components", matrix))
    pushed = [image.reference for image in images if not image.engine]
    assert len(set(pushed)) == len(pushed)
    assert {image.name for image in images if image.engine} == {"node", "registry"}
    ours = [image for image in images if image.ours]
    assert [image.reference for image in ours] == [f"tenantry/gpu-simulator:{matrix['collection']}"]
    assert not any(image.binaries or image.from_debian for image in ours)  # no Go where the rest comes from upstream
    containerd = (REPOSITORY / "images/node/files/etc/containerd/config.toml.in").read_text()
    assert f"pause:{matrix['pause']}" in containerd


def test_every_requirement_is_pinned() -> None:
    for file in (REPOSITORY / "images").glob("*/requirements.txt"):
        lines = [line.split(" ")[0] for line in file.read_text().splitlines() if line[:1].isalnum()]
        assert lines
        assert all("==" in line for line in lines), file


def test_matrix_values_are_text(tmp_path: Path) -> None:
    (tmp_path / "versions.yml").write_text(yaml.safe_dump({"tenantry_versions": {"x": 1.5}}))
    (tmp_path / "galaxy.yml").write_text("version: 0.1.0")
    assert load_matrix(tmp_path / "versions.yml", tmp_path / "galaxy.yml") == {"x": "1.5", "collection": "0.1.0"}
