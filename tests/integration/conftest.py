"""Fixtures of the integration tests: a real API server, and users with exactly the rights that a manifest gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from control_plane import ROOT, ControlPlane, HarnessError


def running(folder: Path) -> Iterator[ControlPlane]:
    """A control plane for as long as a fixture lives. Its logs stay in pytest's temporary folder."""
    control_plane = ControlPlane(folder)
    try:
        try:
            control_plane.start()
        except HarnessError as error:
            pytest.exit(str(error), returncode=1)
        yield control_plane
    finally:
        control_plane.stop()


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One API for all tests; what a test makes in it, it removes again."""
    yield from running(tmp_path_factory.mktemp("control-plane") / "first")


@pytest.fixture(scope="session")
def second_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Another API with an authority of its own, for what looks at two tenants."""
    yield from running(tmp_path_factory.mktemp("control-plane") / "second")


@pytest.fixture
def kubeconfig_for(control_plane: ControlPlane) -> Callable[[str, Path | None], Path]:
    """A kubeconfig of a user who has exactly the roles of a manifest (None: no right at all)."""

    def make(user: str, manifest: Path | None) -> Path:
        path = control_plane.new_kubeconfig(user)
        if manifest:
            control_plane.grant(user, manifest)
        return path

    return make


@pytest.fixture(scope="session", autouse=True)
def ansible_environment() -> None:
    """What ansible-playbook needs to run this checkout, wherever it is called from."""
    os.environ["ANSIBLE_CONFIG"] = str(ROOT / "ansible.cfg")
    os.environ["ANSIBLE_NOCOLOR"] = "1"
