# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A mirror is filled, interrupted, damaged and judged; skopeo and helm are played, registries are real HTTP."""

from __future__ import annotations

import hashlib
import json
import re
import stat
from pathlib import Path

import pytest

from ansible_collections.tenantry.gpu.plugins.module_utils._artifact_folder import Folder
from ansible_collections.tenantry.gpu.plugins.module_utils._checksums import ArtifactsError
from ansible_collections.tenantry.gpu.plugins.modules.artifacts_info import look
from ansible_collections.tenantry.gpu.plugins.modules.artifacts_mirror import Mirror

LAYER = f"sha256:{hashlib.sha256(b'layer').hexdigest()}"
IMAGES = ["registry.k8s.io/etcd:3.6.8-0", "registry.k8s.io/pause:3.10.2"]
CHART = {"name": "metallb", "version": "0.15.2", "ref": "metallb", "repo_url": "https://example.com", "values": {}}
HELM = """#!/usr/bin/env python3
import pathlib, sys
if sys.argv[1] == "pull":
    folder = pathlib.Path(sys.argv[sys.argv.index("--destination") + 1])
    (folder / "metallb-0.15.2.tgz").write_text("a chart")
else:
    print("kind: Deployment\\nspec: {template: {spec: {containers: [{image: 'quay.io/metallb/speaker:v0.15.2'}]}}}")
"""


class Played(Mirror):
    """skopeo copies from one site in memory to the other; ``dies_after`` so many images upstream is gone."""

    dies_after = 99

    def program(self, command):
        if command[0] != "skopeo":
            return super().program(command)
        if self.dies_after <= 0:
            raise ArtifactsError("upstream is gone")
        type(self).dies_after -= 1
        repository, source = re.sub(r"docker://[^/]+/", "", command[-2]).replace("@", ":", 1).split(":", 1)
        tag = command[-1].rpartition(":")[2]
        digest = self.upstream.copy_to(self.mirror, repository, source, tag)
        Path(command[command.index("--digestfile") + 1]).write_text(digest)
        return None


class World:
    """Two registries, a folder, and the parameters of both modules."""

    def __init__(self, parameters, sites, kept):
        self.parameters = parameters
        self.folder = Path(parameters["folder"])
        self.sites = sites
        self.kept = kept

    def run(self, check=False):
        run = Played(self.parameters, check)
        run.changed = run.run()
        return run

    def findings(self, **changes):
        return look({**self.parameters, **changes})["findings"]


@pytest.fixture
def world(tmp_path, monkeypatch, new_site):
    upstream, mirror = new_site(), new_site()
    digests = {image: upstream.add_image(re.split("[/:]", image)[1], image.rpartition(":")[2]) for image in IMAGES}
    upstream.add_image("metallb/speaker", "v0.15.2")
    upstream.files["/runc"] = b"a program"
    upstream.files["/runc.sums"] = f"{hashlib.sha256(b'a program').hexdigest()}  runc\n".encode()
    helm = tmp_path / "helm"
    helm.write_text(HELM)
    helm.chmod(helm.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(Played, "upstream", upstream, raising=False)
    monkeypatch.setattr(Played, "mirror", mirror, raising=False)
    monkeypatch.setattr(Played, "dies_after", 99)

    parameters = {
        "folder": str(tmp_path / "artifacts"),
        "registry": mirror.url,
        "images": IMAGES,
        "charts": [CHART],
        "files": [
            {"path": "files/runc/1/runc", "url": f"{upstream.url}/runc", "checksum_url": f"{upstream.url}/runc.sums"}
        ],
        "sources": {},
        "concurrency": 2,
        "timeout_s": 10,
        "auth_file": "",
        "skopeo": "skopeo",
        "helm": str(helm),
        "packages": {},
    }
    return World(parameters, (upstream, mirror), digests)


EVERYTHING = {
    "chart metallb 0.15.2",
    "files/runc/1/runc",
    "quay.io/metallb/speaker:v0.15.2",
    "registry.k8s.io/etcd:3.6.8-0",
    "registry.k8s.io/pause:3.10.2",
}


def test_everything_is_mirrored_and_a_second_run_asks_upstream_for_nothing(world):
    run = world.run()
    assert run.failures == []
    assert set(run.brought) == EVERYTHING
    assert world.kept.items() <= Folder(world.parameters["folder"]).lock().items()
    assert set(Folder(world.parameters["folder"]).sums()) == {
        "charts/metallb-0.15.2.tgz",
        "files/runc/1/runc",
        "images.json",
    }
    assert world.findings() == []
    world.sites[0].asked.clear()
    again = world.run()
    assert (again.changed, again.brought, len(again.present)) == (False, [], 5)
    assert world.sites[0].asked == []


def test_a_run_in_check_mode_says_what_it_would_bring_and_brings_nothing(world):
    run = world.run(check=True)
    assert run.changed
    # What a chart names is known once the chart is there.
    assert set(run.brought) == EVERYTHING - {"quay.io/metallb/speaker:v0.15.2"}
    assert not world.folder.exists()
    assert world.sites[0].asked == []


def test_an_upstream_that_dies_half_way_is_named_and_the_next_run_goes_on(world):
    Played.dies_after = 1
    world.sites[0].files.pop("/runc")
    run = world.run()
    assert len(run.brought) == 2  # the chart and one image
    assert sorted(run.failures)[0] == f"files/runc/1/runc: {world.sites[0].url}/runc answers 404."
    assert len([failure for failure in run.failures if failure.endswith(": upstream is gone")]) == 2
    Played.dies_after = 99
    world.sites[0].files["/runc"] = b"a program"
    after = world.run()
    assert after.failures == []
    assert set(after.brought) == EVERYTHING - set(run.brought)


def test_a_file_that_is_not_what_its_project_publishes_is_not_kept(world):
    world.sites[0].files["/runc"] = b"another"
    assert "has the checksum" in world.run().failures[0]
    assert not (world.folder / "files/runc/1/runc").exists()


def test_a_program_that_is_missing_is_named(world):
    world.parameters["helm"] = "/nowhere/helm"
    assert "chart metallb 0.15.2: the program /nowhere/helm is missing; install it." in world.run().failures


def test_a_killed_run_left_a_file_without_its_sum_and_it_is_not_fetched_again(world):
    path = world.folder / "files/runc/1/runc"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"a program")
    world.run()
    assert [asked for asked in world.sites[0].asked if asked.endswith("/runc")] == []


def test_all_findings_come_at_once(world):
    world.run()
    mirror = world.sites[1]
    lost = LAYER
    del mirror.blobs["etcd", lost]
    del mirror.manifests["pause", "3.10.2"]
    (world.folder / "files/runc/1/runc").write_text("damaged")
    (world.folder / "charts/metallb-0.15.2.tgz").unlink()
    wanted = [*IMAGES, "quay.io/new/one:1"]
    findings = [re.sub(r"\b[0-9a-f]{12}\.", "X.", finding) for finding in world.findings(images=wanted)]
    assert [re.sub(r"[0-9a-f]{64}", "...", finding) for finding in findings] == [
        "quay.io/new/one:1: was never mirrored, images.json does not name it.",
        f"registry.k8s.io/etcd:3.6.8-0: the mirror {mirror.address} has lost its blob sha256:... (0.0 MiB).",
        f"registry.k8s.io/pause:3.10.2: the mirror {mirror.address} does not have it.",
        "charts/metallb-0.15.2.tgz cannot be read (No such file or directory).",
        "files/runc/1/runc has checksum X... instead of X....",
    ]


def test_what_was_lost_is_mirrored_again_as_it_was(world):
    world.run()
    del world.sites[1].blobs["etcd", LAYER]
    world.sites[0].add_image("etcd", "3.6.8-0", [b"the tag moved"])
    run = world.run()
    assert run.brought == ["registry.k8s.io/etcd:3.6.8-0"]
    assert world.findings() == []


def test_what_was_never_mirrored_is_named(world):
    assert world.findings(charts=[]) == [
        f"files/runc/1/runc: was never mirrored to {world.folder}.",
        "registry.k8s.io/etcd:3.6.8-0: was never mirrored, images.json does not name it.",
        "registry.k8s.io/pause:3.10.2: was never mirrored, images.json does not name it.",
    ]


def test_what_was_mirrored_is_judged_without_a_list(world):
    world.run()
    assert world.findings(images=[], charts=[], files=[]) == []


def test_an_image_that_a_chart_names_and_no_role_is_missed(world):
    world.run()
    folder = Folder(world.parameters["folder"])
    lock = {name: digest for name, digest in folder.lock().items() if "metallb" not in name}
    folder.write_lock(lock)
    folder.write_sums()
    assert world.findings() == ["quay.io/metallb/speaker:v0.15.2: was never mirrored, images.json does not name it."]


def test_a_package_that_a_distribution_lacks_is_named(world):
    world.run()
    for name in (
        "debian-12/Packages",
        "debian-12/kmod_30_amd64.deb",
        "debian-13/.partial",
        "rocky-9/kmod-28-9.x86_64.rpm",
    ):
        path = world.folder / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    Folder(world.parameters["folder"]).write_sums()
    assert world.findings(packages={"Debian": ["kmod", "mount"], "RedHat": ["kmod"]}) == [
        "packages/debian-12/: package mount was never mirrored.",
        "packages/debian-13/: its packages were never mirrored.",
    ]
    assert world.findings() == []


def test_a_folder_without_packages_is_named_until_the_site_says_that_it_needs_none(world):
    world.run()
    (finding,) = world.findings(packages={"Debian": ["kmod"]})
    assert finding.startswith(
        f"packages/: no package was ever mirrored to {world.folder}; give the group artifact_hosts"
    )
    (world.folder / "packages").mkdir()
    assert world.findings(packages={"Debian": ["kmod"]}) == []


def test_a_damaged_lock_stops_before_anything(world):
    world.folder.mkdir()
    (world.folder / "images.json").write_text(json.dumps({"images": [{}]}))
    with pytest.raises(ArtifactsError, match=r"images\.json cannot be read"):
        world.run()
