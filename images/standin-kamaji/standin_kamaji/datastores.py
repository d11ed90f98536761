# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""A DataStore's status, and its protection while a tenant uses it (controllers/datastore_controller.go)."""

from __future__ import annotations

from typing import Any

from . import model
from .api import Api, Object, path_of
from .model import API_VERSION, DATASTORE_FINALIZER, SpecError
from .reconcile import credentials, now

VALID = "kamaji.clastix.io/DataStoreValidation"
DELETABLE = "kamaji.clastix.io/DataStoreAllowedDeletion"


def _condition(resource: Object, kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    conditions = resource.get("status", {}).get("conditions", [])
    old: dict[str, Any] = next((condition for condition in conditions if condition["type"] == kind), {})
    changed = old.get("status") != status
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": resource["metadata"]["generation"],
        "lastTransitionTime": now() if changed else old["lastTransitionTime"],
    }


def users_of(name: str, tenants: list[Object], default_datastore: str) -> list[str]:
    """Takes all TenantControlPlanes. Returns namespace/name of those that use or used this DataStore."""
    return sorted(
        f"{tenant['metadata']['namespace']}/{tenant['metadata']['name']}"
        for tenant in tenants
        if name
        in (
            tenant["spec"].get("dataStore") or default_datastore,
            tenant.get("status", {}).get("storage", {}).get("dataStoreName"),
        )
    )


async def reconcile(api: Api, name: str, default_datastore: str) -> bool:
    """Returns False where there is no such DataStore any more."""
    path = path_of(API_VERSION, "DataStore", name=name)
    resource = await api.get(path)
    if resource is None:
        return False
    metadata = resource["metadata"]
    if model.PAUSED in metadata.get("annotations", {}):
        return True
    finalizers = metadata.get("finalizers", [])
    users = users_of(name, await api.list(path_of(API_VERSION, "TenantControlPlane")), default_datastore)
    if metadata.get("deletionTimestamp") and not users:
        kept = [finalizer for finalizer in finalizers if finalizer != DATASTORE_FINALIZER]
        await api.patch(path, {"metadata": {"finalizers": kept, "resourceVersion": metadata["resourceVersion"]}})
        return True
    if not metadata.get("deletionTimestamp") and DATASTORE_FINALIZER not in finalizers:
        with_ours = [*finalizers, DATASTORE_FINALIZER]
        await api.patch(path, {"metadata": {"finalizers": with_ours, "resourceVersion": metadata["resourceVersion"]}})
    try:
        await credentials(api, model.data_store(resource))
        conditions = [_condition(resource, VALID, "True", "DataStoreIsValid", "")]
    except SpecError as error:
        conditions = [_condition(resource, VALID, "False", "TLSConfigurationValidationFailed", str(error))]
    ready = conditions[0]["status"] == "True"
    if metadata.get("deletionTimestamp"):
        message = "The DataStore is still used and referenced by one (or more) TenantControlPlane objects."
        conditions.append(_condition(resource, DELETABLE, "False", "DataStoreStillUsed", message))
    status = {
        "observedGeneration": metadata["generation"],
        "ready": ready,
        "usedBy": users,
        "conditions": conditions,
    }
    if resource.get("status", {}) != status:
        await api.patch(f"{path}/status", {"status": status})
    return True
