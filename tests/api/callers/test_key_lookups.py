"""Looking up keys: shared by requests, cached for a while, and bounded for keys that nobody has made."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from api import background
from api.callers import authentication
from jobs.files.tables import files
from jobs.store.database import Database
from jobs.store.identifiers import new_file_id
from jobs.tenancy.keys import Scope, create_key, find_key, list_keys, revoke_key
from jobs.tenancy.tenants import suspend_tenant
from settings.store import StoreSettings
from tests.api.callers.guarded import Guarded, send
from tests.api.every_route import BODY
from tests.api.requests.raw_requests import JSON, begin
from tests.api.requests.test_bodies import FORM
from tests.api.requests.uploads.uploading import LINES, rows_of
from tests.api.requests.uploads.uploading import body as lines
from tests.api.serving import DEADLINE_SECONDS, KEY, eventually, running_api
from tests.api.tiny_model import TinyModel
from tests.databases import ON_BOTH
from tests.services import PostgresServer


def _make_key(url: str) -> str:
    store = Database.open(StoreSettings(database_url=url))
    try:
        return create_key(store, "acme", "made here", list(Scope))[0]
    finally:
        store.close()


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


def test_a_key_that_is_revoked_while_a_body_comes_stores_nothing(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    batch = {"input_file_id": new_file_id(), "endpoint": "/v1/score", "completion_window": "24h"}
    requests = [
        ("/v1/jobs", JSON, json.dumps(BODY).encode()),
        ("/v1/jobs/sets", JSON, json.dumps({"jobs": [BODY]}).encode()),
        ("/v1/score", JSON, json.dumps(BODY).encode()),
        ("/v1/batches", JSON, json.dumps(batch).encode()),
        ("/v1/jobs", LINES, lines(["a", "b"])),
        ("/v1/files", {"Content-Type": "multipart/form-data; boundary=x"}, FORM),
    ]
    with running_api(model.directory, sqlite_url, tmp_path, host="0.0.0.0", key_cache_seconds=0.2) as (api, _):
        key = _make_key(sqlite_url)
        with ExitStack() as stack:
            begun = [
                stack.enter_context(
                    closing(begin(api, f"POST {path}", {**kind, "Content-Length": str(len(sent))}, sent[:-3], key))
                )
                for path, kind, sent in requests
            ]
            with closing(Database.open(api.store)) as store:
                eventually(lambda: rows_of(api) + rows_of(api, files) == 2, "the uploads are being stored")
                revoke_key(store, list_keys(store)[0].id)
            eventually(lambda: send(api, f"Bearer {key}").status_code == 401, "the key is refused")
            for one, (path, _, sent) in zip(begun, requests, strict=True):
                one.send(sent[-3:])
                assert one.answer().code == "invalid_api_key", path
        assert (rows_of(api), rows_of(api, files)) == (0, 0)


def test_a_suspended_tenant_is_refused_until_it_is_resumed(model: TinyModel, store_url: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"with_worker": False, "host": "0.0.0.0", "key_cache_seconds": 0.2}
    with running_api(model.directory, store_url, tmp_path, **settings) as (api, _):
        key = _make_key(store_url)
        with closing(Database.open(StoreSettings(database_url=store_url))) as store:
            tenant = list_keys(store)[0].tenant
            assert send(api, f"Bearer {key}").status_code == 200
            suspend_tenant(store, tenant)
            eventually(lambda: send(api, f"Bearer {key}").status_code == 403, "the tenant is refused")
            error = send(api, f"Bearer {key}").json()["error"]
            assert (error["code"], "suspended" in error["message"]) == ("insufficient_scope", True)
            suspend_tenant(store, tenant, suspended=False)
            eventually(lambda: send(api, f"Bearer {key}").status_code == 200, "the tenant is served again")


@ON_BOTH
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
