# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("kubernetes")

from ansible_collections.tenantry.gpu.plugins.module_utils._cluster import ClusterError, Kubeconfig
from ansible_collections.tenantry.gpu.plugins.modules import tenant_isolation_info as module

TENANTS = {name: Kubeconfig(f"https://{name}:6443", None, None, None, f"Bearer {name}") for name in ("a", "b")}


def asked(monkeypatch: pytest.MonkeyPatch, foreign: Any) -> list[dict[str, Any]]:
    def ask(api: Kubeconfig, credentials: Kubeconfig, path: str) -> Any:
        if api is credentials:
            return 200, {"items": [{"metadata": {"name": "n1"}}]}
        if isinstance(foreign, Exception):
            raise foreign
        return foreign

    monkeypatch.setattr(module, "ask", ask)
    return module.ask_all(TENANTS)


@pytest.mark.parametrize("status", [401, 403])
def test_every_api_is_asked_with_every_tenants_credentials(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    answers = asked(monkeypatch, (status, {"message": "Unauthorized"}))
    assert len(answers) == 2 * 2 * len(module.PATHS)
    assert {answer["status"] for answer in answers if answer["own"]} == {200}
    assert {(answer["status"], answer["message"]) for answer in answers if not answer["own"]} == {
        (status, "Unauthorized")
    }
    assert not any(map(module.violation, answers))


@pytest.mark.parametrize(
    ("foreign", "message"),
    [
        ((200, {"items": []}), "a's API answered /api/v1/nodes with 200 to the credentials of b"),
        ((500, {"message": "trouble"}), "a's API answered /api/v1/nodes with 500 to the credentials of b"),
        (ClusterError("https://a:6443 cannot be reached: refused"), "a's API did not answer"),
    ],
)
def test_what_is_no_refusal_is_a_violation(monkeypatch: pytest.MonkeyPatch, foreign: Any, message: str) -> None:
    violations = list(filter(None, map(module.violation, asked(monkeypatch, foreign))))
    assert len(violations) == 2 * len(module.PATHS)
    assert message in violations[0]


def test_an_own_tenant_that_is_refused_is_a_violation() -> None:
    answer = {"api": "a", "credentials": "a", "own": True, "path": "/x", "status": 401, "message": "Unauthorized"}
    assert module.violation(answer) == "a's API answered /x with 401 to its own tenant: Unauthorized"


def test_no_credential_is_in_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Bearer" not in str(asked(monkeypatch, (401, {"message": "Unauthorized"})))
