"""Where a small body is read: on the event loop, or in a thread."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import Request

from api.reading import ReadingContext
from api.text_process import body_reader
from api.text_process.body_reader import SHORT_PAIRS, SMALL_BYTES, SMALL_PAIRS, BodyReader
from api.threads import Threads
from api.waiting.departure import Departure
from scoring.label_sequences import LabelSequences
from tests.api.serving import RunningApi
from tests.scoring.counting import CountingBackend, counted

_time_limit = body_reader._time_limit


def _read(api: RunningApi, *bodies: bytes) -> list[bool]:
    """Read bodies one after the other. Return for each whether it was read on the event loop."""

    def reading_thread(reading: ReadingContext, _: bytes) -> threading.Thread:
        reading.stop_if_unwanted()
        return threading.current_thread()

    async def read_all() -> list[bool]:
        service: Any = api.app.state.service
        reader = BodyReader(service.reading, Threads(), service.bodies.process, service.bodies.loader)
        request = Request({"type": "http", "state": {"departure": Departure(lambda _: None)}})
        threads = [await reader.read(request, "tenant", reading_thread, body) for body in bodies]
        return [thread is threading.current_thread() for thread in threads]

    return asyncio.run(read_all())


def test_only_a_small_body_is_read_on_the_event_loop(api: RunningApi) -> None:
    assert _read(api, b" " * SMALL_BYTES, b" " * (SMALL_BYTES + 1)) == [True, False]


def test_after_a_small_body_took_long_all_bodies_are_read_in_threads(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_reader, "SMALL_SECONDS", -1.0)
    assert _read(api, b" ") == [False]
    checks = iter([-1.0])  # only the first body takes long
    monkeypatch.setattr(body_reader, "_time_limit", lambda _: _time_limit(next(checks, 60.0)))
    assert _read(api, b" ", b" ") == [False, False]


@pytest.mark.parametrize("on_loop", [True, False])
def test_a_small_body_that_stands_for_many_pairs_is_not_read_on_the_event_loop(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch, on_loop: bool
) -> None:
    """Its few bytes say nothing of the labels behind its items, each of which is encoded."""
    threads = set()

    def behind(*given: Any) -> Any:
        threads.add(threading.current_thread().name)
        return make(*given)

    make = LabelSequences.behind
    monkeypatch.setattr(LabelSequences, "behind", behind)
    monkeypatch.setattr(body_reader, "SMALL_SECONDS", 60.0)
    vars(api.app.state.service.bodies)["_careful_until"] = 0.0
    labels = [[70, 71]] * 8
    items: list[list[int]] = [[]] * (SMALL_PAIRS // 16 + (not on_loop))
    body = {"query": [70], "items": items, "label_token_sequences": labels, "label_scoring": "sequence"}
    sent = json.dumps(body, separators=(",", ":"))
    assert len(sent) <= SMALL_BYTES
    answer = api.client.post("/v1/jobs", content=sent, headers={"content-type": "application/json"})
    assert answer.status_code == 202
    assert {name.startswith("AnyIO") for name in threads} == {not on_loop}


@pytest.mark.parametrize("jobs", [1, 4])
@pytest.mark.parametrize("many", [True, False])
def test_a_short_body_that_stands_for_very_many_pairs_is_read_in_another_process(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch, jobs: int, many: bool
) -> None:
    """The bodies of others are read on the event loop meanwhile."""
    read = list[bytes]()
    process: Any = api.app.state.service.bodies.process
    in_process = process.read

    async def noticed(tenant: str, function: Any, body: bytes, *args: Any, **kwargs: Any) -> Any:
        read.append(body)
        return await in_process(tenant, function, body, *args, **kwargs)

    monkeypatch.setattr(process, "read", noticed)
    reader: Any = api.app.state.service.bodies
    vars(reader)["_careful_until"] = 0.0
    items: list[list[int]] = [[]] * (SHORT_PAIRS // jobs // 128 + many)
    labels = [[10**6]] * 128  # of no vocabulary, so that nothing is stored
    job = {"query": [70], "items": items, "label_token_sequences": labels, "label_scoring": "sequence"}
    path, body = ("/v1/jobs", job) if jobs == 1 else ("/v1/jobs/sets", {"jobs": [job] * jobs})
    # The process may have to start first.
    assert "token_id_exceeds_vocab" in api.client.post(path, json=body, timeout=60).text
    assert len(read) == many
    assert reader._careful_until == 0.0


def test_small_bodies_are_read_on_the_event_loop_again_after_a_while(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = iter([-1.0])
    monkeypatch.setattr(body_reader, "_time_limit", lambda _: _time_limit(next(checks, 60.0)))
    monkeypatch.setattr(body_reader, "CAREFUL_SECONDS", 0.0)
    assert _read(api, b" ", b" ") == [False, True]


def test_a_small_body_does_not_wait_for_the_texts_of_others(api: RunningApi) -> None:
    """They may keep all of the tokenizer's own threads busy."""
    service: Any = api.app.state.service
    tokenizer, counter = counted(service.reading.tokenizer)
    batches: list[int] = []

    def count_batch(texts: list[str], *, add_special_tokens: bool) -> Any:
        batches.append(len(texts))
        return CountingBackend.encode_batch_fast(counter, texts, add_special_tokens=add_special_tokens)

    def encode(reading: ReadingContext, _: bytes) -> list[int]:
        return reading.tokenizer.encode("word " * (SMALL_BYTES // 5))

    async def read_both() -> list[list[int]]:
        reader = BodyReader(
            replace(service.reading, model=replace(service.reading.model, tokenizer=tokenizer)),
            Threads(),
            service.bodies.process,
            service.bodies.loader,
        )
        request = Request({"type": "http", "state": {"departure": Departure(lambda _: None)}})
        found = [await reader.read(request, "tenant", encode, b" ")]
        assert batches == []
        return [*found, await reader.read(request, "tenant", encode, b" " * (SMALL_BYTES + 1))]

    vars(counter)["encode_batch_fast"] = count_batch
    vars(counter)["encode"] = counter._backend.encode  # On the event loop the text may be longer than in a thread.
    on_loop, in_thread = asyncio.run(read_both())
    assert on_loop == in_thread
    assert batches == [1]
