"""What becomes of each job of a group that is accepted together: each has an outcome of its own."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.event import listen

from jobs.invariants import find_violations
from jobs.queue import accept as accepting
from jobs.queue.accept import Outcome, accept, accept_group
from jobs.queue.claims.claim import claim
from jobs.queue.ending import delete
from jobs.queue.idempotency import WantedKey, take_key
from jobs.queue.new_jobs import store_prefixes
from jobs.queue.read import get_job
from jobs.queue.sweep import sweep
from jobs.queue.upload import begin_upload
from jobs.store.database import Database, StorageUnavailable, StoreError
from jobs.store.records import Accepted, Idempotency, JobStatus, Origin, Submission
from jobs.store.tables import chunks, flows, idempotency_keys, jobs, prefixes, tenants
from jobs.tenancy.tenants import create_tenant
from scoring.error_codes import ErrorCode, RequestError
from scoring.options import Priority
from settings.store import StoreSettings
from tests.jobs.work import (
    CARD,
    accepted,
    at_once,
    finish_all,
    keyed,
    somebody_waits,
    submission,
    submit,
    waiting_chunks,
)
from tests.services import free_port, wait_until

ACME, BOLT = "acme", "bolt"
QUOTA = 40
JOB = 5
"""Tokens of a job of :func:`limited`, its query included. A quota has room for eight."""


def limited(number: int, tenant: str = ACME, **given: Any) -> Submission:
    """Return a job of a tenant with a quota, with a query of its own."""
    return submission(tenant=tenant, quota=QUOTA, prefix=(100 + number,), **given)


def code(outcome: Outcome) -> ErrorCode:
    assert isinstance(outcome, RequestError)
    return outcome.code


def count(store: Database, table: Any) -> int:
    with store.read() as tx:
        return int(tx.scalar(select(func.count()).select_from(table)) or 0)


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


def test_a_job_that_meets_its_quota_is_left_for_itself_and_the_others_are_accepted(store: Database) -> None:
    create_tenant(store, ACME, max_waiting_tokens=QUOTA)
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
        assert tx.scalar(select(func.sum(chunks.c.token_count)).where(chunks.c.tenant == ACME)) == QUOTA


def test_racing_groups_do_not_exceed_the_quota(store: Database) -> None:
    create_tenant(store, ACME, max_waiting_tokens=QUOTA)
    create_tenant(store, BOLT, max_waiting_tokens=QUOTA)

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
        create_tenant(postgres_store, tenant, max_waiting_tokens=QUOTA)
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


class _UndoneError(Exception):
    """Ends a transaction without storing anything."""


def test_a_group_that_is_ended_because_of_a_deadlock_is_tried_again(
    postgres_store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another transaction holds a flow that the group opens, and wants the Idempotency-Key that the group has taken."""
    submit(postgres_store)
    with postgres_store.write() as tx:
        tx.execute(update(flows).values(is_open=False))
    with postgres_store.without_transaction() as tx:  # The group looks for a deadlock when it has waited for so long.
        name = tx.connection.engine.url.database
        tx.connection.exec_driver_sql(f"ALTER DATABASE {name} SET deadlock_timeout TO '1s'")
    postgres_store.engine.dispose()
    monkeypatch.setattr(accepting, "GROUP_LOCK_SECONDS", 60.0)
    holds = threading.Event()

    def rival() -> None:
        with suppress(_UndoneError), postgres_store.write() as tx:
            tx.execute(text("SET LOCAL deadlock_timeout TO '60s'"))  # so that the group is ended
            tx.execute(text("SELECT 1 FROM lanes FOR UPDATE"))
            holds.set()
            wait_until(lambda: somebody_waits(postgres_store), "the group has its key, and waits for the flow")
            take_key(tx, WantedKey("default", "key", "hash", "job_of_the_rival"))
            raise _UndoneError

    ended: list[str] = []
    listen(postgres_store.engine, "handle_error", lambda context: ended.append(str(context.original_exception)))
    thread = threading.Thread(target=rival)
    thread.start()
    holds.wait()
    outcomes = accept_group(postgres_store, [keyed("key"), submission()])
    thread.join()
    # A second try may meet the other transaction once more.
    assert {error.partition("\n")[0] for error in ended} == {"deadlock detected"}
    assert len({accepted(outcome) for outcome in outcomes}) == 2
    assert waiting_chunks(postgres_store) == 3
    assert find_violations(postgres_store, full=True) == []


def test_groups_that_want_the_same_rows_in_different_orders_do_not_deadlock(store: Database) -> None:
    """Keys, queries, flows and quotas are shared, while jobs with keys are deleted and swept."""
    tenants_of_all = [f"tenant-{number}" for number in range(4)]
    for tenant in tenants_of_all:
        create_tenant(store, tenant, max_waiting_tokens=1_000_000)
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
