"""The fixtures of this scenario."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from production_site import Site


@pytest.fixture(scope="session")
def site() -> Site:
    return Site(Path(os.environ["TENANTRY_STATE_DIR"]).resolve())
