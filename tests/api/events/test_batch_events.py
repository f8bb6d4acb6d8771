"""Batches are followed by server-sent events, as jobs are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from api.events.batch_progress import BatchState, read_batch_states
from jobs.store.database import Database
from jobs.tenancy.keys import Scope, create_key
from tests.api.batches.running import create, ended, line, openai_of, upload
from tests.api.events.event_streams import events_path, following
from tests.api.serving import DEADLINE_SECONDS, RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel
from tests.databases import ON_BOTH
from tests.jobs.queue.test_statement_counts import statements_of

LOOK = "SELECT file_batches.id, file_batches.tenant, file_batches.status, file_batches.total_lines"
"""How the statement begins that reads the progress of batches."""

Fresh = tuple[RunningApi, StandInWorker]


@pytest.fixture
def quick(model: TinyModel, store_url: str, tmp_path: Path) -> Iterator[Fresh]:
    """A server that looks at batches often, and whose worker scores nothing yet."""
    settings: dict[str, Any] = {"waiter_poll_seconds": 0.02, "max_event_stream_seconds": DEADLINE_SECONDS}
    with running_api(model.directory, store_url, tmp_path, **settings) as (api, worker):
        assert worker is not None
        worker.gate.clear()
        yield api, worker


def start(api: RunningApi, lines: int = 3) -> str:
    """Start a batch of good lines and a broken one, and return its id."""
    client = openai_of(api)
    return create(client, upload(client, [*(line(str(n)) for n in range(lines)), b"broken"]).id).id


def test_a_stream_shows_the_progress_of_a_batch_and_ends_with_it(quick: Fresh) -> None:
    api, worker = quick
    batch_id = start(api)
    with following(api, batch_id) as events:
        first = next(events)
        seen = [first]
        while seen[-1].data["status"] != "in_progress":
            seen.append(next(events))
        assert {event.name for event in seen} == {"progress"}
        assert first.data["id"] == batch_id
        assert seen[-1].data["object"] == "batch.progress"
        assert seen[-1].data["request_counts"] == {"total": 4, "completed": 0, "failed": 0}
        assert seen[-1].id == "in_progress-0-0"
        worker.gate.set()
        rest = list(events)
    assert (rest[-1].name, rest[-1].id) == ("end", "end")
    assert rest[-1].data == api.client.get(f"/v1/batches/{batch_id}").json()
    assert rest[-1].data["request_counts"] == {"total": 4, "completed": 3, "failed": 1}
    ids = [event.id for event in seen + rest]
    assert len(set(ids)) == len(ids), "each progress is sent once"
    assert rest[-2].id == "completed-3-1"


def test_a_client_that_comes_back_goes_on_behind_the_last_event_of_a_batch(quick: Fresh) -> None:
    api, worker = quick
    batch_id = start(api)
    with following(api, batch_id) as events:
        while (last := next(events)).data["status"] != "in_progress":
            pass
    worker.gate.set()
    ended(openai_of(api), batch_id)
    with following(api, batch_id, last=last.id) as events:
        progress, end = list(events)
    assert (progress.name, progress.id, end.name) == ("progress", "completed-3-1", "end")
    with following(api, batch_id, last=progress.id) as events:
        assert list(events) == [end]
    path = events_path(batch_id)
    assert api.client.get(path, headers={"Last-Event-ID": "end"}).status_code == 204
    for wrong in ("5-0", "waiting-1-1", "in_progress-1", "in_progress-1-99999999999", "ends"):
        refused = api.client.get(path, headers={"Last-Event-ID": wrong})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Last-Event-ID")


def test_another_tenant_and_a_missing_batch_get_no_stream(quick: Fresh) -> None:
    api, _ = quick
    batch_id = start(api)
    store = Database.open(api.store)
    try:
        key, _ = create_key(store, "acme", "another", [Scope.READ])
    finally:
        store.close()
    with api.client_with(key) as other:
        for answer in (
            other.get(events_path(batch_id)),
            other.get(events_path(batch_id), headers={"Last-Event-ID": "end"}),
            api.client.get(events_path("batch_0")),
            api.client.get("/v1/batches/batch_%27/events"),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "batch_not_found")


def test_streams_of_a_batch_carry_signs_of_life_have_places_and_end_after_their_time(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"event_heartbeat_seconds": 0.05, "max_event_stream_seconds": 0.4}
    settings["max_open_streams_per_tenant"] = 1
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, **settings) as (api, _):
        batch_id = start(api)
        with following(api, batch_id) as events:
            names = [next(events).name]
            refused = api.client.get(events_path(batch_id))
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_open_requests")
            names += [event.name for event in events]
    assert (names[0], set(names)) == ("progress", {"progress", ":"})


def test_all_watchers_of_batches_share_each_query(quick: Fresh) -> None:
    api, worker = quick
    batch_ids = [start(api), start(api)]
    followed = api.app.state.service.streams.batches
    read, looks = followed._read, list[list[str]]()

    async def counted(keys: Collection[str]) -> Mapping[str, BatchState]:
        looks.append(sorted(keys))
        found: Mapping[str, BatchState] = await read(keys)
        return found

    followed._read = counted
    with ExitStack() as stack:
        streams = [stack.enter_context(following(api, batch_id)) for batch_id in batch_ids * 10]
        for stream in streams:
            next(stream)
        seen = len(looks)
        eventually(lambda: len(looks) >= seen + 2, "the batches are looked at again")
        assert looks[seen + 1] == sorted(batch_ids)
        worker.gate.set()
        ends = [list(stream)[-1] for stream in streams]
    assert {end.data["id"] for end in ends} == set(batch_ids)
    eventually(lambda: not followed._followed, "nothing is followed any more")


@ON_BOTH
def test_each_look_at_batches_is_one_query(quick: Fresh) -> None:
    api, worker = quick
    batch_ids = [start(api), start(api)]
    with statements_of(api.app.state.service.store.database) as sent:
        assert set(read_batch_states(api.app.state.service.store.database, batch_ids)) == set(batch_ids)
    assert len([one for one in sent if one.startswith(LOOK)]) == 1
    worker.gate.set()
    for batch_id in batch_ids:
        ended(openai_of(api), batch_id)
    with statements_of(api.app.state.service.store.database) as sent:
        states = read_batch_states(api.app.state.service.store.database, [*batch_ids, "batch_0"])
    assert [states[batch_id].is_final for batch_id in batch_ids] == [True, True]
    assert len([one for one in sent if one.startswith(LOOK)]) == 1
    assert "batch_0" not in states
