"""How several jobs are stored in one transaction: none of them costs a statement of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH
from sqlalchemy import func, insert, select, text
from sqlalchemy.event import listen

from jobs.invariants import find_violations
from jobs.queue.accept import Outcome, accept, accept_group
from jobs.queue.claims.taking import _take_all
from jobs.queue.finish import _FINISH, _FINISH_QUICKLY
from jobs.queue.new_jobs import NewJob, store_by_steps
from jobs.queue.storing import MAX_AT_ONCE_BYTES, STORE, store_at_once
from jobs.store.clock import NOW
from jobs.store.database import Database
from jobs.store.hot_statement import HotStatement
from jobs.store.records import Idempotency, Origin, Submission
from jobs.store.tables import chunk_inputs, chunks, jobs, prefixes
from jobs.store.webhook_events import Event, Webhook
from jobs.tenancy.tenants import create_tenant
from scoring.options import Priority
from tests.jobs.work import CARD, accepted, keyed, submission, submit

SECONDS = 60.0
ACME = "acme"


def statements_of(store: Database, action: Callable[[], object]) -> int:
    """Return how many statements an action sends."""
    sent: list[str] = []

    def record(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    listen(store.engine, "before_cursor_execute", record)
    action()
    return len(sent)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: submission(prefix=(n,)),
        lambda n: submission(prefix=(1,), chunks=3),
        lambda n: submission(prefix=(n,), chunks=0),
        lambda n: submission(prefix=(n,), idempotency=Idempotency(f"key {n}", "hash")),
        lambda n: submission(prefix=(n,), tenant=ACME, quota=10_000),
        lambda n: submission(prefix=(n,), tenant=f"tenant-{n % 10}"),
    ],
    ids=["new queries", "a shared query", "without items", "with keys", "with a quota", "of several tenants"],
)
def test_a_group_takes_as_many_statements_as_one_job(store: Database, make: Callable[[int], Submission]) -> None:
    create_tenant(store, ACME, max_waiting_tokens=10_000)
    submit(store, tenant=ACME, quota=10_000)  # the counter is set by the first count
    submit(store, prefix=(1,))
    accept_group(store, [make(number) for number in range(10, 20)])
    taken = {}
    for size in (1, 10, 100):
        group = [make(1_000 * size + number) for number in range(size)]
        outcomes: list[Outcome] = []

        def accept_all(group: list[Submission] = group, outcomes: list[Outcome] = outcomes) -> None:
            outcomes += accept_group(store, group)

        taken[size] = statements_of(store, accept_all)
        assert len({accepted(outcome) for outcome in outcomes}) == size
    assert len(set(taken.values())) == 1, taken


def test_one_statement_stores_the_same_rows_as_several(postgres_store: Database) -> None:
    """PostgreSQL stores jobs with one statement, unless another transaction has just stored the same query."""
    shape = submission(
        chunks=2,
        rows=3,
        priority=Priority.INTERACTIVE,
        origin=Origin.CALL,
        expires_in=5.0,
        metadata={'a \u00e9 \x01 "': "\\u0000"},
        warnings=("a NUL \0 in a warning", "\ud800"),
        webhook=Webhook("https://example.com/", "example.com", (Event.SUCCEEDED,)),
        notice_key=bytes(range(256)),
    )
    plain = submission(metadata={}, notice_key=None)
    new = [NewJob(f"job {n}", one) for n, one in enumerate([shape, plain, shape, plain])]
    with postgres_store.write() as tx:
        assert store_at_once(tx, new[:2]) == {"job 0", "job 1"}
        store_by_steps(tx, new[2:])
    for table, of_job in ((jobs, jobs.c.id), (chunks, chunks.c.job_id)):
        with postgres_store.read() as tx:
            rows = [dict(row._mapping) for row in tx.execute(select(table).order_by(of_job, "id"))]
        half = len(rows) // 2
        for first, second in zip(rows[:half], rows[half:], strict=True):
            for name in first.keys() - {"id", "job_id"}:
                if name in ("created_at", "due_at", "expires_at") and first[name] is not None:
                    assert first[name] == pytest.approx(second[name], abs=SECONDS), name
                else:
                    assert first[name] == second[name], name
    with postgres_store.read() as tx:
        inputs = tx.execute(select(chunk_inputs.c.rows).order_by(chunk_inputs.c.chunk_id)).scalars().all()
        times = tx.execute(select(jobs.c.created_at, jobs.c.expires_at).where(jobs.c.expires_at.is_not(None))).all()
        late = tx.scalar(select(func.count()).select_from(jobs).where(func.abs(NOW - jobs.c.created_at) > SECONDS))
    assert inputs[: len(inputs) // 2] == inputs[len(inputs) // 2 :]
    assert [row.expires_at - row.created_at for row in times] == [pytest.approx(5.0)] * 2
    assert late == 0


def test_plain_jobs_take_one_statement_which_is_a_transaction_of_its_own(postgres_store: Database) -> None:
    with postgres_store.without_transaction() as tx:
        name = tx.connection.engine.url.database
        tx.connection.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_isolation TO 'serializable'")
    postgres_store.engine.dispose()
    submit(postgres_store)
    without: list[bool] = []

    def record(connection: Any, *_: Any) -> None:
        without.append(connection.connection.driver_connection.autocommit)

    listen(postgres_store.engine, "before_cursor_execute", record)
    assert None not in accept_group(postgres_store, [submission(), submission()])
    assert without == [True]
    with postgres_store.without_transaction() as tx:
        assert tx.scalar(text("SHOW transaction_isolation")) == "read committed"


@pytest.mark.parametrize("idempotency", [None, Idempotency("key", "hash")])
def test_a_large_job_is_sent_as_the_bytes_of_its_rows(
    postgres_store: Database, idempotency: Idempotency | None
) -> None:
    """Within the JSON of the one statement, they would take many times as much memory."""
    sent: list[Any] = []

    def record(_connection: Any, _cursor: Any, _statement: str, parameters: Any, *_: Any) -> None:
        of_rows = parameters if isinstance(parameters, list) else [parameters]
        sent.extend(value for of_row in of_rows for value in of_row.values())

    listen(postgres_store.engine, "before_cursor_execute", record)
    large = submission(chunks=3, rows=8, row_tokens=MAX_AT_ONCE_BYTES // 4 // 8 // 2, idempotency=idempotency)
    assert accept(postgres_store, large).replayed is False
    assert sum(len(value) for value in sent if isinstance(value, str)) < 10_000
    with postgres_store.read() as tx:
        stored = tx.scalars(select(chunk_inputs.c.rows).order_by(chunk_inputs.c.chunk_id)).all()
    assert stored == [part.rows.to_bytes() for part in large.chunks]
    assert find_violations(postgres_store, full=True) == []


@pytest.mark.parametrize("statement", [STORE, _take_all(100, True), _take_all(100, False), _FINISH, _FINISH_QUICKLY])
def test_the_driver_remembers_how_to_send_the_statement(statement: HotStatement) -> None:
    """Longer ones it takes apart anew each time."""
    assert len(statement.text) <= MAX_CACHED_STATEMENT_LENGTH


@pytest.mark.parametrize(
    ("origins", "expected"),
    [
        ([Origin.CALL, Origin.CALL], "off"),
        ([Origin.CALL, Origin.JOB], "on"),
        ([Origin.JOB], "on"),
        ([Origin.CALL], "off"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
@pytest.mark.parametrize("keys", [False, True], ids=["plain", "with keys"])
def test_a_group_is_on_disk_before_its_answers_if_any_of_its_jobs_is_promised(
    postgres_store: Database, origins: list[Origin], keys: bool, expected: str
) -> None:
    with postgres_store.write() as tx:  # At its commit, each job notes how it is committed.
        for statement in _NOTE_COMMITS:
            tx.connection.exec_driver_sql(statement)
    shapes = [keyed(f"{n}", origin=one) if keys else submission(origin=one) for n, one in enumerate(origins)]
    accept_group(postgres_store, shapes)
    with postgres_store.read() as tx:
        assert tx.scalars(text("SELECT synchronous_commit FROM commits")).all() == [expected] * len(origins)
        assert tx.scalar(text("SHOW synchronous_commit")) == "on"
        assert tx.scalar(text("SHOW lock_timeout")) == "0"


_NOTE_COMMITS = (
    "CREATE TABLE commits (synchronous_commit text)",
    "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
    "$$BEGIN INSERT INTO commits VALUES (current_setting('synchronous_commit')); RETURN NULL; END$$",
    "CREATE CONSTRAINT TRIGGER note AFTER INSERT ON jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
    "EXECUTE FUNCTION note()",
)


def test_rows_of_a_group_are_looked_up_by_the_index_of_their_keys(store: Database) -> None:
    """However many rows the tables have."""
    many = [
        {
            "tenant": f"tenant-{n % 40}",
            "tokenizer_fingerprint": CARD.work_key,
            "sha256": f"{n}",
            "tokens": b"",
        }
        for n in range(20_000)
    ]
    with store.write() as tx:
        tx.execute(insert(prefixes), many)
    with store.write() as tx:
        tx.connection.exec_driver_sql("ANALYZE prefixes")
    plans: list[str] = []

    def explain(connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT prefixes." if store.is_sqlite else "WITH setting"):
            how = "EXPLAIN QUERY PLAN " if store.is_sqlite else "EXPLAIN "
            found = connection.connection.cursor().execute(how + statement, parameters).fetchall()
            plans.append("\n".join(str(row) for row in found))

    listen(store.engine, "before_cursor_execute", explain)
    accept_group(store, [submission(prefix=(n,), tenant=f"tenant-{n % 40}") for n in range(64)])
    [plan] = plans
    assert ("SEARCH prefixes" if store.is_sqlite else "Index Scan using uq_prefixes") in plan
    assert "SCAN prefixes" not in plan
    assert "Seq Scan on prefixes" not in plan
