"""The bodies of uploads: valid ones give the same as a JSON body, invalid ones a clear error and no job."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from api.requests.bodies.json_body import MAX_CONTAINERS
from api.requests.uploads import lines, upload_reader
from api.requests.uploads.upload_reader import UploadReader
from jobs.store.tables import chunks
from scoring.chunk import Chunk
from scoring.prepare import Preparation
from tests.api.requests.uploads.uploading import (
    FIRST,
    GOOD,
    GZIP,
    JOB,
    KEY,
    LINES,
    LONG,
    body,
    connect,
    error,
    nothing_is_left,
    rows_of,
    send,
)
from tests.api.serving import RunningApi, StandInWorker, running_api
from tests.api.tiny_model import CONTEXT, TinyModel
from tests.databases import quick_on

Fresh = tuple[RunningApi, StandInWorker]


def compress_in_members(data: bytes) -> bytes:
    """Return a gzip file of several members, as `cat a.gz b.gz` does."""
    return gzip.compress(data[:30]) + gzip.compress(b"") + gzip.compress(data[30:])


@pytest.mark.parametrize("compress", [gzip.compress, compress_in_members], ids=["one member", "several members"])
@pytest.mark.parametrize("step", [7, 2**18])
def test_a_gzip_body_is_decompressed(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch, compress: Any, step: int
) -> None:
    monkeypatch.setattr(lines, "STEP_BYTES", step)
    items = ["a" * 100, *map(str, range(100))]
    response = send(api, compress(body(items)), GZIP)
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
def test_blank_lines_and_the_kind_of_line_ends_do_not_matter(api: RunningApi, content: bytes) -> None:
    response = send(api, content)
    assert response.status_code == 202, response.text
    scores = api.wait(response.json()["id"])["result"]["scores"]
    assert scores == api.wait(api.submit(**JOB, items=["a", "b"])["id"])["result"]["scores"]


@pytest.mark.parametrize("content", [body([]), body([]).removesuffix(b"\n")])
def test_an_upload_without_items_succeeds_at_once(api: RunningApi, content: bytes) -> None:
    response = send(api, content)
    assert (response.status_code, response.json()["status"]) == (202, "succeeded")


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
def test_an_error_names_its_line_and_leaves_no_job_behind(
    api: RunningApi, content: bytes, status: int, code: str, param: str | None, line: str
) -> None:
    before = rows_of(api), rows_of(api, chunks)
    for response in (send(api, content), send(api, gzip.compress(content), GZIP)):
        assert error(response)[:3] == (status, code, param), response.text
        assert line in error(response)[3]
        assert (rows_of(api), rows_of(api, chunks)) == before


@pytest.mark.parametrize(
    ("content", "param", "line"),
    [
        (b'{"query": "q", "label_token_ids": [7], "unknown": [%b0]}\n', None, "line 1"),
        (FIRST + b"[%b0]\n", "items[0]", "line 2"),
    ],
    ids=["first line", "item"],
)
def test_a_line_of_very_many_lists_is_refused(api: RunningApi, content: bytes, param: str | None, line: str) -> None:
    refused = error(send(api, content % (b"[]," * MAX_CONTAINERS)))
    assert refused[:3] == (400, "invalid_request", param)
    assert line in refused[3]
    assert "lists and objects" in refused[3]


def test_an_invalid_item_gets_the_same_error_in_an_upload_as_in_a_json_body(api: RunningApi) -> None:
    for item in ("word " * CONTEXT, [1], 5, None, {"a": 1}, [1.5]):
        items = ["good"] * 9 + [item]
        of_json = error(api.client.post("/v1/jobs", json=JOB | {"items": items}))
        of_lines = error(send(api, body(items)))
        assert of_lines == (*of_json[:3], f"line 11: {of_json[3]}")


@pytest.mark.parametrize(
    ("query", "item_first", "most"),
    [("a " * 150, False, 19), ("a" * 300, False, 3), ("a " * 150, True, 3)],
    ids=["query that is cut", "query of one word", "item first"],
)
def test_the_bytes_of_a_batch_are_bounded_including_a_query_repeated_in_each_item(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch, query: str, item_first: bool, most: int
) -> None:
    sizes: list[int] = []
    add, feed = Preparation.add, UploadReader.feed

    def one_batch_in_a_step(self: UploadReader, data: bytes) -> Iterator[list[Chunk]]:
        before = len(sizes)
        for step in feed(self, data):
            assert len(sizes) <= before + 1
            before = len(sizes)
            yield step

    def counting(self: Preparation, items: Any) -> Any:
        sizes.append(len(items))
        return add(self, items)

    monkeypatch.setattr(Preparation, "add", counting)
    monkeypatch.setattr(UploadReader, "feed", one_batch_in_a_step)
    monkeypatch.setattr(upload_reader, "BATCH_BYTES", 1_000)
    job = JOB | {"query": query, "item_first": item_first}
    response = send(api, body(["b" * 50] * 40, job))
    assert response.status_code == 202, response.text
    assert sum(sizes) == 40
    assert max(sizes) == most


@quick_on("sqlite")
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


def test_an_upload_above_the_limits_is_refused(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
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
def test_a_gzip_bomb_is_decompressed_only_up_to_the_limit(
    model: TinyModel, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bomb: bytes
) -> None:
    decompressed = 0
    decompressobj = zlib.decompressobj

    class Counting:
        """Counts the decompressed bytes, and checks the limit of each step."""

        def __init__(self, *arguments: Any) -> None:
            self._inner = decompressobj(*arguments)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal decompressed
            found = self._inner.decompress(data, most)
            assert len(found) <= most == lines.STEP_BYTES
            decompressed += len(found)
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    content = gzip.compress(FIRST + bomb)
    assert len(content) < 100_000
    monkeypatch.setattr("api.requests.bodies.decompression.zlib.decompressobj", Counting)
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **LIMITS) as (api, _):
        assert error(send(api, content, GZIP))[:2] == (413, "request_too_large")
        assert nothing_is_left(api)
    assert 0 < decompressed <= 100_000 + lines.STEP_BYTES


def test_an_upload_with_too_large_a_declared_length_is_refused_unread(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    with (
        running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **LIMITS) as (api, _),
        closing(connect(api, {"Content-Length": "100001"})) as connection,
    ):
        answer = HTTPResponse(connection)
        answer.begin()
        assert b"request_too_large" in answer.read()


def test_the_documented_example_works(api: RunningApi) -> None:
    document = api.client.get("/openapi.json").json()
    content = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/x-ndjson"]
    response = send(api, content["example"].encode())
    assert response.json()["progress"]["total_items"] == 2, response.text
