"""Fair shares: tenants take turns whatever the lengths of their backlogs, and no work waits while a worker is idle."""

from __future__ import annotations

import re
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

import pytest
from sqlalchemy import delete, func, select, update
from sqlalchemy.event import listen

import jobs.queue.claims.claim_choice
from jobs.queue.accept import accept_group
from jobs.queue.claims.claim import claim
from jobs.queue.claims.claim_choice import FEW_CHUNKS
from jobs.queue.fair_shares import Flow, open_flows
from jobs.queue.lease import release
from jobs.queue.read import get_job
from jobs.queue.statistics import TenantWork, WaitingWork, count_waiting
from jobs.queue.worker_registry import register, unregister
from jobs.store.database import Database
from jobs.store.records import Claim, JobStatus, WorkerRecord
from jobs.store.tables import chunks, flows
from jobs.tenancy.tenants import create_tenant
from scoring.options import Priority
from scoring.work import work_of_prefix
from tests.databases import ON_BOTH, store_url  # noqa: F401 (a fixture)
from tests.jobs.conftest import HandClock
from tests.jobs.work import CARD, MODEL, at_once, finish_all, somebody_waits, submission, submit, take
from tests.services import wait_until
from tests.work_done import work_done

BUDGET = 100
CARD_OF_LONG_PREFIXES = replace(CARD, context_length=8_192)


def tenants_of(store: Database, claimed: Claim) -> Counter[str]:
    """Return how many chunks of each tenant a claim has."""
    with store.read() as tx:
        return Counter(tx.scalars(select(chunks.c.tenant).where(chunks.c.id.in_(claimed.chunk_ids))))


def flows_that_are_open(store: Database) -> set[tuple[str, bool]]:
    """Return the open flows: tenant, and whether the flow is interactive."""
    with store.read() as tx:
        found = tx.execute(select(flows.c.tenant, flows.c.interactive).where(flows.c.is_open))
        return {(row.tenant, row.interactive) for row in found}


def test_tenants_get_equal_shares_whatever_they_submitted_first(store: Database) -> None:
    submit(store, tenant="early", chunks=200, prefix=(1, 2))
    submit(store, tenant="late", chunks=200, prefix=(3, 4))
    submit(store, tenant="latest", chunks=200, prefix=(5, 6))
    claimed: Counter[str] = Counter()
    for _ in range(9):
        claimed += tenants_of(store, take(store, budget=BUDGET))
    assert claimed.keys() == {"early", "late", "latest"}
    assert max(claimed.values()) - min(claimed.values()) <= 5


@pytest.mark.parametrize("priority", Priority)
def test_a_long_backlog_delays_another_tenants_job_by_one_claim(store: Database, priority: Priority) -> None:
    submit(store, tenant="large", chunks=500, priority=priority)
    for _ in range(3):
        take(store, budget=BUDGET)
    submit(store, tenant="small", prefix=(7, 8), priority=priority)
    soon = tenants_of(store, take(store, budget=BUDGET)) + tenants_of(store, take(store, budget=BUDGET))
    assert soon["small"] == 1


@ON_BOTH
def test_an_interactive_backlog_delays_another_tenants_job_by_one_claim_and_jobs_of_its_own_tenant_wait(
    timed_store: Database, clock: HandClock
) -> None:
    submit(timed_store, tenant="large", chunks=500, priority=Priority.INTERACTIVE, prefix=(1, 2))
    submit(timed_store, tenant="large", chunks=10, prefix=(3, 4))
    clock.turn(100)
    submit(timed_store, tenant="small", prefix=(7, 8))
    first = take(timed_store, budget=BUDGET)
    assert first.interactive
    assert first.work_left
    second = take(timed_store, budget=BUDGET, after_interactive=True)
    assert not second.interactive
    assert tenants_of(timed_store, second)["small"] == 1
    finish_all(timed_store, take(timed_store, budget=10 * BUDGET, interactive_only=True))
    submit(timed_store, tenant="large", chunks=10, prefix=(5, 6))
    assert take(timed_store, budget=BUDGET, after_interactive=True).interactive, "nobody else waits"


@pytest.mark.slow
def test_a_backlog_of_twenty_thousand_chunks_delays_another_tenants_job_by_one_claim(store: Database) -> None:
    for prefix in range(10):
        submit(store, tenant="large", chunks=2_000, prefix=(100 + prefix,))
    take(store, budget=BUDGET)
    submit(store, tenant="small", prefix=(7, 8))
    soon = tenants_of(store, take(store, budget=BUDGET)) + tenants_of(store, take(store, budget=BUDGET))
    assert soon["small"] == 1


@ON_BOTH
def test_a_claim_takes_work_of_another_tenant_where_the_first_has_too_little(store: Database) -> None:
    submit(store, tenant="1", chunks=2, prefix=(7, 8))
    submit(store, tenant="2", chunks=10)
    assert tenants_of(store, take(store, budget=BUDGET)) == {"1": 2, "2": 10}


def assert_served_alike(store: Database) -> None:
    """The next claims take as much of the tenant that was idle as of the busy one."""
    claimed: Counter[str] = Counter()
    for _ in range(4):
        claimed += tenants_of(store, take(store, budget=BUDGET))
    assert abs(claimed["idle"] - claimed["busy"]) <= 25


def test_a_tenant_without_work_saves_up_no_share(store: Database) -> None:
    submit(store, tenant="idle", prefix=(7, 8))
    finish_all(store, take(store))
    submit(store, tenant="busy", chunks=500)
    for _ in range(5):
        take(store, budget=BUDGET)
    submit(store, tenant="idle", chunks=500, prefix=(7, 8))
    assert_served_alike(store)


@ON_BOTH
@pytest.mark.parametrize("few", [2, FEW_CHUNKS])
def test_a_tenant_whose_work_no_live_worker_can_score_lets_nobody_save_up_a_share(
    store: Database, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs.queue.claims.claim_choice, "FEW_CHUNKS", few)
    other = replace(CARD, tokenizer_fingerprint="other")
    register(store, WorkerRecord("other", other, "w", "cpu", "float32"))
    for tenant, work_key in {"stuck": "retired", "of the other": other.work_key}.items():
        submit(store, tenant=tenant, work_key=work_key)
    submit(store, tenant="busy", chunks=200)
    for _ in range(2):
        take(store, budget=BUDGET)
    assert {tenant for tenant, _ in flows_that_are_open(store)} == {"of the other", "busy"}
    unregister(store, "other")
    for _ in range(3):
        take(store, budget=BUDGET)
    submit(store, tenant="idle", chunks=200, prefix=(7, 8))
    assert_served_alike(store)
    register(store, WorkerRecord("other", other, "w", "cpu", "float32"))
    assert claim(store, "other", other, BUDGET) is not None
    assert ("of the other", False) in flows_that_are_open(store)


def test_a_tenant_saves_nothing_up_while_no_tenant_has_work(store: Database) -> None:
    submit(store, tenant="busy", chunks=500)
    while claimed := claim(store, "worker", CARD, BUDGET):
        finish_all(store, claimed)
    submit(store, tenant="other", chunks=1)
    finish_all(store, take(store))
    assert claim(store, "worker", CARD, BUDGET) is None
    submit(store, tenant="newcomer", chunks=500, prefix=(7, 8))
    submit(store, tenant="busy", prefix=(3, 4))
    soon = tenants_of(store, take(store, budget=BUDGET)) + tenants_of(store, take(store, budget=BUDGET))
    assert soon["busy"] == 1


@ON_BOTH
def test_shares_are_measured_in_work_and_not_in_chunks(store: Database) -> None:
    submit(store, tenant="long items", chunks=100, row_tokens=58, prefix=(1, 2))
    submit(store, tenant="short items", chunks=1_000, row_tokens=4, prefix=(3, 4))
    claimed: Counter[str] = Counter()
    for _ in range(20):
        claimed += tenants_of(store, take(store, budget=BUDGET))
    assert 8 <= claimed["short items"] / claimed["long items"] <= 12


def test_a_tenant_of_three_times_the_weight_gets_three_quarters(store: Database) -> None:
    create_tenant(store, "heavy", weight=3.0)
    submit(store, tenant="heavy", chunks=1_000, prefix=(1, 2))
    submit(store, tenant="light", chunks=1_000, prefix=(3, 4))
    claimed: Counter[str] = Counter()
    for _ in range(40):
        claimed += tenants_of(store, take(store, budget=BUDGET))
    assert 0.7 <= claimed["heavy"] / claimed.total() <= 0.8


def test_claims_at_the_same_time_charge_all_that_they_take(store: Database) -> None:
    for tenant in ("a", "b", "c"):
        submit(store, tenant=tenant, chunks=150, prefix=(1,))

    def claim_some(number: int) -> int:
        claims = [claim(store, f"worker {number}", CARD, BUDGET) for _ in range(5)]
        return sum(work_done(one.groups, dict.fromkeys(one.chunk_ids, 0)) for one in claims if one)

    taken = sum(at_once(6, claim_some))
    with store.read() as tx:
        assert tx.scalar(select(func.sum(flows.c.virtual_time))) == taken


@ON_BOTH
def test_interactive_and_other_work_of_a_tenant_are_charged_apart(store: Database) -> None:
    submit(store, tenant="both", chunks=100, priority=Priority.INTERACTIVE, prefix=(1, 2))
    for _ in range(4):
        take(store, budget=BUDGET)
    submit(store, tenant="other", chunks=100, prefix=(3, 4))
    submit(store, tenant="both", chunks=100, prefix=(5, 6))
    claimed: Counter[str] = Counter()
    while len(claimed) < 2:
        claimed += tenants_of(store, take(store, budget=BUDGET))
    with store.read() as tx:
        calls, jobs = tx.scalars(
            select(flows.c.virtual_time).where(flows.c.tenant == "both").order_by(flows.c.interactive.desc())
        )
    assert calls > jobs


@ON_BOTH
def test_claims_that_race_share_fairly_too(store: Database) -> None:
    for tenant in range(4):
        submit(store, tenant=f"tenant {tenant}", chunks=250, prefix=(tenant,))
    claimed: Counter[str] = Counter()
    for batch in at_once(8, lambda _: [take(store, budget=BUDGET) for _ in range(3)]):
        for one in batch:
            claimed += tenants_of(store, one)
    with store.read() as tx:
        charged = {row.tenant: row.virtual_time for row in tx.execute(select(flows))}
    assert charged.keys() == claimed.keys()
    for tenant, virtual_time in charged.items():
        assert virtual_time >= 4 * claimed[tenant]
    assert max(charged.values()) - min(charged.values()) <= 8 * BUDGET


def test_a_flow_is_closed_once_it_is_found_empty_and_opened_with_its_next_work(store: Database) -> None:
    submit(store, tenant="small", prefix=(7, 8))
    submit(store, tenant="large", chunks=500)
    take(store, budget=BUDGET)
    while ("small", False) in flows_that_are_open(store):
        take(store, budget=BUDGET)
    assert flows_that_are_open(store) == {("large", False)}
    submit(store, tenant="small", prefix=(7, 8))
    assert flows_that_are_open(store) == {("large", False), ("small", False)}


def test_released_work_opens_its_flow(store: Database) -> None:
    submit(store, tenant="small", prefix=(7, 8))
    claimed = take(store, budget=BUDGET)
    submit(store, tenant="large", chunks=500)
    while ("small", False) in flows_that_are_open(store):
        take(store, budget=BUDGET)
    release(store, claimed.batch_id)
    assert ("small", False) in flows_that_are_open(store)


def test_work_without_a_flow_is_claimed(store: Database) -> None:
    """An API of an older version accepts such work."""
    submit(store, tenant="unknown", chunks=3)
    with store.write() as tx:
        tx.execute(delete(flows))
    assert tenants_of(store, take(store)) == {"unknown": 3}


def test_a_flow_to_which_a_transaction_adds_work_is_not_closed(postgres_store: Database) -> None:
    """A claim that finds the flow empty neither sees nor waits for work that another transaction is about to commit."""
    submit(postgres_store, tenant="small", prefix=(7, 8))
    finish_all(postgres_store, take(postgres_store))
    submit(postgres_store, tenant="large", chunks=500)
    with ExitStack() as adding:
        tx = adding.enter_context(postgres_store.write())
        open_flows(tx, [Flow(MODEL, "small", False)])
        for _ in range(5):
            take(postgres_store, budget=BUDGET)
        assert ("small", False) in flows_that_are_open(postgres_store)
    while ("small", False) in flows_that_are_open(postgres_store):
        take(postgres_store, budget=BUDGET)


@ON_BOTH
@pytest.mark.parametrize("interactive", [True, False])
@pytest.mark.parametrize("own_chunks", [0, 30])
def test_the_work_ahead_of_a_new_job_is_estimated_by_the_shares_of_the_tenants(
    store: Database, own_chunks: int, interactive: bool
) -> None:
    priority = Priority.INTERACTIVE if interactive else Priority.NORMAL
    create_tenant(store, "heavy", weight=2.0)
    submit(store, tenant="heavy", chunks=1_000, prefix=(1, 2), priority=priority)
    submit(store, tenant="short", chunks=10, prefix=(3, 4), priority=priority)
    submit(store, tenant="mine", chunks=own_chunks, prefix=(5, 6), priority=priority)
    waiting = count_waiting(store, CARD, 10_000, interactive_only=interactive)
    expected = waiting.tokens_ahead("mine", 20)
    assert waiting.tokens > 5 * expected
    last = submit(store, tenant="mine", chunks=5, prefix=(7, 8), priority=priority)
    claimed_before = 0
    while get_job(store, "mine", last).status is JobStatus.QUEUED:
        claimed_before += work_done(take(store, budget=BUDGET).groups, Counter())
    assert expected - BUDGET <= claimed_before <= expected + 4 * BUDGET


def test_a_tenant_waits_for_its_own_work_and_for_the_shares_of_others() -> None:
    large, small, mine = TenantWork(9, 9_000.0, 50.0), TenantWork(1, 10.0, 2.0), TenantWork(1, 100.0, 0.5)
    waiting = WaitingWork({"large": large, "small": small, "mine": mine}, {"large": 3.0, "heavy": 10.0})
    assert (waiting.chunks, waiting.tokens) == (11, 9_110.0)
    assert waiting.tokens_ahead("mine", 20.0) == 100.0 + 3 * 120.0 + 10.0
    assert waiting.tokens_ahead("new", 20.0) == 3 * 20.0 + 10.0 + 20.0
    assert waiting.tokens_ahead("heavy", 20.0) == pytest.approx(3 * 2.0 + 2.0 + 2.0)
    assert waiting.tokens_ahead("large", 1e9) == waiting.tokens
    assert [waiting.oldest_seconds(tenant) for tenant in ("mine", "small", "new")] == [0.5, 2.0, 50.0]
    assert WaitingWork({}, {}).oldest_seconds("new") == WaitingWork({}, {}).tokens_ahead("new", 5.0) == 0.0


def test_flows_are_created_before_any_is_opened_so_that_groups_do_not_deadlock(postgres_store: Database) -> None:
    """A transaction has created the flow of a new tenant, and opens that of another one while a group wants both."""
    submit(postgres_store, tenant="a closed one")
    with postgres_store.write() as tx:
        tx.execute(update(flows).values(is_open=False))
    group = [submission(tenant="a closed one"), submission(tenant="new")]
    errors: list[str] = []
    listen(postgres_store.engine, "handle_error", lambda context: errors.append(str(context.original_exception)))
    thread = threading.Thread(target=lambda: accept_group(postgres_store, group))
    with postgres_store.write() as tx:
        open_flows(tx, [Flow(MODEL, "new", False)])
        thread.start()
        wait_until(lambda: somebody_waits(postgres_store), "the group waits for the flow that was created")
        open_flows(tx, [Flow(MODEL, "a closed one", False)])
    thread.join()
    # On a slow machine, the group may have given its lock up by then, which is no deadlock.
    assert not any("deadlock" in error for error in errors), errors
    assert flows_that_are_open(postgres_store) == {("a closed one", False), ("new", False)}


def test_a_claim_opens_all_flows_that_it_found_closed_before_it_charges_any(postgres_store: Database) -> None:
    """So it creates missing ones before it waits for any other."""
    for tenant in ("a closed one", "missing"):
        submit(postgres_store, tenant=tenant)
    with postgres_store.write() as tx:
        tx.execute(update(flows).values(is_open=False))
        tx.execute(delete(flows).where(flows.c.tenant == "missing"))
    sent: list[str] = []
    listen(postgres_store.engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    claimed = claim(postgres_store, "worker", CARD, BUDGET)
    assert claimed is not None
    assert tenants_of(postgres_store, claimed) == {"a closed one": 1, "missing": 1}
    of_flows = r"INSERT INTO lanes|UPDATE lanes|WITH charged"
    changes = [statement.split()[0] for statement in sent if re.match(of_flows, statement)]
    assert changes[0] == "INSERT"
    assert "INSERT" not in changes[1:]


@pytest.mark.parametrize("prefix_length", [1, 700, 5_000])
def test_a_claim_is_charged_with_the_work_that_it_took(store: Database, prefix_length: int) -> None:
    """Also where the database computes the work of a prefix by itself."""
    for tenant, weight in (("light", 1.0), ("heavy", 4.0)):
        create_tenant(store, tenant, weight=weight)
        for first in (1, 1, 2):
            submit(store, tenant=tenant, prefix=(first, *range(prefix_length)), row_tokens=9)
    claimed = claim(store, "worker", CARD_OF_LONG_PREFIXES, 1_000_000)
    assert claimed is not None
    with store.read() as tx:
        times = {row.tenant: row.virtual_time for row in tx.execute(select(flows))}
    assert times == {"light": claimed.tokens["light"], "heavy": claimed.tokens["heavy"] / 4}
    assert claimed.tokens["light"] > 2 * work_of_prefix(prefix_length)
