"""Accepting several jobs in one transaction: each has an outcome of its own, and costs no statement of its own."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH
from sqlalchemy import func, insert, select, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.event import listen

from jobs.invariants import find_violations
from jobs.queue.accept import Outcome, accept, accept_group
from jobs.queue.claim import claim
from jobs.queue.ending import delete
from jobs.queue.idempotency import WantedKey, take_key
from jobs.queue.new_jobs import MAX_AT_ONCE_BYTES, STORE, NewJob, store_at_once, store_by_steps, store_prefixes
from jobs.queue.read import get_job
from jobs.queue.sweep import sweep
from jobs.queue.upload import begin_upload
from jobs.store.clock import NOW
from jobs.store.database import Database, StorageUnavailable, StoreError
from jobs.store.records import Accepted, Idempotency, JobStatus, Origin, Submission
from jobs.store.tables import chunk_inputs, chunks, idempotency_keys, jobs, prefixes, tenants
from jobs.store.webhook_events import Event, Webhook
from jobs.tenancy.tenants import set_tenant
from scoring.error_codes import ErrorCode, RequestError
from scoring.options import Priority
from settings.jobs import StoreSettings
from tests.jobs.work import CARD, at_once, finish_all, submission, submit, waiting_chunks
from tests.services import free_port, wait_until

SECONDS = 60.0
ACME, BOLT = "acme", "bolt"
QUOTA = 40
JOB = 5
"""Tokens of a job of :func:`limited`, its query included. A quota has room for eight."""


def limited(number: int, tenant: str = ACME, **given: Any) -> Submission:
    """Return a job of a tenant with a quota, with a query of its own."""
    return submission(tenant=tenant, quota=QUOTA, prefix=(100 + number,), **given)


def keyed(key: str, body_hash: str = "hash", **given: Any) -> Submission:
    return submission(idempotency=Idempotency(key, body_hash), **given)


def code(outcome: Outcome) -> ErrorCode:
    assert isinstance(outcome, RequestError)
    return outcome.code


def accepted(outcome: Outcome) -> str:
    """Return the id of a job that was accepted now."""
    assert isinstance(outcome, Accepted)
    assert not outcome.replayed
    return outcome.job_id


def count(store: Database, table: Any) -> int:
    with store.read() as tx:
        return int(tx.scalar(select(func.count()).select_from(table)) or 0)


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
    set_tenant(store, ACME, max_waiting_tokens=10_000)
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


def test_each_job_of_a_group_is_stored_as_it_would_be_alone(store: Database) -> None:
    shapes = [
        submission(chunks=2, prefix=(1,), tenant=ACME, priority=Priority.INTERACTIVE, origin=Origin.CALL),
        submission(chunks=0, prefix=(2,), tenant=BOLT),
        submission(chunks=1, rows=3, prefix=(1,), tenant=ACME, expires_in=500.0, metadata={"a": "b"}),
    ]
    ids = [accepted(outcome) for outcome in accept_group(store, shapes)]
    for shape, job_id in zip(shapes, ids, strict=True):
        job = get_job(store, shape.tenant, job_id)
        alone = get_job(store, shape.tenant, accept(store, shape).job_id)
        for name in ("status", "origin", "priority", "total_items", "prompt_tokens", "metadata", "options"):
            assert getattr(job, name) == getattr(alone, name), name
        assert (job.status is JobStatus.SUCCEEDED) == (shape.total_items == 0)
        assert (job.expires_at is None) == (shape.expires_in is None)
    assert count(store, prefixes) == 2
    assert find_violations(store, full=True) == []
    done: set[str] = set()
    while (claimed := claim(store, "worker", CARD, 1_000)) is not None:
        done.update(finish_all(store, claimed).job_ids)
    assert done >= {ids[0], ids[2]}


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


def test_a_job_whose_query_is_stored_by_another_at_the_same_moment_shares_it(postgres_store: Database) -> None:
    waiting = text("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
    accepted_meanwhile: list[str] = []
    with postgres_store.write() as tx:
        store_prefixes(tx, [submission()])
        thread = threading.Thread(target=lambda: accepted_meanwhile.append(submit(postgres_store)))
        thread.start()

        def somebody_waits() -> bool:
            with postgres_store.read() as look:
                return look.scalar(waiting) is not None

        wait_until(somebody_waits, "the job waits for its query")
    thread.join()
    [job_id] = accepted_meanwhile
    assert get_job(postgres_store, "default", job_id).status is JobStatus.QUEUED
    assert count(postgres_store, prefixes) == waiting_chunks(postgres_store) == 1
    assert find_violations(postgres_store, full=True) == []


def test_the_driver_remembers_how_to_send_the_statement() -> None:
    """Longer ones it takes apart anew each time."""
    dialect = make_url("postgresql+psycopg://").get_dialect()()
    sent = STORE.compile(dialect=dialect).string
    assert len(sent) <= MAX_CACHED_STATEMENT_LENGTH


def test_a_job_that_meets_its_quota_is_left_for_itself_and_the_others_are_accepted(store: Database) -> None:
    set_tenant(store, ACME, max_waiting_tokens=QUOTA)
    accept(store, limited(0))
    shapes = [limited(number) for number in range(1, 10)]
    shapes.insert(4, submission())
    outcomes = accept_group(store, shapes)
    assert [outcome is None for outcome in outcomes] == [False] * 8 + [True] * 2, "room is given in order of arrival"
    for shape, outcome in zip(shapes, outcomes, strict=True):
        if outcome is None:
            with pytest.raises(RequestError) as refused:
                accept(store, shape)
            assert refused.value.code is ErrorCode.QUOTA_EXCEEDED
    with store.read() as tx:
        assert tx.scalar(select(func.sum(chunks.c.token_count) + 8).where(chunks.c.tenant == ACME)) == QUOTA


def test_racing_groups_do_not_exceed_the_quota(store: Database) -> None:
    set_tenant(store, ACME, max_waiting_tokens=QUOTA)
    set_tenant(store, BOLT, max_waiting_tokens=QUOTA)

    def accept_some(number: int) -> int:
        shapes = [limited(10 * number + n, chance) for n in range(6) for chance in (ACME, BOLT)]
        stored = 0
        for shape, outcome in zip(shapes, accept_group(store, shapes), strict=True):
            if outcome is None:
                try:
                    outcome = accept(store, shape)
                except RequestError as error:
                    outcome = error
            stored += isinstance(outcome, Accepted)
        return stored

    assert sum(at_once(6, accept_some)) == 2 * QUOTA // JOB
    assert waiting_chunks(store) == 2 * QUOTA // JOB
    assert find_violations(store, full=True) == []


def test_a_group_does_not_wait_while_the_work_of_a_tenant_is_counted(postgres_store: Database) -> None:
    for tenant in (ACME, BOLT):
        set_tenant(postgres_store, tenant, max_waiting_tokens=QUOTA)
        accept(postgres_store, limited(0, tenant))
    with postgres_store.write() as tx:
        tx.execute(select(tenants.c.name).where(tenants.c.name == ACME).with_for_update(key_share=True))
        outcomes = accept_group(postgres_store, [limited(1), limited(2, BOLT), submission(), limited(3)])
    assert [outcome is None for outcome in outcomes] == [True, False, False, True]
    assert waiting_chunks(postgres_store) == 4, "what was rolled back is not stored"
    assert accept(postgres_store, limited(1)).job_id


@pytest.mark.parametrize(
    "given", [{"idempotency": Idempotency("key", "hash")}, {"prefix": (77,)}], ids=["a key", "a query"]
)
def test_a_group_does_not_wait_for_a_long_transaction_that_wants_the_same(
    postgres_store: Database, given: dict[str, Any]
) -> None:
    """Such as that of a large job with the same Idempotency-Key, or the same new query."""
    with postgres_store.write() as tx:
        if "idempotency" in given:
            take_key(tx, WantedKey("default", "key", "hash", "job of the other"))
        else:
            store_prefixes(tx, [submission(**given)])
        # Nobody but this thread could end the transaction that has it.
        assert accept_group(postgres_store, [submission(tenant=BOLT), submission(**given)]) == [None, None]
        assert accept(postgres_store, submission(tenant=BOLT)).job_id
        tx.connection.rollback()
    first, second = accept_group(postgres_store, [submission(tenant=BOLT), submission(**given)])
    assert accepted(first) != accepted(second)


def test_each_job_of_a_group_gets_the_answer_of_its_own_key(store: Database) -> None:
    first = accept(store, keyed("used"))
    begin_upload(store, submission(chunks=0), "receiving")
    outcomes = accept_group(
        store, [keyed("used", "other"), keyed("new"), keyed("used"), keyed("receiving"), submission(), keyed("new")]
    )
    assert code(outcomes[0]) is ErrorCode.IDEMPOTENCY_KEY_REUSED
    assert accepted(outcomes[1])
    assert outcomes[2] is None, "it has the key of an earlier one"
    assert code(outcomes[3]) is ErrorCode.IDEMPOTENCY_IN_PROGRESS
    assert accepted(outcomes[4])
    assert outcomes[5] is None
    again = accept_group(store, [keyed("used"), keyed("new")])
    assert again == [Accepted(first.job_id, replayed=True), Accepted(accepted(outcomes[1]), replayed=True)]
    assert count(store, jobs) == 4
    assert find_violations(store, full=True) == []


def test_a_tenant_does_not_meet_the_key_of_another(store: Database) -> None:
    outcomes = accept_group(store, [keyed("same", tenant=ACME), keyed("same", "other", tenant=BOLT)])
    assert accepted(outcomes[0]) != accepted(outcomes[1])


def test_a_key_whose_job_was_deleted_is_taken_anew_in_a_group(store: Database) -> None:
    old = accept(store, keyed("key", "old")).job_id
    with store.write() as tx:
        tx.execute(update(jobs).where(jobs.c.id == old).values(remove_at=0.0))  # no reader sees it any more
    [outcome, _] = accept_group(store, [keyed("key", "new"), submission()])
    new = accepted(outcome)
    sweep(store)
    with store.read() as tx:
        assert tx.execute(select(idempotency_keys.c.job_id, idempotency_keys.c.body_hash)).all() == [(new, "new")]
    assert accept(store, keyed("key", "new")) == Accepted(new, replayed=True)


def test_a_key_stays_with_its_job_while_the_job_of_another_key_is_gone(store: Database) -> None:
    kept, gone = (accept(store, keyed(name)).job_id for name in ("kept", "gone"))
    with store.write() as tx:
        tx.execute(update(jobs).where(jobs.c.id == gone).values(remove_at=0.0))
    assert accept(store, keyed("kept")) == Accepted(kept, replayed=True)
    again = accept_group(store, [keyed("kept"), keyed("gone")])
    assert again[0] == Accepted(kept, replayed=True)
    assert accepted(again[1]) != gone


def test_a_job_that_the_database_refuses_is_found_by_accepting_each_by_itself(store: Database) -> None:
    shapes = [submission(), submission(model=None), keyed("key")]
    assert accept_group(store, shapes) == [None, None, None]
    assert count(store, jobs) == count(store, idempotency_keys) == 0
    with pytest.raises(StoreError):
        accept(store, shapes[1])
    [alone] = accept_group(store, [shapes[1]])
    assert isinstance(alone, StoreError)
    assert accept(store, shapes[0]).job_id
    assert accept(store, shapes[2]).job_id


def test_an_outage_is_told_for_the_whole_group() -> None:
    nowhere = f"postgresql+psycopg://nobody@127.0.0.1:{free_port()}/nothing"
    database = Database.open(StoreSettings(database_url=nowhere))
    with pytest.raises(StorageUnavailable):
        accept_group(database, [submission(), submission()])
    database.close()


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


def test_groups_that_want_the_same_rows_in_different_orders_do_not_deadlock(store: Database) -> None:
    """Keys, queries, flows and quotas are shared, while jobs with keys are deleted and swept."""
    tenants_of_all = [f"tenant-{number}" for number in range(4)]
    for tenant in tenants_of_all:
        set_tenant(store, tenant, max_waiting_tokens=1_000_000)
        submit(store, tenant=tenant, quota=1_000_000)

    def make(chance: random.Random) -> Submission:
        key = Idempotency(f"key {chance.randrange(12)}", "hash") if chance.random() < 0.7 else None
        return submission(
            tenant=chance.choice(tenants_of_all),
            quota=1_000_000,
            prefix=(chance.randrange(8),),
            idempotency=key,
            priority=chance.choice(list(Priority)),
        )

    def act(number: int) -> None:
        chance = random.Random(number)
        for _ in range(12):
            match number:
                case 0:
                    take_some = claim(store, "worker", CARD, 200)
                    if take_some is not None:
                        finish_all(store, take_some)
                    sweep(store)
                case 1:
                    with store.read() as tx:
                        known = tx.execute(select(jobs.c.tenant, jobs.c.id)).all()
                    for tenant, job_id in chance.sample(known, min(6, len(known))):
                        with suppress(RequestError):
                            delete(store, tenant, job_id)
                case _:
                    shapes = [make(chance) for _ in range(10)]
                    for shape, outcome in zip(shapes, accept_group(store, shapes), strict=True):
                        assert outcome is None or isinstance(outcome, Accepted)
                        if outcome is None:
                            assert accept(store, shape).job_id

    at_once(6, act)
    assert find_violations(store, full=True) == []
    with store.read() as tx:
        keys = tx.execute(select(idempotency_keys.c.tenant, idempotency_keys.c.key)).all()
    assert len(set(keys)) == len(keys)


def test_rows_of_a_group_are_looked_up_by_the_index_of_their_keys(store: Database) -> None:
    """However many rows the tables have."""
    many = [
        {
            "tenant": f"tenant-{n % 40}",
            "tokenizer_fingerprint": CARD.tokenizer_fingerprint,
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
