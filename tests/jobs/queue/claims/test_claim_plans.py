"""How claims search the backlog: through the head of an index, however long it is."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import text

from jobs.queue.claims.claim import claim
from jobs.queue.read import has_waiting
from jobs.store.database import Database
from scoring.options import Priority
from tests.databases import quick_on
from tests.jobs.plans import plans_of
from tests.jobs.work import CARD, finish_all, submit, take


def reads_the_head_of(plan: str, is_sqlite: bool) -> str:
    """Return the index whose head a plan reads, and assert that it sorts nothing."""
    assert "Sort" not in plan
    assert "TEMP B-TREE" not in plan
    # The condition of the search names the tokenizer, after the prefix or the tenant if the index has one.
    condition = r"\(model=\? AND (\w+)" if is_sqlite else r"ix_chunks_.*\n.*Index Cond: .*?AND \(+(\w+)"
    searched = re.search(condition, plan)
    assert searched is not None, plan
    assert searched[1] in ("tokenizer_fingerprint", "prefix_id", "tenant")
    index: str
    (index,) = set(re.findall(r"ix_chunks_\w+", plan))
    return index


def choosing(plans: list[str]) -> list[str]:
    """Return the plans of statements that choose, and not that of PostgreSQL's claim of all that waits: see below."""
    return [plan for plan in plans if "CTE w\n" not in plan and "CTE w'" not in plan]


@quick_on("sqlite")
def test_claims_read_the_head_of_an_index(store: Database) -> None:
    """No claim may sort the backlog or read past a part of it, however long, nor past that of another tokenizer."""
    for _ in range(2):
        submit(store, chunks=1_000, row_tokens=1, work_key="0" * 64)
    for _ in range(8):
        submit(store, chunks=1_000, row_tokens=1)
    finish_all(store, take(store))
    submit(store, prefix=(4,))
    with store.write() as tx:
        tx.execute(text("ANALYZE"))
    with plans_of(store, "ORDER BY chunks.due_at") as plans:
        take(store, budget=10_000_000, max_chunks=900)
        # The head and its group: what comes after a full batch is not looked for.
        assert len(choosing(plans)) == 2
        take(store, budget=10_000_000, max_chunks=9_000)
        assert len(choosing(plans)) == 5
    for plan in choosing(plans):
        assert reads_the_head_of(plan, store.is_sqlite).startswith("ix_chunks_waiting")


@quick_on("postgres")
@pytest.mark.parametrize(
    ("interactive", "analyzed"),
    [
        pytest.param(2_000, True, id="2000-with statistics"),
        pytest.param(2_000, False, id="2000-without", marks=pytest.mark.slow),
        pytest.param(0, True, id="0-with statistics", marks=pytest.mark.slow),
        pytest.param(0, False, id="0-without", marks=pytest.mark.slow),
    ],
)
def test_interactive_work_is_searched_in_an_index_of_its_own(store: Database, interactive: int, analyzed: bool) -> None:
    """Interactive chunks are found without reading a million other chunks."""
    for _ in range(8):
        submit(store, chunks=1_000, row_tokens=1)
    if interactive:
        submit(store, chunks=interactive, row_tokens=1, priority=Priority.INTERACTIVE)
    if analyzed:
        with store.write() as tx:
            tx.execute(text("ANALYZE"))
    with plans_of(store, "chunks.state = 'waiting'") as plans:
        assert has_waiting(store, CARD, interactive_only=True) is bool(interactive)
        claim(store, "worker", CARD, 1_000_000, max_chunks=10, interactive_only=True)
    searches = [plan for plan in plans if "tokenizer_fingerprint" in plan]
    # PostgreSQL has been asked for all that waits before, by a statement of its own: see below. If it found nothing,
    # the claim asks only whether anything waits.
    assert len(searches) == (3 if interactive or store.is_sqlite else 2)
    indexes = [reads_the_head_of(plan, store.is_sqlite) for plan in searches]
    assert set(indexes[:2]) == {"ix_chunks_waiting_interactive"}
    assert not indexes[2:] or indexes[2] in ("ix_chunks_waiting_interactive", "ix_chunks_waiting_lane")


@pytest.mark.parametrize("analyzed", [True, False], ids=["with statistics", "without"])
@pytest.mark.parametrize("interactive_only", [True, False], ids=["interactive work", "any work"])
def test_a_claim_of_all_that_waits_reads_the_head_of_an_index(
    postgres_store: Database, analyzed: bool, interactive_only: bool
) -> None:
    """Its plan is made once for all values of its parameters, so it must not depend on them."""
    for priority in (Priority.NORMAL, Priority.INTERACTIVE):
        for _ in range(4):
            submit(postgres_store, chunks=1_000, row_tokens=1, priority=priority)
    with postgres_store.without_transaction() as tx:
        tx.connection.exec_driver_sql("SET plan_cache_mode TO force_generic_plan")
        if analyzed:
            tx.connection.exec_driver_sql("ANALYZE")
    with plans_of(postgres_store, "WITH w AS") as plans:
        claim(postgres_store, "worker", CARD, 1_000_000, interactive_only=interactive_only)
    [plan] = plans
    index = "ix_chunks_waiting_interactive" if interactive_only else "ix_chunks_waiting"
    now = r"(?:.*InitPlan .*\n.*Result .*\n)?"
    assert re.search(rf"Limit .*\n{now}.*LockRows .*\n.*Index Scan using {index} on chunks ", plan), plan
    assert "Seq Scan on chunks" not in plan
