"""Files and batches by the client: they are made once, awaited, and read in the order of their lines."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
from pathlib import Path

import pytest

from scoreline import (
    AsyncClient,
    Batch,
    BatchCancelled,
    BatchEnd,
    BatchFailed,
    Client,
    Conflict,
    InvalidRequest,
    NotFound,
    TimedOut,
)
from scoreline.client.exchange import sending
from tests.scoreline.client.test_repeating import losing_answers
from tests.scoreline.client.unreliable import BROKEN, Got, Reply, answering, passed_on
from tests.scoreline.running import Up

GOOD = {"query": "a", "items": ["b", "c"], "label_token_ids": [1, 2]}
BAD = {**GOOD, "query": ""}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the pauses between repetitions short."""
    monkeypatch.setattr(sending, "FIRST_PAUSE_SECONDS", 0.01)


def test_results_and_errors_come_in_the_order_of_the_requests(client: Client, shared_up: Up) -> None:
    requests = [(f"request {n}", GOOD if n % 3 else BAD) for n in range(10)]
    seen: list[Batch] = []
    batch = client.wait_batch(client.batch(iter(requests), metadata={"run": "7"}), 60, progress=seen.append)
    assert (batch.status, batch.total_items, batch.completed_lines, batch.failed_lines) == ("completed", 10, 6, 4)
    assert (batch.metadata, seen[-1]) == ({"run": "7"}, batch)
    found = list(client.batch_results(batch))
    assert [(one.custom_id, one.number) for one in found] == [(f"request {n}", n) for n in range(10)]
    expected = client.score("a", ["b", "c"], label_token_ids=[1, 2]).scores
    for n, one in enumerate(found):
        if n % 3:
            assert (one.scores.scores if one.scores else None, one.error) == (expected, None)
        else:
            assert isinstance(one.error, InvalidRequest)
            assert (one.error.code, one.error.status, one.error.param) == ("empty_query", 400, "query")
    assert next(client.batches()).id == batch.id
    assert isinstance(list(client.batch_events(batch))[-1], BatchEnd)
    assert client.batch_deliveries(batch) == []

    async def numbers() -> list[int]:
        async with AsyncClient(shared_up.url) as client:
            return [one.number async for one in client.batch_results(batch.id)]

    assert asyncio.run(numbers()) == list(range(10))


def test_only_a_line_feed_ends_a_line(client: Client, shared_up: Up) -> None:
    odd = "\u2028 \u2029 \x85 \x0b \x0c \x1c \x1d \x1e"
    lines = [f"first {odd} é", "a carriage\rreturn", "", "x" * 300_000 + odd, "without an end"]
    assert len(lines[0].splitlines()) > 8
    file = client.upload_file("\n".join(lines).encode())
    assert list(client.file_lines(file)) == lines

    async def lines_of_file() -> list[str]:
        async with AsyncClient(shared_up.url) as other:
            return [line async for line in other.file_lines(file)]

    assert asyncio.run(lines_of_file()) == lines
    names = [f"{name} {n}" for n, name in enumerate("\u2028\u2029\x85")]
    batch = client.wait_batch(client.batch((name, GOOD) for name in names), 60)
    assert [one.custom_id for one in client.batch_results(batch)] == names


def test_rankings_come_from_batches_too(client: Client) -> None:
    body = {"query": "What is in England", "documents": ["London is in England", "Paris"]}
    (one,) = client.batch_results(client.wait_batch(client.batch({"a": body}, endpoint="/v1/rerank"), 60))
    assert one.ranking is not None
    assert [document.index for document in one.ranking.results] == [
        document.index
        for document in client.rerank(**body).results  # type: ignore[arg-type]
    ]


def test_files_are_uploaded_from_bytes_paths_and_open_files(client: Client, tmp_path: Path) -> None:
    line = json.dumps({"custom_id": "é", "method": "POST", "url": "/v1/score", "body": GOOD}).encode() + b"\n"
    (tmp_path / "lines.jsonl").write_bytes(line)
    stream = io.BytesIO(b"skipped" + line)
    stream.seek(7)
    files = [
        client.upload_file(line, filename='a "quoted"\r\nname.jsonl', expires_after=3_600),
        client.upload_file(tmp_path / "lines.jsonl"),
        client.upload_file(stream, filename="stream"),
    ]
    assert [file.bytes for file in files] == [len(line)] * 3
    assert [file.filename for file in files] == ["a _quoted___name.jsonl", "lines.jsonl", "stream"]
    assert files[0].expires_at == files[0].created_at + 3_600
    assert ["".join(client.file_lines(file)) for file in files] == [line.decode().strip()] * 3
    listed = list(itertools.islice(client.files(purpose="batch", page_files=2), 3))
    assert listed == files[::-1]
    assert client.get_file(files[0].id) == files[0]
    client.delete_file(files[0])
    with pytest.raises(NotFound):
        client.get_file(files[0])


def test_a_batch_whose_answers_are_lost_is_made_once(shared_up: Up) -> None:
    with answering(losing_answers(shared_up)) as server, Client(server.url) as client:
        before = len(list(client.files(purpose="batch")))
        batch = client.batch({"a": GOOD})
        assert len(list(client.files(purpose="batch"))) == before + 1
        assert [made.input_file_id for made in client.batches()].count(batch.input_file_id) == 1
        assert client.wait_batch(batch, 60).completed_lines == 1


def test_reading_goes_on_where_a_connection_broke_off(client: Client, shared_up: Up) -> None:
    batch = client.wait_batch(client.batch((f"{n}", GOOD) for n in range(200)), 60)
    breaks = 3

    def answer(got: Got) -> Reply:
        nonlocal breaks
        reply = passed_on(shared_up.url, got)
        if got.path.endswith("/content") and breaks > 0:
            breaks -= 1
            assert isinstance(reply.body, bytes)
            kept = reply.body[: len(reply.body) * (3 - breaks) // 4]
            return Reply(200, kept, {"Content-Length": str(len(reply.body))}) if breaks != 1 else BROKEN
        return reply

    with answering(answer) as server, Client(server.url) as unlucky:
        assert [one.number for one in unlucky.batch_results(batch)] == list(range(200))
    assert breaks == 0


def test_a_batch_that_fails_or_is_cancelled_is_an_exception_with_the_batch(shared_up: Up, client: Client) -> None:
    failed = client.create_batch(client.upload_file(b"\n"))
    with pytest.raises(BatchFailed, match=failed.id) as raised:
        client.wait_batch(failed, 60)
    assert raised.value.batch is not None
    assert raised.value.batch.errors
    with shared_up.worker_frozen():
        cancelled = client.batch((f"{n}", GOOD) for n in range(200))
        with pytest.raises(TimedOut):
            client.wait_batch(cancelled, 0)
        with pytest.raises(Conflict, match="so it has no results: wait_batch"):
            next(client.batch_results(cancelled))
        with pytest.raises(Conflict):
            client.delete_file(cancelled.input_file_id)
        client.cancel_batch(cancelled)
    with pytest.raises(BatchCancelled) as late:
        client.wait_batch(cancelled, 60)
    assert late.value.batch is not None
    assert {one.error.code for one in client.batch_results(late.value.batch) if one.error} <= {"batch_cancelled"}
    client.delete_batch(cancelled)
    with pytest.raises(NotFound):
        client.get_batch(cancelled.id)
