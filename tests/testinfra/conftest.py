"""The lab that molecule converged, seen from its hosts, its API servers and the controller's files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes.dynamic import DynamicClient
from lab import WORKERS, Lab
from testinfra.host import Host


@pytest.fixture(scope="session")
def lab() -> Lab:
    engine = os.environ.get("TENANTRY_LAB_ENGINE") or next(name for name in ("podman", "docker") if shutil.which(name))
    return Lab(Path(os.environ["TENANTRY_STATE_DIR"]).resolve(), engine)


@pytest.fixture(params=WORKERS, scope="session")
def tenant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def worker(lab: Lab, tenant: str) -> Host:
    """The worker of the tenant."""
    return lab.host(WORKERS[tenant])


@pytest.fixture(scope="session")
def api(lab: Lab, tenant: str) -> DynamicClient:
    """The tenant's API with its administrator's credentials."""
    return lab.api(tenant)


@pytest.fixture(scope="session")
def management(lab: Lab) -> DynamicClient:
    """The management cluster's API with its administrator's credentials."""
    return lab.api("management")


@pytest.fixture
def created(request: pytest.FixtureRequest) -> Iterator[Callable[[DynamicClient, str, dict[str, object]], str]]:
    """Creates an object below a collection's path, tells its own path, and deletes it after the test."""
    made: list[tuple[DynamicClient, str]] = []

    def create(client: DynamicClient, collection: str, body: dict[str, object]) -> str:
        path = f"{collection}/{client.request('post', collection, body=body).metadata.name}"
        made.append((client, path))
        return path

    yield create
    for client, path in reversed(made):
        client.request("delete", path, query_params=[("gracePeriodSeconds", 0)])
