"""Each planted violation is found by its own check alone, and a store without violations by none."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from jobs.invariant_watch import EVERY_SECONDS, Watch
from jobs.invariants import CHECKS, EXAMPLES, Cost, find_violations
from jobs.queue.accept import accept
from jobs.queue.claims.claim import claim
from jobs.queue.ending import cancel, delete
from jobs.queue.finish import finish
from jobs.queue.lease import abandon, release
from jobs.queue.sweep import sweep
from jobs.store.database import Database
from jobs.store.records import Idempotency
from jobs.store.webhook_events import Webhook
from tests.databases import quick_on
from tests.jobs.conftest import HandClock
from tests.jobs.work import CARD, at_once, finish_all, scored, submission, submit, take

LEASE = 60.0


class Deployment:
    """A store with a job in each state. Tests break rows by plain SQL, with constraints switched off."""

    def __init__(self, store: Database) -> None:
        self.store = store
        self.succeeded = submit(store, chunks=2, rows=2, prefix=(1,))
        finish_all(store, take(store))
        self.cancelled = submit(store, chunks=3, prefix=(2,))
        finish_all(store, take(store, budget=1))
        cancel(store, "default", self.cancelled)
        self.half_done = submit(store, chunks=4, prefix=(3,), expires_in=1_000_000.0)
        claimed = take(store, budget=1_000)
        finish(store, claimed.batch_id, scored(claimed)[:1])
        self.waiting = submit(store, chunks=2, prefix=(4,))
        self.empty = submit(store, chunks=0, prefix=(5,), webhook=Webhook("https://a.example/", "a.example"))
        self.batch_id = claimed.batch_id

    def break_it(self, statement: str, **values: object) -> None:
        with self.store.write() as tx:
            if self.store.is_sqlite:
                tx.execute(text("PRAGMA defer_foreign_keys=ON"))
            else:
                tx.execute(text("SET LOCAL session_replication_role = replica"))
            assert tx.execute(text(statement), values).rowcount > 0


def of_job(state: str) -> str:
    return f"state = '{state}' AND job_id = :job"


PLANTED: dict[str, Callable[[Deployment], None]] = {
    "claimed_chunk_without_batch": lambda d: d.break_it("DELETE FROM batches WHERE id = :id", id=d.batch_id),
    "lease_long_over": lambda d: d.break_it(
        "UPDATE batches SET lease_until = lease_until - 121 WHERE id = :id", id=d.batch_id
    ),
    "deadline_long_over": lambda d: d.break_it("UPDATE jobs SET expires_at = 0 WHERE id = :job", job=d.half_done),
    "unfinished_chunk_of_ended_job": lambda d: d.break_it(
        f"UPDATE chunks SET state = 'waiting' WHERE {of_job('dropped')}", job=d.cancelled
    ),
    "waiting_chunk_with_batch": lambda d: d.break_it(
        f"UPDATE chunks SET batch_id = 'batch' WHERE {of_job('waiting')}", job=d.waiting
    ),
    "chunk_without_prefix": lambda d: d.break_it(
        "UPDATE chunks SET prefix_id = 0 WHERE job_id = :job AND first_item = 0", job=d.waiting
    ),
    "chunk_without_rows": lambda d: d.break_it(
        "DELETE FROM chunk_inputs WHERE chunk_id IN (SELECT id FROM chunks WHERE job_id = :job)", job=d.waiting
    ),
    "remaining_chunks_miscounted": lambda d: d.break_it(
        "UPDATE jobs SET remaining_chunks = 2 WHERE id = :job", job=d.half_done
    ),
    "scored_items_miscounted": lambda d: d.break_it(
        "UPDATE jobs SET scored_items = 2 WHERE id = :job", job=d.half_done
    ),
    "items_missing": lambda d: d.break_it("UPDATE jobs SET total_items = 5 WHERE id = :job", job=d.succeeded),
    "job_never_ends": lambda d: d.break_it(
        "UPDATE jobs SET status = 'running', finished_at = NULL, remove_at = NULL WHERE id = :job", job=d.succeeded
    ),
    "succeeded_job_incomplete": lambda d: d.break_it(
        "UPDATE jobs SET remaining_chunks = 1 WHERE id = :job", job=d.succeeded
    ),
    "done_chunk_without_scores": lambda d: d.break_it(
        "DELETE FROM chunk_scores WHERE chunk_id = (SELECT min(id) FROM chunks WHERE job_id = :job)", job=d.succeeded
    ),
    "end_without_times": lambda d: d.break_it("UPDATE jobs SET finished_at = NULL WHERE id = :job", job=d.succeeded),
    "end_not_told": lambda d: d.break_it("DELETE FROM webhook_deliveries WHERE job_id = :job", job=d.empty),
    "scores_of_unfinished_chunk": lambda d: d.break_it(
        "INSERT INTO chunk_scores (chunk_id, logits, cached_tokens)"
        f" SELECT id, prefix_id, 0 FROM chunks WHERE {of_job('waiting')}"
        if d.store.is_sqlite
        else "INSERT INTO chunk_scores (chunk_id, logits, cached_tokens)"
        f" SELECT id, ''::bytea, 0 FROM chunks WHERE {of_job('waiting')}",
        job=d.waiting,
    ),
}
NEVER_SAMPLED = {"job_never_ends"}
"""Its job is neither running nor ended, so it is in no sample."""


def broken(store: Database, *, full: bool = True) -> list[str]:
    return [violation.check.name for violation in find_violations(store, full=full)]


def test_every_check_has_a_violation_planted_here() -> None:
    assert PLANTED.keys() == {check.name for check in CHECKS}


@pytest.mark.parametrize("name", PLANTED)
def test_a_violation_is_reported_by_its_check_alone(timed_store: Database, name: str) -> None:
    deployment = Deployment(timed_store)
    assert broken(timed_store) == broken(timed_store, full=False) == []
    PLANTED[name](deployment)
    assert broken(timed_store) == [name]
    (check,) = (check for check in CHECKS if check.name == name)
    seldom = check.cost is Cost.FULL or name in NEVER_SAMPLED
    assert broken(timed_store, full=False) == ([] if seldom else [name])


def test_a_violation_names_a_few_of_many(timed_store: Database) -> None:
    ids = sorted(submit(timed_store, chunks=2) for _ in range(EXAMPLES + 3))
    with timed_store.write() as tx:
        tx.execute(text("UPDATE jobs SET remaining_chunks = 7"))
    (violation,) = find_violations(timed_store, full=True)
    assert len(set(violation.examples)) == EXAMPLES
    assert set(violation.examples) <= set(ids)


def test_a_job_that_is_being_removed_breaks_no_rule(timed_store: Database, clock: HandClock) -> None:
    """Its rows are removed in steps: first the chunks, then the job."""
    deployment = Deployment(timed_store)
    clock.turn(7 * 86_400)
    with timed_store.write() as tx:
        tx.execute(text("DELETE FROM chunks WHERE job_id = :job"), {"job": deployment.succeeded})
    assert "scored_items_miscounted" not in broken(timed_store)


def test_a_sweep_leaves_no_violation_of_the_rules_it_keeps(timed_store: Database, clock: HandClock) -> None:
    Deployment(timed_store)
    clock.turn(1_000_001.0 + 2 * LEASE)
    assert broken(timed_store) == ["lease_long_over", "deadline_long_over"]
    sweep(timed_store)
    assert broken(timed_store) == []


@pytest.mark.slow
@quick_on("sqlite")
def test_nothing_is_reported_while_everything_happens_at_once(store: Database) -> None:
    """Each check reads one snapshot, so it takes no unfinished transaction for a violation."""
    stop = False

    def player(chance: random.Random) -> None:
        nonlocal stop
        try:
            for round_ in range(40):
                key = Idempotency(f"{chance.random()}", "hash")
                job_id = accept(store, submission(chunks=chance.choice([0, 1, 3]), idempotency=key)).job_id
                claimed = claim(store, "worker", CARD, chance.choice([1, 60, 500]))
                if claimed is not None:
                    end = chance.choice([finish_all, finish_all, _release, _abandon])
                    end(store, claimed)
                if round_ % 3 == 0:
                    chance.choice([cancel, delete])(store, "default", job_id)
                if round_ % 10 == 0:
                    sweep(store)
        finally:
            stop = True

    def looker() -> int:
        looks = 0
        while not stop:
            assert find_violations(store, full=bool(looks % 2)) == []
            looks += 1
        return looks

    looks = at_once(5, lambda number: looker() if number < 2 else player(random.Random(number)))
    assert sum(filter(None, looks)) > 2
    assert find_violations(store, full=True) == []


def _release(store: Database, claimed: object) -> object:
    return release(store, claimed.batch_id)  # type: ignore[attr-defined]


def _abandon(store: Database, claimed: object) -> object:
    return abandon(store, claimed.batch_id, "a bad moment")  # type: ignore[attr-defined]


def test_the_watch_checks_once_a_minute_and_logs_each_change_once(timed_store: Database) -> None:
    now = HandClock()
    deployment = Deployment(timed_store)
    watch = Watch(timed_store, now)
    assert watch.violations is None
    with capture_logs() as logs:
        watch.after_sweep()
        assert watch.violations == ()
        PLANTED["remaining_chunks_miscounted"](deployment)
        now.turn(EVERY_SECONDS - 1)
        watch.after_sweep()
        assert watch.violations == (), "it is not yet time"
        for _ in range(3):
            now.turn(EVERY_SECONDS)
            watch.after_sweep()
        deployment.break_it("UPDATE jobs SET remaining_chunks = 3 WHERE id = :job", job=deployment.half_done)
        for _ in range(2):
            now.turn(EVERY_SECONDS)
            watch.after_sweep()
    assert [(line["log_level"], line["check"], line.get("examples")) for line in logs] == [
        ("error", "remaining_chunks_miscounted", [deployment.half_done]),
        ("info", "remaining_chunks_miscounted", None),
    ]
