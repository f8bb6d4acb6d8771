"""Authentication: valid keys are accepted, and all others get the same answer."""

from __future__ import annotations

import hmac
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from api import background
from api.callers import authentication
from jobs.store.database import Database
from jobs.store.identifiers import new_job_id
from jobs.store.tables import api_keys
from jobs.tenancy.keys import Scope, create_key, find_key, list_keys, revoke_key
from settings.jobs import StoreSettings
from tests.api.every_route import OPERATIONS, WEBHOOK_BODY, Operation, delivery_of, request
from tests.api.serving import DEADLINE_SECONDS, KEY, UNKNOWN_KEY, RunningApi, eventually, running_api
from tests.api.tiny_model import TinyModel
from tests.services import PostgresServer

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is"], "label_token_ids": [70]}
ALL = frozenset(Scope)


@dataclass(frozen=True)
class Guarded:
    """A server that requires keys, its database, and keys by name."""

    api: RunningApi
    store: Database
    keys: dict[str, str]


@pytest.fixture(scope="module")
def guarded(model: TinyModel, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    shutil.copy(sqlite_template, folder / "scoreline.db")
    with ExitStack() as stack:
        api, _ = stack.enter_context(
            running_api(model.directory, f"sqlite:///{folder / 'scoreline.db'}", folder, host="0.0.0.0")
        )
        store = Database.open(api.store)
        stack.callback(store.close)
        keys = {scope.value: create_key(store, "acme", scope.value, [scope])[0] for scope in Scope}
        for name in ("good", "expired", "revoked"):
            keys[name], record = create_key(store, "acme", name, ALL, expires_in=1_000.0)
            if name == "expired":
                with store.write() as connection:
                    connection.execute(update(api_keys).where(api_keys.c.id == record.id).values(expires_at=1.0))
            if name == "revoked":
                revoke_key(store, record.id)
        yield Guarded(api, store, keys)


def send(api: RunningApi, *authorization: str | bytes, path: str = "/v1/jobs") -> httpx2.Response:
    values = [value.encode() if isinstance(value, str) else value for value in authorization]
    with api.client_with(None) as client:
        return client.get(path, headers=[(b"authorization", value) for value in values])


def test_a_valid_key_is_accepted_with_any_spelling_of_its_scheme(guarded: Guarded) -> None:
    for scheme in ("Bearer", "bearer", "BEARER", "Bearer  "):
        assert send(guarded.api, f"{scheme} {guarded.keys['good']}").status_code == 200
    assert send(guarded.api, f"Bearer {KEY}").status_code == 200


BAD: dict[str, tuple[str | bytes, ...]] = {
    "none": (),
    "empty": ("",),
    "a scheme alone": ("Bearer",),
    "no scheme": ("{good}",),
    "another scheme": ("Basic {good}",),
    "unknown": (f"Bearer {UNKNOWN_KEY}",),
    "the secret of another": ("Bearer {mixed}",),
    "wrong in its last character": ("Bearer {altered}",),
    "without its secret": ("Bearer {public}",),
    "more than the key": ("Bearer {good}a",),
    "two words": ("Bearer {good} {good}",),
    "two keys in a header": ("Bearer {good}, Bearer {good}",),
    "two headers": ("Bearer {good}", "Bearer {good}"),
    "a bad one before a good one": ("Bearer no", "Bearer {good}"),
    "expired": ("Bearer {expired}",),
    "revoked": ("Bearer {revoked}",),
    "in capitals": ("Bearer {capitals}",),
    "very long": ("Bearer " + "a" * 20_000,),
    "a long secret": ("Bearer sk_sl_" + "a" * 16 + "_" + "a" * 20_000,),
    "UTF-8": ("Bearer ключ".encode(),),
    "Latin-1": (b"Bearer cl\xe9",),
    "a secret that is not ASCII": (b"Bearer sk_sl_" + b"a" * 16 + b"_" + b"\xe9" * 52,),
    "a tab": ("Bearer {good}\tb",),
    "part of the bootstrap key": ("Bearer " + KEY[:-1],),
    "SQL": ("Bearer sk_sl_' OR 1=1 --_x",),
}


@pytest.mark.parametrize("case", BAD)
def test_all_invalid_credentials_get_the_same_response(guarded: Guarded, case: str) -> None:
    good, other = guarded.keys["good"], guarded.keys["read"]
    names = guarded.keys | {
        "mixed": good[:23] + other[23:],
        "altered": good[:-1] + ("a" if good[-1] != "a" else "b"),
        "public": good[:22],
        "capitals": good.upper(),
    }
    sent = []
    for value in BAD[case]:
        text = value if isinstance(value, bytes) else value.encode()
        for name, key in names.items():
            text = text.replace(f"{{{name}}}".encode(), key.encode())
        sent.append(text)
    response, plain = send(guarded.api, *sent), send(guarded.api)
    assert response.status_code == 401
    assert response.content == plain.content
    assert response.headers["www-authenticate"] == "Bearer"
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")


def test_a_key_in_the_query_string_is_ignored(guarded: Guarded) -> None:
    for name in ("api_key", "key", "access_token", "authorization"):
        assert send(guarded.api, path=f"/v1/jobs?{name}={guarded.keys['good']}").status_code == 401


def test_hashes_of_secrets_are_compared_in_constant_time_even_for_an_unknown_key(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[str, str]] = []
    compare = hmac.compare_digest

    def recorded(one: str, other: str) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", recorded)
    counts = []
    for key in (guarded.keys["good"], "sk_sl_" + "a" * 16 + "_" + "a" * 52, guarded.keys["revoked"]):
        compared.clear()
        send(guarded.api, f"Bearer {key}")
        assert {len(text) for pair in compared for text in pair} == {64}
        assert not any(key.rpartition("_")[2] in pair for pair in compared), "hashes, not secrets"
        counts.append(len(compared))
    assert counts == [2, 2, 2], "once with the bootstrap key, once with the stored key or a stand-in"


def document_of(api: RunningApi) -> dict[str, Any]:
    with api.client_with(None) as client:
        document: dict[str, Any] = client.get("/openapi.json").json()
    return document


def test_every_route_requires_a_key_or_is_listed_as_open(guarded: Guarded) -> None:
    scopes = {(operation.method, operation.path): operation.scope for operation in OPERATIONS}
    document = document_of(guarded.api)
    assert document["components"]["securitySchemes"]["ApiKey"]["scheme"] == "bearer"
    with guarded.api.client_with(None) as client:
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                scope = scopes[method, path]
                secured = scope is not None
                assert operation.get("security") == ([{"ApiKey": [scope]}] if secured else None), (method, path)
                assert secured == ({"401", "403", "429"} <= operation["responses"].keys()), (method, path)
                ids = {"job_id": new_job_id(), "delivery_id": "msg_0", "file_id": "file_0", "batch_id": "batch_0"}
                ids["model_id"] = "tiny"
                answer = client.request(method, path.format(**ids), json={})
                assert (answer.status_code == 401) == secured, (method, path)


@pytest.mark.parametrize("path", ["/", "/livez", "/metrics", "/openapi.json", "/docs", "/docs/swagger-ui.css"])
def test_open_routes_need_no_key_and_ignore_an_invalid_one(guarded: Guarded, path: str) -> None:
    assert send(guarded.api, path=path).status_code == 200
    assert send(guarded.api, "Bearer nonsense", path=path).status_code == 200


def test_metrics_contain_no_tenant_and_no_key(guarded: Guarded) -> None:
    send(guarded.api, f"Bearer {guarded.keys['good']}")
    text = send(guarded.api, path="/metrics").text
    assert "scoreline_" in text
    for word in ("acme", "default", guarded.keys["good"][6:22]):
        assert word not in text


@pytest.mark.parametrize(
    "operation",
    [operation for operation in OPERATIONS if operation.scope is not None],
    ids=lambda operation: f"{operation.method} {operation.path}",
)
def test_each_route_requires_the_scope_that_it_documents(guarded: Guarded, operation: Operation) -> None:
    with guarded.api.client_with(guarded.keys["good"]) as client:
        job_id = client.post("/v1/jobs", json=WEBHOOK_BODY | {"items": []}).json()["id"]
        delivery_id = delivery_of(client, job_id)
    for scope in Scope:
        with (
            guarded.api.client_with(guarded.keys[scope.value]) as client,
            guarded.api.client_with(guarded.keys["good"]) as owner,
        ):
            response = request(guarded.api, operation, job_id, client, delivery_id, owner)
        if scope is operation.scope:
            assert response.status_code == operation.status, response.text
        else:
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (403, "insufficient_scope")
            assert error["type"] == "permission_error"
            assert f"`{operation.scope}`" in error["message"]


def test_a_request_without_a_key_is_refused_before_its_body_is_parsed(guarded: Guarded) -> None:
    with guarded.api.client_with(None) as client:
        for headers in ({}, {"Content-Type": "application/x-ndjson"}):
            assert client.post("/v1/jobs", content=b"{" * 100_000, headers=headers).status_code == 401


def test_many_requests_share_one_look_up_of_their_key(
    model: TinyModel, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def counted(database: Database, key_id: str) -> Any:
        found.append(key_id)
        return find_key(database, key_id)

    monkeypatch.setattr(authentication, "find_key", counted)
    settings: dict[str, Any] = {"with_worker": False, "host": "0.0.0.0", "key_cache_seconds": 1_000.0}
    with running_api(model.directory, sqlite_url, tmp_path, **settings) as (api, _):
        key = _make_key(sqlite_url)
        for _ in range(20):
            assert send(api, f"Bearer {key}").status_code == 200
    assert len(found) == 1


def test_a_revoked_key_stops_working_within_its_time_in_the_cache(
    model: TinyModel, store_url: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"with_worker": False, "host": "0.0.0.0", "key_cache_seconds": 0.2}
    with running_api(model.directory, store_url, tmp_path, **settings) as (api, _):
        key = _make_key(store_url)
        assert send(api, f"Bearer {key}").status_code == 200
        store = Database.open(StoreSettings(database_url=store_url))
        assert revoke_key(store, list_keys(store)[0].id)
        store.close()
        eventually(lambda: send(api, f"Bearer {key}").status_code == 401, "the key is refused")


def test_the_last_use_of_a_key_is_recorded_in_the_background(
    model: TinyModel, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "LAST_USED_RESOLUTION_SECONDS", 0.05)
    with running_api(model.directory, store_url, tmp_path, with_worker=False, host="0.0.0.0") as (api, _):
        key = _make_key(store_url)
        _make_key(store_url)
        assert send(api, f"Bearer {key}").status_code == 200
        store = Database.open(StoreSettings(database_url=store_url))
        eventually(lambda: any(one.last_used_at for one in list_keys(store)), "the use is recorded")
        assert [one.last_used_at is not None for one in list_keys(store)] == [True, False]
        store.close()


def test_a_cached_key_works_without_the_database(
    model: TinyModel, postgres_url: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"with_worker": False, "host": "0.0.0.0", "key_cache_seconds": 1_000.0}
    with running_api(model.directory, postgres_url, tmp_path, **settings) as (api, _):
        known, unknown = (_make_key(postgres_url) for _ in range(2))

        def tokenize(key: str) -> httpx2.Response:
            with api.client_with(key) as client:
                return client.post("/v1/tokenize", json={"text": "a"})

        assert tokenize(known).status_code == 200
        postgres.stop()
        try:
            assert tokenize(known).status_code == 200
            assert tokenize(KEY).status_code == 200, "the bootstrap key needs no database"
            refused = tokenize(unknown)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_unavailable")
            assert int(refused.headers["retry-after"]) >= 1
            assert tokenize("malformed").status_code == 401
        finally:
            postgres.start()
        assert tokenize(unknown).status_code == 200


def _make_key(url: str) -> str:
    store = Database.open(StoreSettings(database_url=url))
    try:
        return create_key(store, "acme", "made here", ALL)[0]
    finally:
        store.close()


def test_look_ups_of_invented_keys_leave_threads_for_callers_with_a_cached_key(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert send(guarded.api, f"Bearer {guarded.keys['good']}").status_code == 200
    held, waiting = threading.Event(), threading.Semaphore(0)

    def slow(database: Database, key_id: str) -> Any:
        if key_id.startswith("stranger"):
            waiting.release()
            held.wait(DEADLINE_SECONDS)
        return find_key(database, key_id)

    monkeypatch.setattr(authentication, "find_key", slow)
    made_up = [f"Bearer sk_sl_stranger{letter * 8}_{'a' * 52}" for letter in "abcdefghijklmnopqrstuvwx"]
    with ThreadPoolExecutor(len(made_up)) as pool:
        refused = [pool.submit(send, guarded.api, key) for key in made_up]
        try:
            assert all(waiting.acquire(timeout=DEADLINE_SECONDS) for _ in range(authentication.UNKNOWN_KEY_LOOKUPS))
            assert send(guarded.api, f"Bearer {guarded.keys['good']}").status_code == 200
            assert not waiting.acquire(blocking=False), "no further key is looked up at the same time"
        finally:
            held.set()
        assert {one.result().status_code for one in refused} == {401}
