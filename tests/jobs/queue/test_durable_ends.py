"""Which ends of jobs a crash of the database may undo: only those of calls that nobody can ask for again."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.event import listen

from jobs.queue.finish import finish
from jobs.queue.lease import release
from jobs.queue.read import get_job
from jobs.store.database import Database
from jobs.store.records import Idempotency, JobStatus, Origin
from jobs.store.webhook_events import Event, Webhook
from jobs.webhooks.tables import webhook_deliveries
from tests.databases import quick_on
from tests.jobs.work import scored, submit, take

CALL = {"origin": Origin.CALL}
JOB = {"origin": Origin.JOB}
KEYED_CALL = {"origin": Origin.CALL, "idempotency": Idempotency("key", "hash")}
TOLD_CALL = {"origin": Origin.CALL, "webhook": Webhook("https://example.org/hook", "example.org", tuple(Event))}


def note_commits(store: Database, table: str) -> None:
    """Have each statement that stores rows in a table of PostgreSQL note how it will be committed."""
    with store.write() as tx:
        tx.execute(
            text(
                "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO noted VALUES"
                "(current_setting('synchronous_commit')); RETURN NULL; END $$"
            )
        )
        tx.execute(text("CREATE TABLE noted (setting text)"))
        tx.execute(text(f"CREATE TRIGGER note AFTER INSERT ON {table} EXECUTE FUNCTION note()"))


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


def test_the_end_of_a_job_waits_for_the_disk(postgres_store: Database) -> None:
    found: list[str] = []

    def ask(connection: Any) -> None:
        found.append(connection.exec_driver_sql("SHOW synchronous_commit").scalar_one())

    submit(postgres_store)
    claimed = take(postgres_store)
    listen(postgres_store.engine, "commit", ask)
    assert finish(postgres_store, claimed.batch_id, scored(claimed)).job_ids
    assert found == ["on"]


def test_the_end_of_a_call_is_one_statement_that_does_not_wait_for_the_disk(postgres_store: Database) -> None:
    """It changes the setting for itself alone."""
    note_commits(postgres_store, "chunk_scores")
    for _ in range(8):
        submit(postgres_store, **CALL)
    claimed = take(postgres_store)
    sent: list[str] = []
    listen(postgres_store.engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    assert len(finish(postgres_store, claimed.batch_id, scored(claimed), durable=claimed.durable).job_ids) == 8
    assert len(sent) == 1
    with postgres_store.without_transaction() as tx:
        assert tx.scalar(text("SELECT setting FROM noted")) == "off"
        assert tx.scalar(text("SHOW synchronous_commit")) == "on"


def test_a_claim_of_all_that_waits_is_one_statement_that_does_not_wait_for_the_disk(postgres_store: Database) -> None:
    note_commits(postgres_store, "batches")
    for _ in range(8):
        submit(postgres_store)
    sent: list[str] = []
    listen(postgres_store.engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    assert len(take(postgres_store).chunk_ids) == 8
    assert len(sent) == 1
    with postgres_store.without_transaction() as tx:
        assert tx.scalar(text("SELECT setting FROM noted")) == "off"
        assert tx.scalar(text("SHOW synchronous_commit")) == "on"


def test_a_late_end_of_a_call_changes_nothing(postgres_store: Database) -> None:
    """The fence holds without a transaction, too."""
    job_id = submit(postgres_store, **CALL)
    late = take(postgres_store)
    release(postgres_store, late.batch_id)
    again = take(postgres_store)
    refused = finish(postgres_store, late.batch_id, scored(late), durable=False)
    assert (refused.job_ids, refused.fenced, refused.results) == ((), 1, {})
    assert get_job(postgres_store, "default", job_id).status is JobStatus.RUNNING
    assert finish(postgres_store, again.batch_id, scored(again), durable=False).job_ids == (job_id,)
    assert finish(postgres_store, again.batch_id, scored(again), durable=False).fenced == 1
    assert get_job(postgres_store, "default", job_id).status is JobStatus.SUCCEEDED


@quick_on("sqlite")
def test_a_job_whose_chunks_are_finished_together_has_one_delivery(store: Database) -> None:
    job_id = submit(store, chunks=3, webhook=TOLD_CALL["webhook"])
    claimed = take(store)
    assert finish(store, claimed.batch_id, scored(claimed)).job_ids == (job_id,)
    with store.read() as tx:
        assert list(tx.scalars(select(webhook_deliveries.c.job_id))) == [job_id]
