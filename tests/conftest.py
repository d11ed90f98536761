"""Makes this checkout importable as ansible_collections.tenantry.gpu; under ansible-test it already is."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from hypothesis import HealthCheck, settings

# ansible-test shows a module no more of Ansible than a host has, and brings a finder of its own.
if find_spec("ansible.plugins"):
    from ansible.plugins.loader import init_plugin_loader
    from ansible.utils.collection_loader import AnsibleCollectionConfig

    if AnsibleCollectionConfig.collection_finder is None:
        # As Ansible does it, so that templates of roles find the collection's filters too.
        init_plugin_loader([str(Path(__file__).resolve().parent.parent / "collections")])

# How long an example takes says more of who else is on the machine than of our code.
settings.register_profile("tenantry", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tenantry")
