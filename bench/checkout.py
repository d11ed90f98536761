# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Import this first: it makes the checkout importable as ansible_collections.tenantry.gpu, with Ansible or without."""

import sys
from importlib.util import find_spec
from pathlib import Path

COLLECTIONS = Path(__file__).resolve().parents[1] / "collections"
sys.path.append(str(COLLECTIONS))
import ansible_collections

if find_spec("ansible_collections.tenantry") is None:
    ansible_collections.__path__.append(str(COLLECTIONS / "ansible_collections"))
