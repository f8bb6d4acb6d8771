"""Where no key is required: whose requests those without a key are, and from where they are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from api.callers.authentication import is_keyless
from jobs.store.database import Database
from jobs.tenancy.keys import Scope, create_key, revoke_key
from tests.api.serving import KEY, UNKNOWN_KEY, RunningApi, eventually, running_api
from tests.api.tiny_model import TinyModel

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is"], "label_token_ids": [70]}


def send(api: RunningApi, *authorization: str) -> httpx2.Response:
    with api.client_with(None) as client:
        return client.get("/v1/jobs", headers=[("authorization", value) for value in authorization])


@pytest.mark.parametrize(
    ("host", "bell_socket", "keyless"),
    [
        ("127.0.0.1", "/bell", True),
        ("127.8.9.10", "/bell", True),
        ("::1", "/bell", True),
        ("localhost", "/bell", True),
        ("127.0.0.1", None, False),
        ("0.0.0.0", "/bell", False),
        ("::", "/bell", False),
        ("10.0.0.1", "/bell", False),
        ("localhost.example.org", "/bell", False),
        ("", "/bell", False),
    ],
)
def test_only_embedded_mode_on_a_loopback_address_is_keyless(host: str, bell_socket: str | None, keyless: bool) -> None:
    assert is_keyless(host, bell_socket) is keyless


def test_where_no_key_is_required_any_bearer_but_an_unknown_key_counts_as_none(api: RunningApi) -> None:
    for value in ("Bearer sk-openai", "Bearer EMPTY", f"Bearer {KEY[:-1]}", f"Bearer x{UNKNOWN_KEY}"):
        assert send(api, value).status_code == 200, value
    for values in (
        [f"Bearer {UNKNOWN_KEY}"],
        ["Bearer sk_sl_"],
        ["Basic abc"],
        ["Bearer a", "Bearer b"],
        ["Bearer a b"],
    ):
        assert send(api, *values).status_code == 401, values


def test_where_no_key_is_required_a_stored_key_keeps_its_tenant_and_scopes(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"with_worker": False, "key_cache_seconds": 0.2}
    with running_api(model.directory, sqlite_url, tmp_path, **settings) as (api, _):
        store = Database.open(api.store)
        key, record = create_key(store, "acme", "reads", [Scope.READ])
        with api.client_with(None) as client:
            assert client.post("/v1/jobs", json=BODY).status_code == 202
        assert len(send(api).json()["data"]) == 1
        assert send(api, f"Bearer {key}").json()["data"] == []
        with api.client_with(key) as client:
            assert client.post("/v1/jobs", json=BODY).status_code == 403
        revoke_key(store, record.id)
        store.close()
        eventually(lambda: send(api, f"Bearer {key}").status_code == 401, "the revoked key is refused")


def without_a_key(api: RunningApi, headers: dict[str, str]) -> httpx2.Response:
    with api.client_with(None) as client:
        return client.post("/v1/webhook-secrets/rotate", headers=headers)


SAME_SITE: dict[str, dict[str, str]] = {
    "curl": {},
    "by name": {"Host": "localhost:{port}"},
    "by name without a port": {"Host": "LocalHost"},
    "by IPv6": {"Host": "[::1]:{port}"},
    "its own documentation": {"Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"},
    "its own by name": {"Host": "localhost:{port}", "Origin": "http://localhost:{port}"},
    "typed into a browser": {"Sec-Fetch-Site": "none"},
}

OTHER_SITE: dict[str, dict[str, str]] = {
    "a page": {"Origin": "https://pages.example", "Sec-Fetch-Site": "cross-site"},
    "a page in an old browser": {"Origin": "https://pages.example"},
    "a page in a sandbox": {"Origin": "null"},
    "a picture": {"Sec-Fetch-Site": "cross-site"},
    "another server of this machine": {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"},
    "a picture of another server of this machine": {"Sec-Fetch-Site": "same-site"},
    "a name that was made to lead here": {"Host": "pages.example:{port}", "Origin": "http://pages.example:{port}"},
    "such a name alone": {"Host": "pages.example:{port}"},
    "one that begins like ours": {"Host": "127.0.0.1.pages.example"},
    "an address that is not loopback": {"Host": "192.168.0.7:{port}"},
    "no name": {"Host": ""},
}


@pytest.mark.parametrize("case", [*SAME_SITE, *OTHER_SITE])
def test_requests_from_pages_of_other_sites_need_a_key_even_where_none_is_required(api: RunningApi, case: str) -> None:
    port = api.url.rpartition(":")[2]
    headers = {name: value.format(port=port) for name, value in (SAME_SITE | OTHER_SITE)[case].items()}
    answer = without_a_key(api, headers)
    if case in SAME_SITE:
        assert answer.status_code == 200, answer.text
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert "localhost" in answer.json()["error"]["message"]
    assert without_a_key(api, headers | {"Authorization": "Bearer EMPTY"}).status_code == answer.status_code
    assert without_a_key(api, headers | {"Authorization": f"Bearer {KEY}"}).status_code == 200, (
        "a valid key is accepted from anywhere"
    )
