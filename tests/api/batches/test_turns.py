"""How the batches of several tenants share an API process."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from api.batches import blocks, feeder, work
from api.store import Store
from api.threads import Threads
from jobs.file_batches import feeding, writing
from jobs.file_batches.claiming import claim_batch
from jobs.file_batches.reading import BatchRecord
from jobs.files import removal
from jobs.store.database import Database
from jobs.tenancy.keys import Scope, create_key
from jobs.tenancy.tenants import set_tenant
from tests.api.batches.running import BODY, create, ended, line, openai_of, run, upload
from tests.api.serving import DEADLINE_SECONDS, eventually, running_api
from tests.api.tiny_model import TinyModel


def test_blank_lines_of_a_file_cost_nothing_each_and_keep_the_numbers_of_the_others() -> None:
    data = b"\n \n{1}\n" + b"\n" * 100_000 + b"\t\r\n {2} \n\n\r\n  "
    calls = 0

    def count(_: FrameType, event: str, __: Any) -> None:
        nonlocal calls
        calls += event == "c_call"

    sys.setprofile(count)
    try:
        whole = blocks._cut(data, 10, 5, 100, is_last=True)
    finally:
        sys.setprofile(None)
    assert [(one.number, one.start, one.stop, one.content) for one in whole.lines] == [
        (7, 13, 17, b"{1}"),
        (100_009, 100_020, 100_026, b" {2} "),
    ]
    assert (whole.stop_bytes, whole.stop_lines) == (10 + len(data), 5 + data.count(b"\n") + 1)
    rest = blocks._cut(data, 10, 5, 100, is_last=False)
    assert (rest.stop_bytes, rest.stop_lines) == (10 + len(data) - 2, 5 + data.count(b"\n"))
    assert calls < 100


def test_lines_that_take_long_to_read_hold_up_no_other_tenant(
    model: TinyModel, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeder, "SHORT_BYTES", 0)
    begun, gate = threading.Event(), threading.Event()
    with running_api(model.directory, sqlite_url, tmp_path) as (api, _):
        service = api.app.state.service

        async def read_slowly(tenant: str, function: Any, body: bytes, *given: Any) -> Any:
            if tenant == "slow":
                begun.set()
                await asyncio.to_thread(gate.wait)
            return await asyncio.to_thread(function, service.reading, body, *given)

        monkeypatch.setattr(service.bodies.process, "read", read_slowly)
        with closing(Database.open(api.store)) as store:
            key, _ = create_key(store, "slow", "slow", frozenset(Scope))
        slow, quick = openai_of(api, key), openai_of(api)
        try:
            waiting = [create(slow, upload(slow, [line("a")]).id) for _ in range(5)]
            eventually(begun.is_set, "a process reads the slow lines")
            assert run(quick, [line("a")]).status == "completed"
            assert {slow.batches.retrieve(one.id).status for one in waiting} <= {"validating", "in_progress"}
        finally:
            gate.set()
        assert {ended(slow, one.id).status for one in waiting} == {"completed"}


def test_lines_without_room_are_not_read_again_while_results_are_written(
    model: TinyModel, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_LINES", 21)
    monkeypatch.setattr(writing, "LINES_PER_STEP", 1)
    monkeypatch.setattr(feeding, "QUOTA_PAUSE_SECONDS", 60.0)
    pauses: list[float] = []
    feed = feeder.Feeder.feed

    async def note_pause(self: feeder.Feeder, batch: BatchRecord) -> float:
        pauses.append(await feed(self, batch))
        return pauses[-1]

    monkeypatch.setattr(feeder.Feeder, "feed", note_pause)
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False) as (api, _):
        with closing(Database.open(api.store)) as store:
            set_tenant(store, "default", max_waiting_tokens=100)
        client = openai_of(api)
        full = BODY | {"items": [f" {chr(97 + n)}" for n in range(15)]}
        lines = [b"bad"] * 20 + [line("a", full), line("b", full)]
        created = create(client, upload(client, lines).id)

        def written() -> int:
            counts = client.batches.retrieve(created.id).request_counts
            assert counts is not None
            return counts.failed

        eventually(lambda: written() == 20, "the bad lines are written")
        assert len([pause for pause in pauses if pause]) == 1


def test_a_process_that_is_stopped_while_it_claims_a_batch_leaves_it_to_others(
    model: TinyModel, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "claim_batch", lambda *_, **__: None)
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False) as (api, _):
        client = openai_of(api)
        batch_id = create(client, upload(client, [line("a")]).id).id
    claimed, gate = threading.Event(), threading.Event()

    def claim_slowly(*given: Any, **named: Any) -> BatchRecord | None:
        batch = claim_batch(*given, **named)
        claimed.set()
        assert gate.wait(DEADLINE_SECONDS)
        return batch

    monkeypatch.setattr(work, "claim_batch", claim_slowly)

    async def stop_while_it_claims(store: Database) -> None:
        models = SimpleNamespace(catalogue=SimpleNamespace(names={"tiny"}))
        threads, reading = Threads(), SimpleNamespace(models=models, api=api.api)
        service: Any = SimpleNamespace(threads=threads, store=Store(store, threads), reading=reading)
        working = asyncio.create_task(work.BatchWork(service).run())
        assert await asyncio.to_thread(claimed.wait, DEADLINE_SECONDS)
        working.cancel()
        await asyncio.sleep(0)
        gate.set()
        with contextlib.suppress(asyncio.CancelledError):
            await working

    with closing(Database.open(api.store)) as store:
        asyncio.run(stop_while_it_claims(store))
        found = claim_batch(store, ["tiny"], 60.0)
    assert found is not None
    assert found.id == batch_id


def test_batches_go_on_while_a_large_file_is_removed(
    model: TinyModel, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate = threading.Event(), threading.Event()
    remove = removal.remove_files

    def remove_slowly(*given: Any) -> int:
        begun.set()
        gate.wait()
        return remove(*given)

    monkeypatch.setattr(removal, "remove_files", remove_slowly)
    with running_api(model.directory, sqlite_url, tmp_path) as (api, _):
        try:
            eventually(begun.is_set, "a sweep removes files")
            assert run(openai_of(api), [line("a")]).status == "completed"
        finally:
            gate.set()
