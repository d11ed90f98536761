# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a module can do, in words that are the same for all."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check mode and tell what would be done without doing it.
  diff_mode:
    description: Returns details on what has changed (or possibly needs changing in check mode).
  idempotent:
    description: Running it again under the same circumstances changes nothing.
"""

    # For modules that only read.
    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    support: full
    details:
      - This module only reads; check mode makes no difference.
  diff_mode:
    support: N/A
    details:
      - This module only reads.
  idempotent:
    support: full
    details:
      - This module only reads.
"""
