# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The mutating webhook's wire: AdmissionReview in, AdmissionReview with a JSON patch out."""

import base64
import json
import logging
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._placement import PlacementError, Rules, mutate

from .api import Json
from .cluster import Cluster

log = logging.getLogger(__name__)


def review(body: Json, cluster: Cluster, rules: Rules) -> Json:
    """Judge the pod of an AdmissionReview."""
    request = body["request"]
    pod, namespace = request["object"], request.get("namespace") or ""
    response: Json = {"uid": request["uid"], "allowed": True}
    try:
        verdict = mutate(pod, rules, cluster.quota(namespace))
    except PlacementError as error:
        response |= {"allowed": False, "status": {"message": str(error), "code": 400}}
    else:
        if not verdict.allowed:
            response |= {"allowed": False, "status": {"message": verdict.message, "code": verdict.code}}
        elif patch := json_patch(pod, verdict.pod):
            encoded = base64.b64encode(json.dumps(patch).encode()).decode()
            response |= {"patchType": "JSONPatch", "patch": encoded}
    name = pod["metadata"].get("name") or pod["metadata"].get("generateName")
    outcome = "changed" if "patch" in response else response.get("status", {}).get("message", "left alone")
    log.info("pod %s/%s: %s", namespace, name, outcome)
    return {"apiVersion": body["apiVersion"], "kind": "AdmissionReview", "response": response}


def json_patch(before: Any, after: Any, path: str = "") -> list[Json]:
    """The operations that make one JSON value into another (RFC 6902); lists of other length are replaced."""
    if before == after:
        return []
    if isinstance(before, dict) and isinstance(after, dict):
        changes: list[Json] = []
        for key in sorted({*before, *after}):
            place = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
            if key not in after:
                changes.append({"op": "remove", "path": place})
            elif key not in before:
                changes.append({"op": "add", "path": place, "value": after[key]})
            else:
                changes += json_patch(before[key], after[key], place)
        return changes
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [change for index, (old, new) in pairs for change in json_patch(old, new, f"{path}/{index}")]
    return [{"op": "replace", "path": path, "value": after}]
