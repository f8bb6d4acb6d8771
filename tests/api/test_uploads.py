"""Large jobs as JSON lines: the same as the JSON body would give, or a clear error and nothing left behind."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from sqlalchemy import func, select

from api import lines, upload, upload_reader
from api.schemas import Job
from jobs.database import Database
from jobs.tables import chunks, idempotency_keys, jobs
from scoring.prepare import Preparation
from tests.api.serving import RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import CONTEXT, TinyModel

Fresh = tuple[RunningApi, StandInWorker]

JOB: dict[str, Any] = {"query": "The capital of", "label_token_ids": [70, 71]}
LINES = {"Content-Type": "application/x-ndjson"}
GZIP = LINES | {"Content-Encoding": "gzip"}
KEY = {"Idempotency-Key": "8e03978e-40d5-43dd-bc93-6894a57f9324"}


def body(items: Iterable[object], job: dict[str, Any] = JOB) -> bytes:
    return b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in (job, *items))


def send(api: RunningApi, content: bytes | Iterator[bytes], headers: dict[str, str] = LINES) -> httpx2.Response:
    return api.client.post("/v1/jobs", content=content, headers=headers)


def error(response: httpx2.Response) -> tuple[int, str, str | None, str]:
    found = response.json()["error"]
    return response.status_code, found["code"], found["param"], found["message"]


def rows_of(api: RunningApi, table: Any = jobs) -> int:
    database = Database.open(api.store)
    with closing(database), database.read() as connection:
        return int(connection.scalar(select(func.count()).select_from(table)) or 0)


def nothing_is_left(api: RunningApi) -> bool:
    return [rows_of(api, table) for table in (jobs, chunks, idempotency_keys)] == [0, 0, 0]


def receiving(api: RunningApi) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = api.client.get("/v1/jobs", params={"status": "receiving"}).json()["data"]
    return listed


class HeldUpload:
    """An upload of which the rest is sent when it is told to."""

    def __init__(self, api: RunningApi, pieces: Sequence[bytes], headers: dict[str, str] = LINES) -> None:
        self.go_on = threading.Event()

        def content() -> Iterator[bytes]:
            yield pieces[0]
            self.go_on.wait(20)
            yield from pieces[1:]

        self._pool = ThreadPoolExecutor(1)
        self._answer = self._pool.submit(send, api, content(), headers)
        eventually(lambda: receiving(api), "the upload begins")
        (self.job,) = receiving(api)

    def finish(self) -> httpx2.Response:
        self.go_on.set()
        with self._pool:
            return self._answer.result(20)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bound is met by a few items."""
    monkeypatch.setattr(lines, "STEP_BYTES", 7)
    monkeypatch.setattr(upload_reader, "BATCH_ITEMS", 4)
    monkeypatch.setattr(upload, "STAGE_CHUNKS", 2)


@pytest.mark.usefixtures("small_steps")
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


def packed_in_members(data: bytes) -> bytes:
    """As `cat a.gz b.gz` gives."""
    return gzip.compress(data[:30]) + gzip.compress(b"") + gzip.compress(data[30:])


@pytest.mark.parametrize("pack", [gzip.compress, packed_in_members], ids=["one member", "several members"])
@pytest.mark.parametrize("step", [7, 2**18])
def test_gzip_is_unpacked(api: RunningApi, monkeypatch: pytest.MonkeyPatch, pack: Any, step: int) -> None:
    monkeypatch.setattr(lines, "STEP_BYTES", step)
    items = ["a" * 100, *map(str, range(100))]
    response = send(api, pack(body(items)), GZIP)
    assert response.status_code == 202, response.text
    scores = api.wait(response.json()["id"])["result"]["scores"]
    assert scores == api.wait(api.submit(**JOB, items=items)["id"])["result"]["scores"]


def test_items_may_be_token_ids(api: RunningApi, model: TinyModel) -> None:
    job = JOB | {"query": [5, 6, 7]}
    response = send(api, body([[8], [], [9, 10]], job))
    scores = api.wait(response.json()["id"])["result"]["scores"]
    assert scores == pytest.approx(model.scores([[5, 6, 7, 8], [5, 6, 7], [5, 6, 7, 9, 10]], [70, 71]))


@pytest.mark.parametrize(
    "content",
    [
        b"\n \n" + body(["a", "b"]).replace(b"\n", b"\n\n\t\n"),
        body(["a", "b"]).replace(b"\n", b"\r\n"),
        body(["a", "b"]).removesuffix(b"\n"),
    ],
    ids=["blank lines", "carriage returns", "no end of the last line"],
)
def test_blank_lines_and_ends_of_lines_do_not_matter(api: RunningApi, content: bytes) -> None:
    response = send(api, content)
    assert response.status_code == 202, response.text
    scores = api.wait(response.json()["id"])["result"]["scores"]
    assert scores == api.wait(api.submit(**JOB, items=["a", "b"])["id"])["result"]["scores"]


@pytest.mark.parametrize("content", [body([]), body([]).removesuffix(b"\n")])
def test_an_upload_without_items_has_succeeded(api: RunningApi, content: bytes) -> None:
    response = send(api, content)
    assert (response.status_code, response.json()["status"]) == (202, "succeeded")


FIRST = json.dumps(JOB).encode() + b"\n"
GOOD = b'"good"\n' * 9
LONG = json.dumps("word " * CONTEXT).encode()


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    ("content", "status", "code", "param", "line"),
    [
        (b"", 400, "invalid_json", None, "empty"),
        (b"\n\n", 400, "invalid_json", None, "empty"),
        (b"{\n" + GOOD, 400, "invalid_json", None, "line 1"),
        (b"[]\n" + GOOD, 400, "invalid_request", None, "line 1"),
        (b'{"label_token_ids": [70]}\n' + GOOD, 400, "missing_query", "query", "line 1"),
        (b'{"query": "q", "label_token_ids": [999]}\n', 400, "token_id_exceeds_vocab", "label_token_ids[0]", "line 1"),
        (b'{"query": "q", "items": [], "label_token_ids": [7]}\n', 400, "invalid_request", "items", "line 1"),
        (b'{"query": "q", "label_token_ids": [7], "model": "x"}\n', 404, "model_not_found", "model", "line 1"),
        (FIRST + GOOD + b"good\n" + GOOD, 400, "invalid_json", "items[9]", "line 11"),
        (FIRST + GOOD + b"\n\n" + b'"a", "b"\n', 400, "invalid_json", "items[9]", "line 13"),
        (FIRST + GOOD + b'"\xff"\n', 400, "invalid_json", "items[9]", "line 11"),
        (FIRST + GOOD + b"NaN\n", 400, "invalid_request", "items[9]", "line 11"),
        (FIRST + GOOD + b"[" * 100 + b"\n", 400, "invalid_json", "items[9]", "line 11"),
        (FIRST + GOOD + b"[" * 70 + b"]" * 70 + b"\n", 400, "invalid_request", "items[9]", "line 11"),
        (FIRST + GOOD + b'"\\ud800"\n', 400, "invalid_request", "items[9]", "items[9]"),
        (FIRST + GOOD + b"5\n", 400, "invalid_request", "items[9]", "line 11"),
        (FIRST + GOOD + b'{"a": 1}\n' + GOOD, 400, "invalid_request", "items[9]", "line 11"),
        (FIRST + GOOD + b"null", 400, "invalid_request", "items[9]", "line 11"),
        (FIRST + GOOD + b"[1, 2]\n", 400, "mixed_input_types", "items[9]", "line 11"),
        (FIRST + GOOD + b"[1, true]\n", 400, "invalid_request", "items[9][1]", "line 11"),
        (FIRST + GOOD + b"\n" + LONG + b"\n", 400, "context_length_exceeded", "items[9]", "line 12"),
        (
            body([[5]] * 9 + [[5, 400]], JOB | {"query": [5]}),
            400,
            "token_id_exceeds_vocab",
            "items[9][1]",
            "line 11",
        ),
        (body([[5]] * 9 + [[-1]], JOB | {"query": [5]}), 400, "negative_token_id", "items[9][0]", "line 11"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_leaves_nothing(
    api: RunningApi, content: bytes, status: int, code: str, param: str | None, line: str
) -> None:
    before = rows_of(api), rows_of(api, chunks)
    for response in (send(api, content), send(api, gzip.compress(content), GZIP)):
        assert error(response)[:3] == (status, code, param), response.text
        assert line in error(response)[3]
        assert (rows_of(api), rows_of(api, chunks)) == before


def test_a_single_error_is_the_one_that_the_json_body_would_get(api: RunningApi) -> None:
    for item in ("word " * CONTEXT, [1], 5, None, {"a": 1}, [1.5]):
        items = ["good"] * 9 + [item]
        of_json = error(api.client.post("/v1/jobs", json=JOB | {"items": items}))
        of_lines = error(send(api, body(items)))
        assert of_lines == (*of_json[:3], f"line 11: {of_json[3]}")


@pytest.mark.parametrize(("item_first", "most"), [(False, 20), (True, 3)])
def test_a_batch_is_bounded_in_bytes_and_a_query_that_is_not_shared_counts_each_time(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch, item_first: bool, most: int
) -> None:
    sizes: list[int] = []
    add = Preparation.add

    def counting(self: Preparation, items: Any) -> Any:
        sizes.append(len(items))
        return add(self, items)

    monkeypatch.setattr(Preparation, "add", counting)
    monkeypatch.setattr(upload_reader, "BATCH_BYTES", 1_000)
    job = JOB | {"query": "a" * 300, "item_first": item_first}
    response = send(api, body(["b" * 50] * 40, job))
    assert response.status_code == 202, response.text
    assert sum(sizes) == 40
    assert max(sizes) == most


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(body(["a"] * 100))[:-9], "cut off"),
        (gzip.compress(body(["a"])) + gzip.compress(body([]))[:5], "cut off"),
        (b"", "cut off"),
        (body(["a"]), "not valid gzip"),
        (gzip.compress(body(["a"])) + b"rest", "not valid gzip"),
        (zlib.compress(body(["a"])), "not valid gzip"),
        (gzip.compress(body(["a"]))[:-8] + bytes(8), "not valid gzip"),
    ],
    ids=["truncated", "second member truncated", "nothing", "plain", "something behind it", "zlib", "wrong checksum"],
)
def test_broken_gzip_is_refused(fresh: Fresh, content: bytes, message: str) -> None:
    api, _ = fresh
    assert error(send(api, content, GZIP | KEY))[:3] == (400, "invalid_request", None)
    assert message in error(send(api, content, GZIP))[3]
    assert nothing_is_left(api)


def test_other_encodings_and_charsets_are_refused(api: RunningApi) -> None:
    for headers in (LINES | {"Content-Encoding": "br"}, {"Content-Type": "application/x-ndjson; charset=latin-1"}):
        assert error(send(api, body(["a"]), headers))[:2] == (415, "unsupported_media_type")


LIMITS: dict[str, Any] = {"max_upload_bytes": 100_000, "max_line_bytes": 10_000, "max_items_per_upload": 20}


def test_what_is_larger_than_the_limits_is_refused(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **LIMITS) as (api, _):
        assert send(api, body(["a"] * 20)).status_code == 202
        too_many = error(send(api, body(["a"] * 21)))
        assert too_many == (413, "request_too_large", "items", "more than the 20 items allowed here")
        status, code, _, message = error(send(api, body(["a", "b" * 10_000])))
        assert (status, code) == (413, "request_too_large")
        assert "line 3" in message
        assert error(send(api, body([" " * 100] * 1_000)))[:2] == (413, "request_too_large")
        assert error(send(api, iter([body([]), *[b"\n" * 1_000] * 101])))[:2] == (413, "request_too_large")
        assert rows_of(api) == 1


@pytest.mark.parametrize("bomb", [b"\n" * 2**26, b'"' + b"a" * 2**26], ids=["of blank lines", "of one line"])
def test_a_small_body_that_unpacks_to_a_large_one_is_stopped_at_the_limit(
    model: TinyModel, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bomb: bytes
) -> None:
    unpacked = 0
    decompressobj = zlib.decompressobj

    class Counting:
        """What is unpacked, counted, and never more in a step than the bound."""

        def __init__(self, *arguments: Any) -> None:
            self._inner = decompressobj(*arguments)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal unpacked
            found = self._inner.decompress(data, most)
            assert len(found) <= most == lines.STEP_BYTES
            unpacked += len(found)
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    content = gzip.compress(FIRST + bomb)
    assert len(content) < 100_000
    monkeypatch.setattr("api.lines.zlib.decompressobj", Counting)
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **LIMITS) as (api, _):
        assert error(send(api, content, GZIP))[:2] == (413, "request_too_large")
        assert nothing_is_left(api)
    assert 0 < unpacked <= 100_000 + lines.STEP_BYTES


def test_a_body_that_says_it_is_too_large_is_refused_unread(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    with (
        running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **LIMITS) as (api, _),
        closing(connect(api, {"Content-Length": "100001"})) as connection,
    ):
        assert b"request_too_large" in connection.recv(4096)


def connect(api: RunningApi, headers: dict[str, str]) -> socket.socket:
    """A connection on which the head of an upload was sent."""
    address = urlsplit(api.url)
    connection = socket.create_connection((address.hostname, address.port), timeout=20)
    head = "".join(f"{name}: {value}\r\n" for name, value in {"Host": address.netloc, **LINES, **headers}.items())
    connection.sendall(f"POST /v1/jobs HTTP/1.1\r\n{head}\r\n".encode())
    return connection


@pytest.mark.usefixtures("small_steps")
def test_a_client_that_hangs_up_in_the_middle_leaves_nothing(fresh: Fresh) -> None:
    api, _ = fresh
    with closing(connect(api, {"Content-Length": "100000", **KEY})) as connection:
        connection.sendall(body(["a"] * 600))
        eventually(lambda: rows_of(api, chunks), "something is staged")
    eventually(lambda: nothing_is_left(api), "the upload is removed")


def test_a_client_that_stalls_is_given_up(model: TinyModel, store_url: str, tmp_path: Path) -> None:
    with running_api(
        model.directory, store_url, tmp_path, with_worker=False, upload_timeout_seconds=0.6, sweep_seconds=3600.0
    ) as (api, _):
        for sent in (b"", FIRST, body(["a"] * 600)):
            with closing(connect(api, {"Content-Length": "100000"})) as connection:
                connection.sendall(sent)
                answer = connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 504")
            assert b"nothing came for 0.6 s" in answer
            assert nothing_is_left(api)


def test_a_client_that_is_slow_is_not_given_up(model: TinyModel, store_url: str, tmp_path: Path) -> None:
    """Ten bytes at a time, for longer than the timeout, with sweeps all the while."""
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


def test_a_pause_in_which_nothing_comes_counts_for_itself(model: TinyModel, store_url: str, tmp_path: Path) -> None:
    """Two pauses that are longer than the timeout together, too close for bytes between them to be a sign of life."""
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


def test_waiting_for_bytes_holds_no_thread_and_no_connection(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    """More stalled uploads than there are threads or connections, and everything else is still served."""
    with running_api(model.directory, sqlite_url, tmp_path) as (api, _):
        connections = [connect(api, {"Content-Length": "100000"}) for _ in range(40)]
        for connection in connections:
            connection.sendall(body(["a"] * 5))
        eventually(lambda: rows_of(api) == 40, "they are all being received")
        assert len(api.score(**JOB, items=["b"])["scores"]) == 1
        assert len(receiving(api)) == 20
        for connection in connections:
            connection.close()
        eventually(lambda: rows_of(api) == 1, "they are all removed")


@pytest.mark.parametrize(
    ("end", "status", "code"), [("cancel", 409, "job_cancelled"), ("delete", 404, "job_not_found")]
)
def test_a_job_that_is_ended_while_it_comes_ends_its_upload(fresh: Fresh, end: str, status: int, code: str) -> None:
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


def test_a_deadline_may_end_an_upload(fresh: Fresh) -> None:
    api, _ = fresh
    held = HeldUpload(api, [body(["a"] * 5, JOB | {"expires_in": 0.1}), b'"b"\n'])
    assert api.wait(held.job["id"])["status"] == "expired"
    assert error(held.finish())[:2] == (409, "job_failed")


def test_a_key_is_in_use_while_its_upload_comes(fresh: Fresh) -> None:
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


def test_a_client_that_sends_on_after_an_error_is_answered_and_cut_off(api: RunningApi) -> None:
    """It need not send gigabytes to learn of an error in its second line."""
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


def test_a_client_that_sends_on_for_a_moment_still_gets_its_answer(api: RunningApi) -> None:
    with closing(connect(api, {"Content-Length": str(2**24)})) as connection:
        connection.sendall(FIRST + b"5\n" * 2_000)
        connection.recv(1, socket.MSG_PEEK)
        connection.sendall(b"5\n" * 2**21)
        answer = b""
        while received := connection.recv(4096):
            answer += received
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"line 2: items[0]" in answer


def test_the_documented_example_works(api: RunningApi) -> None:
    document = api.client.get("/openapi.json").json()
    content = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/x-ndjson"]
    response = send(api, content["example"].encode())
    assert response.json()["progress"]["total_items"] == 2, response.text
