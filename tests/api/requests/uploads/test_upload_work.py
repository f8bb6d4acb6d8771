"""Small uploads cause a bounded amount of work, whatever is in them."""

from __future__ import annotations

import asyncio
import gzip
import re
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from api.requests.bodies import decompression
from api.requests.bodies.decompression import COMPRESSED_PIECE_BYTES
from api.requests.uploads import lines
from api.requests.uploads.lines import STEP_PIECES, LineReader
from api.requests.uploads.upload_body import UploadBody
from jobs.store.tables import chunks
from scoring.error_codes import ErrorCode, RequestError
from settings.limits import LimitSettings
from tests.api.requests.uploads.uploading import (
    FIRST,
    GZIP,
    JOB,
    HeldUpload,
    body,
    error,
    nothing_is_left,
    rows_of,
    send,
)
from tests.api.serving import RunningApi, eventually, running_api
from tests.api.tiny_model import TinyModel

EMPTY_MEMBER = gzip.compress(b"")

ROUTE = "POST /v1/jobs"


def reader(gzip: bool = True, max_lines: int = 100, **limits: Any) -> LineReader:
    return LineReader(ROUTE, LimitSettings(**limits), encoding="gzip" if gzip else "identity", max_lines=max_lines)


@pytest.fixture
def decompressors(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The bytes of each call of each decompressor that is made."""
    made: list[list[int]] = []
    decompressobj = zlib.decompressobj

    class Counting:
        def __init__(self, *arguments: Any) -> None:
            self._inner = decompressobj(*arguments)
            self._calls: list[int] = []
            made.append(self._calls)

        def decompress(self, data: bytes, most: int) -> bytes:
            self._calls.append(len(data))
            return self._inner.decompress(data, most)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    monkeypatch.setattr("api.requests.bodies.decompression.zlib.decompressobj", Counting)
    return made


def test_a_gzip_file_has_a_limited_number_of_members(decompressors: list[list[int]]) -> None:
    with pytest.raises(RequestError) as refused:
        list(reader(max_gzip_members=10).feed(EMPTY_MEMBER * 3_000))
    assert (refused.value.code, refused.value.limit) == (ErrorCode.REQUEST_TOO_LARGE, "max_gzip_members")
    assert "10 members" in refused.value.message
    assert len(decompressors) == 10


def test_many_small_members_take_few_steps_and_little_copying(decompressors: list[list[int]]) -> None:
    """Each step changes the thread twice, and a decompressor copies what it was given and has not used."""
    members = 3_000
    steps = list(reader().feed(EMPTY_MEMBER * members))
    assert len(decompressors) == members
    assert len(steps) <= members / STEP_PIECES + 10
    given = [size for calls in decompressors for size in calls]
    assert max(given) <= COMPRESSED_PIECE_BYTES


@given(
    st.lists(st.sampled_from([b"\n", b"\n\n", b" \t\r", b"a", b"bc d", b"      "]), max_size=30).map(b"".join),
    st.lists(st.integers(0, 60), max_size=4),
)
def test_lines_are_found_in_any_pieces_and_long_ones_refused_by_their_number(content: bytes, cuts: list[int]) -> None:
    expected: list[tuple[int, bytes] | str] = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if len(line) > 5:
            expected.append(f"line {number} has more than the 5 bytes that a line may have")
            break
        if line.strip():
            expected.append((number, line))
    found: list[tuple[int, bytes] | str] = []
    one = reader(gzip=False, max_line_bytes=5)
    places = [0, *sorted(cut for cut in cuts if cut < len(content)), len(content)]
    try:
        for begin, end in pairwise(places):
            found += [line for step in one.feed(content[begin:end]) for line in step]
        found += one.finish()
    except RequestError as error:
        found.append(error.message)
    assert found[-1:] == expected[-1:]
    if expected and isinstance(expected[-1], str):  # Lines of the step that is refused are not returned.
        assert found[:-1] == expected[: len(found) - 1]
    else:
        assert found == expected


def test_blank_lines_are_counted_without_a_look_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    class Counting:
        def search(self, data: bytes, start: int = 0) -> re.Match[bytes] | None:
            looks.append(start)
            return content.search(data, start)

    content = lines._CONTENT
    monkeypatch.setattr(lines, "_CONTENT", Counting())
    found = reader(gzip=False, max_lines=2**19)
    blank = b"\n \r\n" * 2**16
    found_lines = [line for step in found.feed(blank + b"a\n" + blank) for line in step]
    assert (found_lines, found.number) == ([(2**17 + 1, b"a")], 2**18 + 1)
    assert len(looks) <= 10


def test_blank_lines_count(decompressors: list[list[int]]) -> None:
    """A megabyte of gzip may hold a thousand million of them."""
    found = reader(max_lines=1_000)
    content = gzip.compress(b"\n" * 2**24)
    assert len(content) < 20_000
    with pytest.raises(RequestError) as refused:
        list(found.feed(content))
    assert (refused.value.code, refused.value.limit) == (ErrorCode.REQUEST_TOO_LARGE, "max_items_per_upload")
    assert "1000 lines" in refused.value.message
    assert found.number == 0
    assert len(decompressors[0]) == 1


def test_an_upload_may_have_a_blank_line_behind_each_item(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    limits = {"max_items_per_upload": 20}
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **limits) as (api, _):
        content = body(["a"] * 20).replace(b"\n", b"\n\n")
        assert send(api, content).status_code == 202
        status, code, _, message = error(send(api, gzip.compress(FIRST + b"\n" * 1_040), GZIP))
        assert (status, code) == (413, "request_too_large")
        assert "1040 lines" in message
        assert rows_of(api) == 1


def test_a_gzip_file_may_not_unpack_to_far_more_than_its_size(
    monkeypatch: pytest.MonkeyPatch, decompressors: list[list[int]]
) -> None:
    monkeypatch.setattr(decompression, "FREE_BYTES", 2**18)
    content = FIRST + (b" " * 10_000 + b"\n") * 400
    packed = gzip.compress(content)
    most = 2**18 + 200 * len(packed)
    assert most < len(content) / 2
    with pytest.raises(RequestError) as refused:
        list(reader(max_lines=1_000).feed(packed))
    assert (refused.value.code, refused.value.limit) == (ErrorCode.REQUEST_TOO_LARGE, "max_gzip_ratio")
    assert "200 times" in refused.value.message
    assert (len(decompressors[0]) - 1) * lines.STEP_BYTES <= most
    assert sum(len(step) for step in reader(max_lines=1_000, gzip=False).feed(content)) == 1
    assert sum(len(step) for step in reader(max_lines=1_000, max_gzip_ratio=1_000).feed(packed)) == 1


def test_bytes_that_come_one_by_one_are_handled_together(api: RunningApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.requests.uploads.upload_body.GATHER_SECONDS", 20.0)
    sent = 0

    async def receive() -> Message:
        nonlocal sent
        sent += 1
        return {"type": "http.request", "body": b"x", "more_body": sent < 5_000}

    async def heartbeat() -> None:
        raise AssertionError("the bytes come at once")

    async def pieces() -> list[bytes]:
        request = Request({"type": "http", "headers": []}, receive)
        body = UploadBody(request, api.app.state.service.reading.limits, 60.0)
        return [piece async for piece in body.pieces(heartbeat)]

    assert asyncio.run(pieces()) == [b"x" * 5_000]


@pytest.mark.usefixtures("small_steps")
def test_the_chunks_of_uploads_that_go_on_count_as_waiting(
    model: TinyModel, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a job nor a further part of an upload is taken when uploads have staged too many chunks."""
    monkeypatch.setattr("api.callers.admission.GOOD_FOR_SECONDS", 0.001)
    monkeypatch.setattr("api.callers.admission.MAX_GOOD_FOR_SECONDS", 0.001)
    limits = {"max_waiting_chunks": 2, "chunk_items": 1}
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **limits) as (api, _):
        held = HeldUpload(api, [body(["a"] * 4), b'"b"\n' * 8])
        eventually(lambda: rows_of(api, chunks) >= 3, "chunks are staged")
        small = JOB | {"items": ["a"]}
        assert error(api.client.post("/v1/jobs", json=small))[:2] == (503, "overloaded")
        assert error(held.finish())[:2] == (503, "overloaded")
        assert nothing_is_left(api)
        assert api.client.post("/v1/jobs", json=small).status_code == 202
