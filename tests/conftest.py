"""Makes this checkout importable as ansible_collections.tenantry.gpu; under ansible-test it already is."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from hypothesis import HealthCheck, settings

import ansible_collections

if find_spec("ansible_collections.tenantry") is None:
    checkout = Path(__file__).resolve().parent.parent / "collections" / "ansible_collections"
    ansible_collections.__path__.append(str(checkout))

# How long an example takes says more of who else is on the machine than of our code.
settings.register_profile("tenantry", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tenantry")
