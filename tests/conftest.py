"""Makes this checkout importable as ansible_collections.tenantry.gpu; under ansible-test it already is."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import ansible_collections

if find_spec("ansible_collections.tenantry") is None:
    checkout = Path(__file__).resolve().parent.parent / "collections" / "ansible_collections"
    ansible_collections.__path__.append(str(checkout))
