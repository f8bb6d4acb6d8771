"""Uploads that succeed, stall, are slow, fail, or are ended from outside."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPResponse
from pathlib import Path

import pytest

from api.answers.schemas.jobs import Job
from api.models import loading
from api.models.catalogue import Entry
from jobs.store.tables import chunks
from scoring.served_model import ServedModel
from tests.api.models.listing import Listing, described
from tests.api.requests.uploads.uploading import (
    FIRST,
    GOOD,
    GZIP,
    JOB,
    KEY,
    LINES,
    HeldUpload,
    body,
    connect,
    error,
    nothing_is_left,
    receiving,
    rows_of,
    send,
)
from tests.api.serving import RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel
from tests.databases import ON_BOTH, quick_on

Fresh = tuple[RunningApi, StandInWorker]


@pytest.mark.usefixtures("small_steps")
@ON_BOTH
def test_an_upload_is_scored_like_the_same_job_in_one_body(fresh: Fresh, model: TinyModel) -> None:
    api, _ = fresh
    items = [f" number {n} is é" for n in range(50)] + [""]
    job = JOB | {"metadata": {"run": "7"}, "priority": "bulk", "return_logprobs": True, "colour": "blue"}
    response = send(api, body(items, job))
    assert response.status_code == 202, response.text
    Job.model_validate(response.json(), strict=True)
    assert response.headers["location"] == f"/v1/jobs/{response.json()['id']}"
    assert response.headers["retry-after"] == "1"
    uploaded, submitted = (api.wait(found["id"]) for found in (response.json(), api.submit(**job, items=items)))
    assert uploaded["result"]["scores"] == submitted["result"]["scores"]
    for name in ("status", "usage", "metadata", "priority", "warnings", "progress"):
        assert uploaded[name] == submitted[name], name
    assert uploaded["result"]["scores"] == pytest.approx(model.text_scores(JOB["query"], items, [70, 71]))


@quick_on("postgres")
@pytest.mark.usefixtures("small_steps")
def test_an_upload_whose_client_disconnects_leaves_nothing_behind(fresh: Fresh) -> None:
    api, _ = fresh
    with closing(connect(api, {"Content-Length": "100000", **KEY})) as connection:
        connection.sendall(body(["a"] * 600))
        eventually(lambda: rows_of(api, chunks), "chunks are staged")
    eventually(lambda: nothing_is_left(api), "the upload is removed")


@quick_on("sqlite")
def test_an_upload_whose_client_stalls_is_given_up(model: TinyModel, store_url: str, tmp_path: Path) -> None:
    with running_api(
        model.directory, store_url, tmp_path, with_worker=False, upload_timeout_seconds=0.6, sweep_seconds=3600.0
    ) as (api, _):
        for sent in (b"", FIRST, body(["a"] * 600)):
            with closing(connect(api, {"Content-Length": "100000"})) as connection:
                connection.sendall(sent)
                answer = HTTPResponse(connection)
                answer.begin()
                assert answer.status == 408
                assert b"nothing came for 0.6 s" in answer.read()
            assert nothing_is_left(api)


@quick_on("sqlite")
def test_a_slow_upload_is_not_given_up(model: TinyModel, store_url: str, tmp_path: Path) -> None:
    """The client sends ten bytes at a time for longer than the timeout, while sweeps run."""
    with running_api(
        model.directory, store_url, tmp_path, with_worker=False, upload_timeout_seconds=0.8, sweep_seconds=0.1
    ) as (api, _):
        seen: list[int] = []

        def trickle() -> Iterator[bytes]:
            content = body(["a"] * 10)
            pause = threading.Event()
            for start in range(0, len(content), 10):
                yield content[start : start + 10]
                seen.extend(job["progress"]["total_items"] for job in receiving(api))
                pause.wait(0.2)

        response = send(api, trickle())
        assert (response.status_code, response.json()["progress"]["total_items"]) == (202, 10), response.text
        assert set(seen) == {0}


@quick_on("sqlite")
def test_the_timeout_applies_to_each_pause_of_an_upload_by_itself(
    model: TinyModel, store_url: str, tmp_path: Path
) -> None:
    """Two pauses exceed the timeout together; the bytes between them come too soon for a heartbeat."""
    with running_api(
        model.directory, store_url, tmp_path, with_worker=False, upload_timeout_seconds=4.0, sweep_seconds=0.1
    ) as (api, _):

        def pausing() -> Iterator[bytes]:
            for seconds in (0.9, 3.5):
                yield body(["a"]) if seconds < 1 else b'"b"\n'
                threading.Event().wait(seconds)
            yield b'"c"\n'

        response = send(api, pausing())
        assert response.status_code == 202, response.text


def test_stalled_uploads_occupy_no_thread_and_no_connection(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    """There are more stalled uploads than threads or connections, and other requests are still served."""
    with running_api(model.directory, sqlite_url, tmp_path, max_open_uploads_per_tenant=40) as (api, _):
        connections = [connect(api, {"Content-Length": "100000"}) for _ in range(40)]
        for connection in connections:
            connection.sendall(body(["a"] * 5))
        eventually(lambda: rows_of(api) == 40, "all uploads are being received")
        assert len(api.score(**JOB, items=["b"])["scores"]) == 1
        assert len(receiving(api)) == 20
        for connection in connections:
            connection.close()
        eventually(lambda: rows_of(api) == 1, "all uploads are removed")


@pytest.mark.parametrize(
    ("end", "status", "code"), [("cancel", 409, "job_cancelled"), ("delete", 404, "job_not_found")]
)
def test_cancelling_or_deleting_a_job_ends_its_upload(fresh: Fresh, end: str, status: int, code: str) -> None:
    api, _ = fresh
    held = HeldUpload(api, [body(["a"] * 5), b'"b"\n' * 100], LINES | KEY)
    assert held.job["status"] == "receiving"
    assert api.client.get(f"/v1/jobs/{held.job['id']}").json()["status"] == "receiving"
    assert error(api.client.get(held.job["urls"]["scores"], headers={"Accept": LINES["Content-Type"]}))[1] == (
        "job_not_finished"
    )
    if end == "cancel":
        assert api.client.post(held.job["urls"]["cancel"]).json()["status"] == "cancelled"
    else:
        assert api.client.delete(held.job["urls"]["self"]).status_code == 200
    assert error(held.finish())[:2] == (status, code)
    assert send(api, body(["a"]), LINES | KEY).status_code == 202


def test_the_expiry_of_a_job_ends_its_upload(fresh: Fresh) -> None:
    api, _ = fresh
    held = HeldUpload(api, [body(["a"] * 5, JOB | {"expires_in": 0.5}), b'"b"\n'])
    assert api.wait(held.job["id"])["status"] == "expired"
    assert error(held.finish())[:2] == (409, "job_failed")


def test_an_idempotency_key_is_in_use_during_its_upload(fresh: Fresh) -> None:
    api, _ = fresh
    held = HeldUpload(api, [body(["a"] * 5), b'"b"\n'], LINES | KEY)
    whole = body([*["a"] * 5, "b"])
    for response in (
        send(api, whole, LINES | KEY),
        api.client.post("/v1/jobs", json=JOB | {"items": ["a"]}, headers=KEY),
        api.client.post("/v1/score", json=JOB | {"items": ["a"]}, headers=KEY),
    ):
        assert error(response)[:2] == (409, "idempotency_in_progress")
        assert int(response.headers["retry-after"]) > 0
    first = held.finish()
    assert first.status_code == 202, first.text
    for headers, content in ((LINES, whole), (GZIP, gzip.compress(whole))):
        again = send(api, content, headers | KEY)
        assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
        assert again.headers["idempotency-replayed"] == "true"
    for other in (body(["a"] * 5), whole + b"\n", body(["b", *["a"] * 5])):
        assert error(send(api, other, LINES | KEY))[:2] == (422, "idempotency_key_reused")
    assert error(api.client.post("/v1/jobs", json=JOB | {"items": ["a"]}, headers=KEY))[1] == "idempotency_key_reused"
    assert rows_of(api) == 1


def test_a_failed_upload_does_not_use_up_its_key(fresh: Fresh) -> None:
    api, _ = fresh
    assert error(send(api, body(["a", 5]), LINES | KEY))[0] == 400
    assert send(api, body(["a"]), LINES | KEY).status_code == 202


def test_a_client_that_keeps_sending_after_an_error_gets_its_answer_and_is_disconnected(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client need not send gigabytes to learn of an error in its second line."""
    monkeypatch.setattr("api.server.connection.DRAIN_SECONDS", 0.5)
    pieces = 0

    def content() -> Iterator[bytes]:
        nonlocal pieces
        yield FIRST + b"5\n"
        while pieces < 1_000_000:
            pieces += 1
            yield GOOD * 1_000

    response = send(api, content())
    assert error(response)[:3] == (400, "invalid_request", "items[0]")
    assert pieces < 1_000_000


def test_a_client_that_finishes_sending_after_an_error_gets_its_answer(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.server.connection.DRAIN_SECONDS", 1.0)
    with closing(connect(api, {"Content-Length": str(2**24)})) as connection:
        connection.sendall(FIRST + b"5\n" * 2_000)
        connection.recv(1, socket.MSG_PEEK)
        connection.sendall(b"5\n" * 2**21)
        answer = b""
        while received := connection.recv(4096):
            answer += received
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"line 2: items[0]" in answer


def test_an_upload_is_read_with_the_version_that_its_model_gets_while_it_is_loaded(
    on_sqlite: Fresh, model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, _ = on_sqlite
    load, loaded = loading.load_listed, list[int | None]()
    with closing(Listing(api)) as listing:

        def load_and_change(entry: Entry) -> ServedModel:
            found = load(entry)
            loaded.append(entry.card.version)
            if len(loaded) == 1:
                listing.put(described("changing", model.directory, max_labels=100))
            return found

        monkeypatch.setattr(loading, "load_listed", load_and_change)
        (first,) = listing.put(described("changing", model.directory))
        response = send(api, body(["a"], JOB | {"model": "changing"}).rstrip())
        assert response.status_code == 202, response.text
        assert loaded == [first.version, first.version + 1]
