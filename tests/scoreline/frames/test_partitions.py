"""Parts of a table that several processes score, as those of Ray and Spark do."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from scoreline import Client, JobEnded, Unreachable
from scoreline.client import asynchronous, connection
from scoreline.client.exchange import sending
from scoreline.frames.partitions import Counting, Scoring, of_parts, reached
from scoreline.frames.streams import served
from tests.scoreline.frames.conftest import ITEMS, numbers
from tests.scoreline.running import Up
from tests.services import free_port, wait_until


def test_the_parts_of_a_run_score_nothing_twice(
    reviews: pa.Table, asked: dict[str, Any], expected: list[list[float]], client: Client
) -> None:
    wanted = of_parts({"item_column": "review", "run": "nightly", **asked}, "test")
    batches = reviews.to_batches()
    first = pa.Table.from_batches(Scoring(wanted)(batches))
    before = len(list(client.jobs()))
    again = pa.Table.from_batches(
        Scoring(of_parts({"item_column": "review", "run": "nightly", **asked}, "test"))(batches)
    )
    assert numbers(first) == numbers(again) == expected
    assert len(list(client.jobs())) == before
    assert next(client.jobs()).metadata == {"run": "nightly"}

    turned = pa.Table.from_batches(Scoring(wanted)(reviews.take(list(range(len(ITEMS)))[::-1]).to_batches()))
    assert numbers(turned) == expected[::-1]
    assert len(list(client.jobs())) == before, "the order of rows does not matter"

    other = of_parts({"item_column": "review", "run": "nightly", **asked, "apply_softmax": True}, "test")
    assert numbers(pa.Table.from_batches(Scoring(other)(batches))) != expected
    counted = pa.Table.from_batches(Counting(wanted, tokens=True)(batches))
    assert sum(counted["items"].to_pylist()) == len(ITEMS)
    assert not list(Scoring(wanted)([]))


def test_a_process_that_begins_while_the_service_is_away_waits_for_it(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[object] = []

    def unreachable(*of_request: Any) -> Unreachable:
        failures.append(of_request)
        return connection.unreachable(*of_request)

    monkeypatch.setattr(asynchronous, "unreachable", unreachable)
    monkeypatch.setattr(sending, "FIRST_CONTACT_SECONDS", 0.0)
    wanted = of_parts({"item_column": "review", **asked, "patience": 0.5}, "test")
    for asking, is_waited_for in ((wanted, False), (reached(wanted), True)):
        failures.clear()
        with pytest.raises(Unreachable):
            served(replace(asking, url=f"http://127.0.0.1:{free_port()}"))
        assert (len(failures) > 1) == is_waited_for


def test_a_part_whose_job_was_cancelled_is_scored_when_it_is_tried_again(
    shared_up: Up, reviews: pa.Table, asked: dict[str, Any], expected: list[list[float]], client: Client
) -> None:
    wanted = of_parts({"item_column": "review", **asked}, "test")
    with shared_up.worker_frozen():
        part = Scoring(wanted)(reviews.to_batches())
        errors: list[BaseException] = []

        def cancel_it() -> bool:
            return bool(client.cancel_all(metadata={"run": str(wanted.plan.shared_run)}))

        def score() -> None:
            try:
                list(part)
            except JobEnded as error:
                errors.append(error)

        scoring = threading.Thread(target=score)
        scoring.start()
        wait_until(cancel_it, "its job is there, and is cancelled")
        scoring.join()
    assert len(errors) == 1
    assert numbers(pa.Table.from_batches(Scoring(wanted)(reviews.to_batches()))) == expected
