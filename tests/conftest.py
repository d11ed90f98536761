"""Makes this checkout importable as ansible_collections.tenantry.gpu; under ansible-test it already is."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.loader import init_plugin_loader
from ansible.utils.collection_loader import AnsibleCollectionConfig
from hypothesis import HealthCheck, settings

if AnsibleCollectionConfig.collection_finder is None:
    # As Ansible does it, so that templates of roles find the collection's filters too.
    init_plugin_loader([str(Path(__file__).resolve().parent.parent / "collections")])

# How long an example takes says more of who else is on the machine than of our code.
settings.register_profile("tenantry", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tenantry")
