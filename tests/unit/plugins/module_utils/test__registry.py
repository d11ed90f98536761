# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import hashlib
import json

import pytest

from ansible_collections.tenantry.gpu.plugins.module_utils._registry import (
    Registry,
    RegistryError,
    credentials_for,
    losses,
)

OTHER = "sha256:" + "0" * 64


@pytest.fixture
def site(new_site):
    return new_site()


def test_a_whole_image_has_no_losses(site):
    digest = site.add_image("a/b", "1", [b"one", b"two"], platforms=3)
    registry = Registry(site.url)
    assert registry.missing("a/b", "1") == (digest, [])
    assert losses(registry, "a/b", "1", digest) == []
    assert losses(registry, "a/b", digest, digest) == []


def test_a_lost_blob_is_named_once_for_each_platform_that_needs_it(site):
    digest = site.add_image("a/b", "1", [b"x" * 1_500_000], platforms=1)
    lost = f"sha256:{hashlib.sha256(b'x' * 1_500_000).hexdigest()}"
    del site.blobs["a/b", lost]
    assert losses(Registry(site.url), "a/b", "1", digest) == [f"has lost its blob {lost} (1.4 MiB)"]


def test_a_lost_platform_is_named(site):
    digest = site.add_image("a/b", "1", platforms=2)
    child = json.loads(site.manifests["a/b", "1"])["manifests"][1]["digest"]
    del site.manifests["a/b", child]
    assert losses(Registry(site.url), "a/b", "1", digest) == [f"has lost its manifest {child}"]


def test_an_image_that_is_not_there_or_another(site):
    digest = site.add_image("a/b", "1")
    registry = Registry(site.url)
    assert losses(registry, "a/b", "2", digest) == ["does not have it"]
    assert losses(registry, "a/b", "1", OTHER) == [f"has {digest} in its place, and {OTHER} was mirrored"]


def test_a_manifest_that_cannot_be_read_is_a_loss(site):
    site.manifests["a/b", "1"] = b"{}"
    assert losses(Registry(site.url), "a/b", "1", "")[0].startswith("cannot be judged: its manifest is of a kind")


def test_a_registry_that_wants_a_token_gets_one(site):
    site.token = "open"
    digest = site.add_image("a/b", "1")
    assert losses(Registry(site.url), "a/b", "1", digest) == []
    assert "GET /token" in site.asked


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_blob_that_the_registry_keeps_elsewhere_is_there(site, status):
    digest = site.add_image("a/b", "1", [b"one", b"two"])
    lost = f"sha256:{hashlib.sha256(b'two').hexdigest()}"
    del site.blobs["a/b", lost]
    find = site.find

    def elsewhere(path, authorization):
        answer = find(path, authorization)
        if answer[0] == 200 and "/blobs/" in path:
            return status, {"Location": "http://storage.invalid/signed-for-reading"}, b""
        return answer

    site.find = elsewhere
    assert losses(Registry(site.url), "a/b", "1", digest) == [f"has lost its blob {lost} (0.0 MiB)"]


def test_a_manifest_is_not_looked_for_elsewhere(site):
    site.find = lambda *_: (307, {"Location": "http://storage.invalid/"}, b"")
    with pytest.raises(RegistryError, match=r"answers GET /v2/a/b/manifests/1 with 307\."):
        Registry(site.url).manifest("a/b", "1")


def test_a_registry_that_is_away_is_named(site):
    site.close()
    with pytest.raises(RegistryError, match=rf"^{site.address} does not answer: "):
        Registry(site.url).manifest("a/b", "1")


def test_a_registry_that_fails_is_named(site):
    site.find = lambda *_: (503, {}, b"")
    with pytest.raises(RegistryError, match=r"answers GET /v2/a/b/manifests/1 with 503\."):
        Registry(site.url).manifest("a/b", "1")


def test_credentials_that_are_missing_are_asked_for(site):
    site.find = lambda *_: (401, {"WWW-Authenticate": 'Basic realm="x"'}, b"")
    with pytest.raises(RegistryError, match=rf"wants credentials; log in with skopeo login {site.address}\."):
        Registry(site.url, "/nowhere").manifest("a/b", "1")


def test_credentials_are_read_where_skopeo_writes_them(tmp_path, monkeypatch):
    secret = base64.b64encode(b"user:word").decode()
    file = tmp_path / "auth.json"
    file.write_text(json.dumps({"auths": {"mirror:5000": {"auth": secret}}}))
    assert credentials_for("mirror:5000", str(file)) == secret
    assert credentials_for("other:5000", str(file)) == ""
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(file))
    assert credentials_for("mirror:5000", "") == secret
