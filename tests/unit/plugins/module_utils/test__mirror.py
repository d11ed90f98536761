# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.tenantry.gpu.plugins.module_utils._checksums import ArtifactsError, format_sums, parse_sums
from ansible_collections.tenantry.gpu.plugins.module_utils._mirror import (
    Part,
    Reference,
    collisions,
    complete_list,
    format_lock,
    images_in,
    missing_packages,
    parse_lock,
    parse_reference,
    parts_of,
    published,
    published_checksum,
    source_of,
)

DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
SUM = "c" * 64


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        pytest.param("registry.k8s.io/pause:3.10.2", "registry.k8s.io/pause:3.10.2", id="registry"),
        pytest.param("tenantry/gpu-simulator:0.1.0", "docker.io/tenantry/gpu-simulator:0.1.0", id="docker-hub"),
        pytest.param("busybox", "docker.io/library/busybox:latest", id="library"),
        pytest.param("docker.io/busybox:1", "docker.io/library/busybox:1", id="library-by-name"),
        pytest.param("10.0.0.2:5000/a/b", "10.0.0.2:5000/a/b:latest", id="port-and-no-tag"),
        pytest.param("localhost/a:1", "localhost/a:1", id="localhost"),
        pytest.param(f"quay.io/a/b@{DIGEST}", f"quay.io/a/b@{DIGEST}", id="digest"),
        pytest.param(f"quay.io/a/b:1@{DIGEST}", f"quay.io/a/b:1@{DIGEST}", id="tag-and-digest"),
    ],
)
def test_a_reference_is_read_as_containerd_reads_it(text, whole):
    assert str(parse_reference(text)) == whole
    assert parse_reference(whole) == parse_reference(text)


@pytest.mark.parametrize("text", ["", "a/UPPER:1", "a b", "a:", "a@sha256:1", "a/b:1@md5:2", "a//b"])
def test_what_is_no_reference_is_refused(text):
    with pytest.raises(ArtifactsError, match=r"is no reference of an image; write it as registry/repository:tag\."):
        parse_reference(text)


def test_two_registries_with_one_path_collide_at_a_mirror():
    references = map(parse_reference, ["docker.io/a/b:1", "quay.io/a/b:1", "quay.io/a/b:2", "docker.io/a/b:1"])
    assert collisions(references) == [
        "quay.io/a/b:1 and docker.io/a/b:1 would both be a/b:1 at the mirror; take the image from one of the two."
    ]


@pytest.mark.parametrize(
    ("text", "sources", "digest", "expected"),
    [
        pytest.param("quay.io/a/b:1", {}, "", ("docker://quay.io/a/b:1", False), id="origin"),
        pytest.param("quay.io/a/b:1", {}, DIGEST, (f"docker://quay.io/a/b@{DIGEST}", False), id="kept-digest"),
        pytest.param(
            "quay.io/a/b:1", {"quay.io": "http://10.0.0.2:5000/"}, "", ("docker://10.0.0.2:5000/a/b:1", True), id="http"
        ),
        pytest.param(
            "quay.io/a/b:1",
            {"quay.io": "one.example", "quay.io/a": "two.example/x"},
            "",
            ("docker://two.example/x/b:1", False),
            id="longest-beginning",
        ),
        pytest.param(
            "tenantry/gpu-simulator:0.1.0",
            {"docker.io/tenantry/gpu-simulator:0.1.0": "oci-archive:/srv/image.tar"},
            "",
            ("oci-archive:/srv/image.tar", False),
            id="archive",
        ),
        pytest.param(f"quay.io/a/b@{DIGEST}", {}, "", (f"docker://quay.io/a/b@{DIGEST}", False), id="by-digest"),
    ],
)
def test_where_an_image_is_read(text, sources, digest, expected):
    assert source_of(parse_reference(text), sources, digest) == expected


paths = st.from_regex(r"[a-z0-9][a-z0-9 ._+-]{0,20}[a-z0-9](/[a-z0-9._+-]{1,10})?", fullmatch=True)
checksums = st.text("0123456789abcdef", min_size=64, max_size=64)


@given(st.dictionaries(paths, checksums))
def test_checksums_come_back_as_written(sums):
    assert parse_sums(format_sums(sums)) == sums


@given(st.dictionaries(st.sampled_from(["a/b:1", "c/d:2", "e/f:3"]), checksums.map("sha256:{}".format)))
def test_the_lock_comes_back_as_written(images):
    assert parse_lock(format_lock(images)) == images


@pytest.mark.parametrize("text", ["{}", "[]", "no json", '{"images": [{"reference": "a", "digest": "sha256:1"}]}'])
def test_a_damaged_lock_is_refused(text):
    with pytest.raises(ArtifactsError, match=r"^images\.json "):
        parse_lock(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{SUM}\n", id="alone"),
        pytest.param(f"{SUM}  runc.amd64\n", id="one-line"),
        pytest.param(f"{'0' * 64}  runc.arm64\n{SUM} *runc.amd64\n", id="many"),
        pytest.param(f"{SUM}  ./out/runc.amd64\n", id="with-a-path"),
    ],
)
def test_published_checksums_are_read(text):
    assert published_checksum(text, "runc.amd64") == SUM


@pytest.mark.parametrize("text", ["", "<html>", f"{SUM}  runc.arm64", f"{SUM}\n{SUM}\n"])
def test_checksums_without_the_file_are_refused(text):
    with pytest.raises(ArtifactsError, match=r"do not name runc\.amd64"):
        published_checksum(text, "runc.amd64")


def test_images_of_containers_are_found():
    pod = {"spec": {"initContainers": [{"image": "a"}], "containers": [{"image": "b"}, {"name": "none"}]}}
    crd = {"properties": {"containers": {"items": {"properties": {"image": {"type": "string"}}}}}}
    assert list(images_in([{"spec": {"template": pod}}, {"items": [pod]}, crd, None])) == ["a", "b", "a", "b"]


def test_the_parts_of_an_index_and_of_a_manifest():
    index = b'{"manifests": [{"digest": "sha256:1", "size": 5}]}'
    manifest = (
        b'{"config": {"digest": "sha256:2", "size": 3}, "layers": [{"digest": "sha256:3"},'
        b' {"digest": "sha256:4", "urls": ["https://example.com"]}]}'
    )
    assert parts_of(index) == [Part("sha256:1", 5, manifest=True)]
    assert parts_of(manifest) == [Part("sha256:2", 3, manifest=False), Part("sha256:3", 0, manifest=False)]


@pytest.mark.parametrize("text", [b"", b"[]", b'{"schemaVersion": 1}', b'{"manifests": [{}]}'])
def test_another_kind_of_manifest_is_refused(text):
    with pytest.raises(ArtifactsError, match="its manifest is of a kind that is not known here"):
        parts_of(text)


BASES = {"kubernetes": "https://dl.k8s.io/", "runc": "https://example.com/runc", "helm": "https://get.helm.sh"}


@pytest.mark.parametrize(
    ("path", "url", "checksum_url"),
    [
        pytest.param(
            "files/kubernetes/1.36.3/kubelet",
            "https://dl.k8s.io/v1.36.3/bin/linux/arm64/kubelet",
            "https://dl.k8s.io/v1.36.3/bin/linux/arm64/kubelet.sha256",
            id="kubernetes",
        ),
        pytest.param(
            "files/runc/1.5.2/runc.arm64",
            "https://example.com/runc/v1.5.2/runc.arm64",
            "https://example.com/runc/v1.5.2/runc.sha256sum",
            id="runc",
        ),
        pytest.param(
            "files/helm/3.22.0/helm-v3.22.0-linux-arm64.tar.gz",
            "https://get.helm.sh/helm-v3.22.0-linux-arm64.tar.gz",
            "https://get.helm.sh/helm-v3.22.0-linux-arm64.tar.gz.sha256sum",
            id="helm",
        ),
    ],
)
def test_where_programs_are_published(path, url, checksum_url):
    assert published(path, BASES, "arm64") == {"path": path, "url": url, "checksum_url": checksum_url}


def test_a_program_that_nobody_publishes_is_named():
    with pytest.raises(ArtifactsError, match="files/foo/1/foo: it is not known where this is published"):
        published("files/foo/1/foo", BASES, "amd64")


def test_the_list_names_everything_once():
    chart = {"name": "hami", "version": "2.10.0", "ref": "hami"}
    wanted = [
        {"images": ["pause:1", f"quay.io/b:2@{DIGEST}"], "charts": [chart], "packages": {"Debian": ["kmod"]}},
        {"images": ["docker.io/library/pause:1"], "charts": [chart], "packages": {"Debian": ["iptables", "kmod"]}},
        {"files": ["files/runc/1.5.2/runc.amd64"]},
        {},
    ]
    found = complete_list(wanted, BASES, "amd64", {"docker.io/library/pause:1": OTHER})
    assert found["images"] == [
        {"reference": "docker.io/library/pause:1", "digest": OTHER},
        {"reference": f"quay.io/b:2@{DIGEST}", "digest": DIGEST},
    ]
    assert found["charts"] == [chart]
    assert [file["path"] for file in found["files"]] == ["files/runc/1.5.2/runc.amd64"]
    assert found["packages"] == {"Debian": ["iptables", "kmod"]}


@pytest.mark.parametrize(
    ("wanted", "missing"),
    [
        pytest.param({"Debian": ["kmod", "libstdc++6"]}, [], id="names"),
        pytest.param({"Debian": ["kmod=30*", "docker=5:27.1-*"]}, [], id="apt-version"),
        pytest.param({"Debian": ["kmod=31*", "libstdc++"]}, ["kmod=31*", "libstdc++"], id="apt-lacks"),
        pytest.param({"Debian": [], "RedHat": ["kmod"]}, [], id="another-family"),
    ],
)
def test_packages_that_apt_downloaded(wanted, missing):
    files = [
        "Packages",
        "kmod_30+20221128-1_amd64.deb",
        "libstdc++6_12.2.0-14_amd64.deb",
        "docker_5%3a27.1-1~x_all.deb",
    ]
    assert missing_packages(wanted, files) == missing


@pytest.mark.parametrize(
    ("wanted", "missing"),
    [
        pytest.param(["iptables-nft", "toolkit-base"], [], id="names"),
        pytest.param(["toolkit-base-1.17.8", "toolkit-base-1.17.8-1", "toolkit-base-1.17*"], [], id="dnf-version"),
        pytest.param(
            ["iptables", "toolkit", "toolkit-base-1.18.0"],
            ["iptables", "toolkit", "toolkit-base-1.18.0"],
            id="dnf-lacks",
        ),
    ],
)
def test_packages_that_dnf_downloaded(wanted, missing):
    files = ["repodata/repomd.xml", "iptables-nft-1.8.10-11.el9.x86_64.rpm", "toolkit-base-1.17.8-1.x86_64.rpm"]
    assert missing_packages({"RedHat": wanted, "Debian": ["kmod"]}, files) == missing


def test_a_list_that_a_mirror_cannot_hold_is_refused():
    with pytest.raises(ArtifactsError, match="would both be a/b:1 at the mirror"):
        complete_list([{"images": ["docker.io/a/b:1", "quay.io/a/b:1"]}], BASES, "amd64", {})


def test_a_reference_without_tag_is_asked_for_by_digest():
    assert Reference("quay.io", "a/b", "", DIGEST).mark == DIGEST
