"""Which ends of jobs a crash of the database may undo: only those of calls that nobody can ask for again."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.event import listen

from jobs.queue.finish import finish
from jobs.store.database import Database
from jobs.store.records import Idempotency, Origin
from jobs.store.webhook_events import Event, Webhook
from tests.databases import quick_on
from tests.jobs.work import scored, submit, take

CALL = {"origin": Origin.CALL}
JOB = {"origin": Origin.JOB}
KEYED_CALL = {"origin": Origin.CALL, "idempotency": Idempotency("key", "hash")}
TOLD_CALL = {"origin": Origin.CALL, "webhook": Webhook("https://example.org/hook", "example.org", tuple(Event))}


@quick_on("sqlite")
@pytest.mark.parametrize(
    ("jobs", "durable"),
    [
        pytest.param([CALL], False, id="call"),
        pytest.param([CALL, CALL], False, id="calls"),
        pytest.param([JOB], True, id="job"),
        pytest.param([CALL, JOB, CALL], True, id="job among calls"),
        pytest.param([KEYED_CALL], True, id="call with a key"),
        pytest.param([CALL, KEYED_CALL], True, id="call with a key among calls"),
        pytest.param([TOLD_CALL], True, id="call with a webhook"),
    ],
)
def test_a_claim_says_whether_the_end_of_any_of_its_jobs_must_last(
    store: Database, jobs: list[dict[str, Any]], durable: bool
) -> None:
    for job in jobs:
        submit(store, **job)
    claimed = take(store)
    assert len(claimed.chunk_ids) == len(jobs)
    assert claimed.durable is durable


@pytest.mark.parametrize(("durable", "expected"), [(True, "on"), (False, "off")])
def test_a_finish_waits_for_the_disk_if_it_must_last(postgres_store: Database, durable: bool, expected: str) -> None:
    found: list[str] = []

    def ask(connection: Any) -> None:
        found.append(connection.exec_driver_sql("SHOW synchronous_commit").scalar_one())

    submit(postgres_store)
    claimed = take(postgres_store)
    listen(postgres_store.engine, "commit", ask)
    assert finish(postgres_store, claimed.batch_id, scored(claimed), durable=durable).job_ids
    assert found == [expected]
