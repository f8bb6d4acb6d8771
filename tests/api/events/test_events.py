"""Jobs are followed by server-sent events, by any number of clients at the cost of one query."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
import pytest
from sqlalchemy import event

from api.events import job_progress
from api.routes.jobs import MAX_OFFSET
from api.waiting.following import Following
from jobs.queue.claims.claim import claim
from jobs.queue.finish import finish
from jobs.queue.read import scores_of, statuses
from jobs.store.database import Database
from jobs.store.records import Claim
from tests.api.events.event_streams import Sent, connect, events_path, following
from tests.api.server.raw_client import RawClient
from tests.api.serving import KEY, RunningApi, StandInWorker, eventually, running_api, score_chunk
from tests.api.tiny_model import TinyModel
from tests.databases import ON_BOTH, quick_on
from tests.jobs.queue.test_statement_counts import statements_of

Fresh = tuple[RunningApi, StandInWorker]

WATCHERS = 1_000
BODY: dict[str, Any] = {
    "query": "The capital of",
    "items": [f" item {n}" for n in range(8)],
    "label_token_ids": [70, 71],
}


class Steps:
    """Scores the chunks of jobs one by one, in the order that a test wants."""

    def __init__(self, api: RunningApi, worker: StandInWorker) -> None:
        worker.gate.clear()
        self._database: Database = api.app.state.service.store.database
        self._card = api.app.state.service.reading.card
        self._claimed: Claim | None = None
        self._api = api

    def claim(self) -> int:
        """Claim everything that waits. Returns the number of chunks."""
        self._claimed = claim(self._database, "steps", self._card, 10**9)
        assert self._claimed is not None
        return len(self._claimed.chunk_ids)

    def finish(self, number: int) -> None:
        """Finish one of the claimed chunks, and tell the API if its job has ended with it."""
        assert self._claimed is not None
        chunks = [(group, chunk) for group in self._claimed.groups for chunk in group.chunks]
        done = finish(self._database, self._claimed.batch_id, [score_chunk(*sorted(chunks, key=_id)[number])])
        for job_id in done.job_ids:
            self._api.app.state.service.acceptance.ringer.announce([job_id])


def _id(chunk: Any) -> int:
    return int(chunk[1].id)


@pytest.fixture
def quick(model: TinyModel, store_url: str, tmp_path: Path) -> Iterator[Fresh]:
    """A server that looks at jobs often, and whose chunks have two items."""
    with running_api(model.directory, store_url, tmp_path, waiter_poll_seconds=0.02, chunk_items=2) as (api, worker):
        assert worker is not None
        yield api, worker


def scored(events: list[Sent]) -> list[int]:
    """Return the items whose scores came, in the order in which they came."""
    return [line["index"] for event in events if event.name == "scores" for line in event.data["data"]]


@ON_BOTH
def test_a_stream_shows_progress_and_ends_with_the_job(quick: Fresh) -> None:
    api, worker = quick
    steps = Steps(api, worker)
    job = api.submit(**BODY)
    assert job["urls"]["events"] == events_path(job["id"])
    with following(api, job["id"]) as events:
        first = next(events)
        assert (first.name, first.data["status"]) == ("progress", "queued")
        assert first.data["progress"] == {"total_items": 8, "scored_items": 0}
        assert steps.claim() == 4
        for number in range(4):
            steps.finish(number)
            assert any(event.data["progress"]["scored_items"] == 2 * number + 2 for event in events)
        rest = list(events)
    assert [event.name for event in rest] == ["end"]
    shown = api.client.get(job["urls"]["self"]).json()
    assert rest[-1].data == {name: value for name, value in shown.items() if name not in ("result", "provenance")}
    assert rest[-1].id == "end"


def test_a_job_that_has_ended_ends_its_stream_at_once(api: RunningApi) -> None:
    job = api.wait(api.submit(**BODY)["id"])
    with following(api, job["id"]) as events:
        assert [event.name for event in events] == ["progress", "end"]


def test_scores_come_in_the_order_of_the_items_although_chunks_end_in_another(quick: Fresh) -> None:
    api, worker = quick
    steps = Steps(api, worker)
    job = api.submit(**BODY)
    steps.claim()
    found: list[Sent] = []
    with following(api, job["id"], scores=True) as events:
        for number in (2, 0, 3, 1):
            steps.finish(number)
            if number == 0:  # The items of chunk 2 wait for those before them.
                while scored(found) != [0, 1]:
                    found.append(next(events))
        found += events
    assert scored(found) == list(range(8))
    shown = api.client.get(job["urls"]["scores"]).json()["data"]
    assert [line for event in found if event.name == "scores" for line in event.data["data"]] == shown
    # Scores may come before the progress that counts them, because they are read after it.
    assert [event.name for event in found][-1] == "end"
    assert [event for event in found if event.name == "progress"][-1].data["progress"]["scored_items"] == 8


def test_a_client_that_comes_back_goes_on_behind_the_last_event_that_it_got(quick: Fresh) -> None:
    api, worker = quick
    steps = Steps(api, worker)
    job = api.submit(**BODY)
    steps.claim()
    steps.finish(0)
    with following(api, job["id"], scores=True) as events:
        while (last := next(events)).name != "scores":
            pass
    assert scored([last]) == [0, 1]
    for number in (1, 2, 3):
        steps.finish(number)
    with following(api, job["id"], last=last.id, scores=True) as events:
        rest = list(events)
    assert scored(rest) == list(range(2, 8))
    by_place = [event.id for event in rest[:-1]]
    assert len(set(by_place)) == len(by_place) > 1
    for place in by_place:
        with following(api, job["id"], last=place, scores=True) as events:
            again = list(events)
        assert again == rest[by_place.index(place) + 1 :]


def test_a_change_of_the_status_alone_during_a_break_is_told(quick: Fresh) -> None:
    api, worker = quick
    steps = Steps(api, worker)
    job = api.submit(**BODY)
    with following(api, job["id"]) as events:
        first = next(events)
    assert (first.data["status"], first.id) == ("queued", "0-0")
    steps.claim()
    with following(api, job["id"], last=first.id) as events:
        second = next(events)
    assert second.data["status"] == "running"


def test_a_client_that_follows_anew_gets_what_was_not_there_when_somebody_else_followed(quick: Fresh) -> None:
    api, worker = quick
    steps = Steps(api, worker)
    job = api.submit(**BODY)
    steps.claim()
    with following(api, job["id"], scores=True) as events:
        assert next(events).data["progress"]["scored_items"] == 0
    eventually(lambda: not api.app.state.service.streams.jobs._followed, "nobody follows it any more")
    for number in range(4):
        steps.finish(number)
    with following(api, job["id"], scores=True) as events:
        assert scored(list(events)) == list(range(8))


def test_a_client_that_has_got_the_end_is_told_to_stop(api: RunningApi) -> None:
    job = api.wait(api.submit(**BODY)["id"])
    response = api.client.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": "end"})
    assert (response.status_code, response.content) == (204, b"")
    for wrong in ("5", "-1-2", "1-2-3", "1-99999999999", "x"):
        refused = api.client.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": wrong})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Last-Event-ID")
        assert refused.json()["error"]["code"] == "invalid_request"


def test_an_id_behind_the_last_item_that_a_job_may_have_is_refused(quick: Fresh) -> None:
    api, _ = quick
    job = api.wait(api.submit(**BODY)["id"])
    path = f"/v1/jobs/{job['id']}/events?scores=true"
    last = api.client.get(path, headers={"Last-Event-ID": f"0-{MAX_OFFSET}"})
    assert "event: end" in last.text
    for wrong in (f"0-{MAX_OFFSET + 1}", "0-9999999999", f"{MAX_OFFSET + 1}-0"):
        refused = api.client.get(path, headers={"Last-Event-ID": wrong})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Last-Event-ID")


def test_scores_that_a_cancelled_job_has_are_sent_and_those_it_lacks_left_out(quick: Fresh) -> None:
    api, worker = quick
    steps = Steps(api, worker)
    job = api.submit(**BODY)
    steps.claim()
    steps.finish(1)
    api.client.post(job["urls"]["cancel"])
    with following(api, job["id"], scores=True) as events:
        found = list(events)
    assert scored(found) == [2, 3]
    assert (found[-1].name, found[-1].data["status"]) == ("end", "cancelled")


def test_the_stream_of_a_deleted_job_ends(quick: Fresh) -> None:
    api, worker = quick
    worker.gate.clear()
    job = api.submit(**BODY)
    with following(api, job["id"]) as events:
        next(events)
        api.client.delete(job["urls"]["self"])
        end = list(events)[-1]
    assert (end.name, end.data) == ("end", {"id": job["id"], "object": "scoring.job", "deleted": True})
    assert api.client.get(f"/v1/jobs/{job['id']}/events").status_code == 404


def test_a_quiet_stream_carries_signs_of_life_and_ends_after_its_time(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    settings = {"event_heartbeat_seconds": 0.02, "max_event_stream_seconds": 1.0}
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **settings) as (api, _):
        job = api.submit(**BODY)
        with following(api, job["id"]) as events:
            found = [event.name for event in events]
    assert found[0] == "progress"
    assert set(found[1:]) == {":"}
    assert len(found) > 2


def test_streams_have_places_of_their_own(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    settings = {"max_open_streams_per_tenant": 1, "max_open_requests_per_tenant": 1}
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **settings) as (api, _):
        job = api.submit(**BODY)
        with following(api, job["id"]) as events:
            next(events)
            assert api.client.get(job["urls"]["self"]).status_code == 200
            refused = api.client.get(f"/v1/jobs/{job['id']}/events")
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_open_requests")
        eventually(
            lambda: api.client.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": "end"}).status_code == 204,
            "its place is free",
        )


@quick_on("postgres")
def test_a_thousand_watchers_share_each_query(
    model: TinyModel, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    polling: set[int] = set()  # threads in which waiting requests look for ends, by the same statement

    def polled(*arguments: Any) -> Any:
        polling.add(get_ident())
        try:
            return statuses(*arguments)
        finally:
            polling.discard(get_ident())

    monkeypatch.setattr("api.background.statuses", polled)
    with running_api(model.directory, store_url, tmp_path, waiter_poll_seconds=0.3, chunk_items=2) as (api, worker):
        assert worker is not None
        steps = Steps(api, worker)
        job = api.submit(**BODY)
        steps.claim()
        database = api.app.state.service.store.database
        looks = count_looks(api.app.state.service.streams.jobs)

        async def watch() -> list[bytes]:
            with progress_reads(database, polling) as connecting:
                watchers = await asyncio.gather(*(connect(api, job["id"]) for _ in range(WATCHERS)))
            assert len(connecting) <= looks[0] < WATCHERS / 10
            for reader, _ in watchers:
                assert b'"scored_items":0' in await reader.readuntil(b"}}")
            before = looks[0]
            with progress_reads(database, polling) as sent:
                for number in range(3):
                    await asyncio.to_thread(steps.finish, number)
                    for reader, _ in watchers:
                        await reader.readuntil(b'"scored_items":%d' % (2 * number + 2))
            # Three steps are seen by three looks, of which the first may have begun before they were counted.
            assert 2 <= looks[0] - before < WATCHERS / 10
            assert abs(len(sent) - (looks[0] - before)) <= 1, "one query for a look"
            with statements_of(database) as ending:
                await asyncio.to_thread(steps.finish, 3)
                ends = [await reader.readuntil(b"event: end\n") for reader, _ in watchers]
            assert sum("SELECT jobs.id, jobs.tenant, jobs.model" in one for one in ending) == 1
            for _, writer in watchers:
                writer.close()
            return ends

        assert len(asyncio.run(watch())) == WATCHERS
        eventually(lambda: not api.app.state.service.streams.jobs._followed, "nothing is followed any more")


@contextmanager
def progress_reads(database: Database, polling: set[int]) -> Iterator[list[str]]:
    """Collect the statements that read the progress of jobs, but not those of threads that are polling."""
    found: list[str] = []

    def record(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT jobs.id, jobs.tenant, jobs.status") and get_ident() not in polling:
            found.append(statement)

    event.listen(database.engine, "before_cursor_execute", record)
    try:
        yield found
    finally:
        event.remove(database.engine, "before_cursor_execute", record)


def count_looks(followed: Following[Any]) -> list[int]:
    """Count how often a process looks at what is followed."""
    looks = [0]
    read = followed._read

    async def counted(keys: Any) -> Any:
        looks[0] += 1
        return await read(keys)

    followed._read = counted
    return looks


def test_a_client_that_never_reads_has_one_event_in_memory_and_is_dropped(
    model: TinyModel, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets: list[int] = []

    def counted(db: Any, job: Any, offset: int, limit: int) -> Any:
        offsets.append(offset)
        return scores_of(db, job, offset, limit)

    monkeypatch.setattr(job_progress, "scores_of", counted)
    labels = list(range(40, 240))
    with running_api(model.directory, sqlite_url, tmp_path, send_seconds=1.0) as (api, worker):
        assert worker is not None
        job = api.wait(api.submit(query="The", items=[f" {n}" for n in range(3_000)], label_token_ids=labels)["id"])
        with RawClient(api, receive_buffer=4_096) as silent:
            silent.send(
                f"GET /v1/jobs/{job['id']}/events?scores=true HTTP/1.1\r\n".encode(),
                f"Host: test\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode(),
            )
            refused = 'scoreline_refused_requests_total{limit="send_seconds"} 1.0'
            eventually(lambda: refused in api.client.get("/metrics").text, "the client is dropped")
            eventually(lambda: not api.app.state.service.streams.jobs._followed, "its stream has ended")
        assert len(offsets) < 300 / 2, "it would read 300 parts for a client that reads"
        assert all(step == 10 for step in np.diff(offsets)), pairwise(offsets)
