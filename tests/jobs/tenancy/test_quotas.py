"""Quotas: a tenant never has more unfinished work than its quota, whatever happens to the work."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from sqlalchemy import func, insert, select, text, update

from jobs.queue.accept import accept
from jobs.queue.claims.claim import claim
from jobs.queue.ending import cancel, delete
from jobs.queue.lease import abandon, release
from jobs.queue.statistics import count_waiting
from jobs.queue.upload import Upload, accept_upload, begin_upload, remove_upload, stage
from jobs.store.codec import TOKEN_BYTES
from jobs.store.database import Database
from jobs.store.records import Accepted, Idempotency, Submission
from jobs.store.tables import chunks, flows, prefixes, tenants
from jobs.tenancy.quotas import MAX_RECOUNT_DELAY_SECONDS, charge, has_room, recount
from jobs.tenancy.tenants import create_tenant, set_tenant
from scoring.chunk import Chunk
from scoring.error_codes import ErrorCode, RequestError
from scoring.options import Priority
from scoring.work import chunk_of, work_of_prefix
from tests.databases import ON_BOTH, quick_on
from tests.jobs.conftest import HandClock
from tests.jobs.queue.test_statement_counts import statements_of
from tests.jobs.work import CARD, at_once, finish_all, submission, take
from tests.services import wait_until

ACME = "acme"
QUOTA = 40
CHUNK = 5
"""Tokens of a chunk of a job of :func:`work`, as scoring.work counts them: one of the query, which is short, too."""
JOB = CHUNK
"""Tokens of a job of one chunk. A quota has room for eight."""

_prefixes = count(100)


@pytest.fixture
def limited(timed_store: Database) -> Database:
    """A store with a tenant that has a quota, on the hand clock."""
    create_tenant(timed_store, ACME, max_waiting_tokens=QUOTA)
    return timed_store


def work(chunk_count: int = 1, tenant: str = ACME, quota: int | None = QUOTA, **given: Any) -> Submission:
    return submission(chunks=chunk_count, tenant=tenant, quota=quota, prefix=(next(_prefixes),), **given)


def refusal(attempt: Callable[[], object]) -> ErrorCode:
    with pytest.raises(RequestError) as caught:
        attempt()
    assert (caught.value.retry_after is not None) == (caught.value.code is ErrorCode.QUOTA_EXCEEDED)
    return caught.value.code


def accepted_within(store: Database, shape: Submission) -> Accepted | None:
    """None if the quota is full."""
    try:
        return accept(store, shape)
    except RequestError as error:
        if error.code is not ErrorCode.QUOTA_EXCEEDED:
            raise
        return None


def fill(store: Database) -> list[Accepted]:
    """Accept until it is refused."""
    return list(iter(lambda: accepted_within(store, work()), None))


def unfinished(store: Database, tenant: str = ACME) -> int:
    """Return the unfinished work, each query once."""
    states = ("staged", "waiting", "claimed")
    of_tenant = (chunks.c.tenant == tenant, chunks.c.state.in_(states))
    lengths = select(func.length(prefixes.c.tokens)).where(
        prefixes.c.id.in_(select(chunks.c.prefix_id).where(*of_tenant))
    )
    with store.read() as connection:
        own = connection.scalar(select(func.sum(chunks.c.token_count)).where(*of_tenant))
        return int(own or 0) + sum(work_of_prefix(length // TOKEN_BYTES) for length in connection.scalars(lengths))


def counted(store: Database) -> int:
    with store.read() as connection:
        return int(connection.scalar(select(tenants.c.waiting_tokens).where(tenants.c.name == ACME)) or 0)


def test_work_is_accepted_up_to_the_quota_and_no_further(limited: Database) -> None:
    assert len(fill(limited)) == QUOTA // JOB
    assert unfinished(limited) == counted(limited) == QUOTA
    assert accept(limited, work(0)).job_id, "without work there is nothing to wait"
    assert accept(limited, work(tenant="other", quota=None)).job_id


def charged_to_flows(store: Database) -> float:
    """Return the work of all claims so far."""
    with store.read() as connection:
        return float(connection.scalar(select(func.sum(flows.c.virtual_time))) or 0.0)


def long_query(number: int) -> Submission:
    """Return a job of a query of 1,000 tokens, one for each number, and one empty item."""
    return submission(tenant=ACME, quota=LONG_QUOTA, prefix=[number] * 1_000, row_tokens=0)


LONG_QUOTA = 10 * (work_of_prefix(1_000) + 1)
"""Room for ten jobs of :func:`long_query`."""


@pytest.fixture
def long_limited(timed_store: Database) -> Database:
    create_tenant(timed_store, ACME, max_waiting_tokens=LONG_QUOTA)
    return timed_store


def test_a_quota_counts_the_work_on_queries_that_claims_then_take(long_limited: Database) -> None:
    accepted = [accepted_within(long_limited, long_query(number)) for number in range(20)]
    assert sum(job is not None for job in accepted) == 10
    assert counted(long_limited) == unfinished(long_limited) == LONG_QUOTA
    while claim(long_limited, "worker", CARD, 3_000) is not None:
        pass
    assert charged_to_flows(long_limited) == LONG_QUOTA


@ON_BOTH
@pytest.mark.parametrize(("query", "price"), [(63, 10 * 68), (64, 65 + 51)])
def test_a_short_query_counts_with_each_item_wherever_work_is_counted(
    query: int, price: int, long_limited: Database, clock: HandClock
) -> None:
    """When a job is accepted, when unfinished work is counted, in claims, and in what they are charged with."""
    accept(long_limited, submission(tenant=ACME, quota=LONG_QUOTA, prefix=[1] * query, rows=10, row_tokens=5))
    assert counted(long_limited) == unfinished(long_limited) == price
    clock.turn(MAX_RECOUNT_DELAY_SECONDS)
    assert recount(long_limited, ACME) == 0.0
    assert counted(long_limited) == price
    assert count_waiting(long_limited, CARD, 100, interactive_only=False).tokens == price
    assert claim(long_limited, "worker", CARD, price) is not None
    assert charged_to_flows(long_limited) == price


def test_a_query_that_many_jobs_share_counts_once_where_unfinished_work_is_counted(
    long_limited: Database, clock: HandClock
) -> None:
    for _ in range(50):
        assert accepted_within(long_limited, long_query(1)) is not None
        clock.turn(MAX_RECOUNT_DELAY_SECONDS)
    unfinished_tokens = work_of_prefix(1_000) + 50
    assert unfinished(long_limited) == unfinished_tokens <= counted(long_limited) <= LONG_QUOTA


def test_the_query_of_an_upload_counts_once_and_not_in_each_part(long_limited: Database, clock: HandClock) -> None:
    upload = begin_upload(long_limited, replace(long_query(1), chunks=(), total_items=0), None)
    assert isinstance(upload, Upload)
    for first in range(5):
        stage(long_limited, upload, piece(first, 1))
    assert counted(long_limited) == unfinished(long_limited)


def test_a_refused_job_leaves_nothing_behind_and_its_key_free(limited: Database, clock: HandClock) -> None:
    first = fill(limited)
    key = Idempotency("key", "hash")
    assert refusal(lambda: accept(limited, work(idempotency=key))) is ErrorCode.QUOTA_EXCEEDED
    cancel(limited, ACME, first[0].job_id)
    clock.turn(MAX_RECOUNT_DELAY_SECONDS)
    assert not accept(limited, work(idempotency=key)).replayed


def test_a_job_that_was_accepted_is_replayed_also_when_the_quota_is_full(limited: Database) -> None:
    key = Idempotency("key", "hash")
    job = accept(limited, work(idempotency=key))
    fill(limited)
    again = accept(limited, work(idempotency=key))
    assert (again.job_id, again.replayed) == (job.job_id, True)


def test_a_job_larger_than_the_quota_is_too_large(limited: Database) -> None:
    most = QUOTA // CHUNK
    assert refusal(lambda: accept(limited, work(most + 1))) is ErrorCode.REQUEST_TOO_LARGE
    assert accept(limited, work(most)).job_id


def delete_all(store: Database, jobs: Sequence[Accepted]) -> None:
    for job in jobs:
        delete(store, ACME, job.job_id)


@pytest.mark.parametrize(
    "end",
    [
        lambda store, jobs: finish_all(store, take(store)),
        lambda store, jobs: [cancel(store, ACME, job.job_id) for job in jobs],
        delete_all,
    ],
    ids=["finished", "cancelled", "deleted"],
)
def test_finished_work_makes_room_in_the_quota(
    limited: Database, clock: HandClock, end: Callable[[Database, list[Accepted]], object]
) -> None:
    jobs = fill(limited)
    end(limited, jobs)
    clock.turn(MAX_RECOUNT_DELAY_SECONDS)
    assert len(fill(limited)) == QUOTA // JOB


def test_claimed_and_returned_work_makes_no_room_in_the_quota(limited: Database, clock: HandClock) -> None:
    fill(limited)
    claimed = take(limited)
    clock.turn(MAX_RECOUNT_DELAY_SECONDS)
    assert fill(limited) == []
    release(limited, claimed.batch_id)
    clock.turn(MAX_RECOUNT_DELAY_SECONDS)
    assert fill(limited) == []


def test_calls_and_jobs_count_against_the_same_quota(limited: Database) -> None:
    accept(limited, work(4, priority=Priority.INTERACTIVE))
    accept(limited, work(3, priority=Priority.BULK))
    assert len(fill(limited)) == 1


def piece(first: int, chunk_count: int) -> list[Chunk]:
    """Chunks of an upload, ``first`` of which were staged before."""
    return [
        chunk_of(first + chunk.first_item, chunk.rows) for chunk in submission(chunks=chunk_count, prefix=(1,)).chunks
    ]


@ON_BOTH
def test_an_upload_counts_from_when_it_is_staged(limited: Database, clock: HandClock) -> None:
    shape = work(0)

    upload = begin_upload(limited, shape, None)
    assert isinstance(upload, Upload)
    stage(limited, upload, piece(0, 4))
    stage(limited, upload, piece(4, 2))
    assert len(fill(limited)) == (QUOTA - 6 * CHUNK) // JOB == 2
    assert refusal(lambda: stage(limited, upload, piece(6, 1))) is ErrorCode.QUOTA_EXCEEDED
    stage(limited, upload)
    clock.turn(MAX_RECOUNT_DELAY_SECONDS)
    assert fill(limited) == [], "counted anew, what is staged counts"
    accept_upload(limited, upload, "hash")
    clock.turn(MAX_RECOUNT_DELAY_SECONDS)
    assert fill(limited) == []
    other = begin_upload(limited, shape, None)
    assert isinstance(other, Upload)
    cancel(limited, ACME, upload.job_id)
    clock.turn(MAX_RECOUNT_DELAY_SECONDS)
    stage(limited, other, piece(0, 6))
    remove_upload(limited, other.job_id)
    clock.turn(MAX_RECOUNT_DELAY_SECONDS)
    assert len(fill(limited)) == QUOTA // JOB - 2


def test_an_upload_that_is_larger_than_the_whole_quota_is_too_large_and_not_to_be_tried_again(
    limited: Database, clock: HandClock
) -> None:
    upload = begin_upload(limited, work(0), None)
    assert isinstance(upload, Upload)
    most = QUOTA // CHUNK
    stage(limited, upload, piece(0, most - 1))
    stage(limited, upload, piece(most - 1, 1))
    assert refusal(lambda: stage(limited, upload, piece(most, 1))) is ErrorCode.REQUEST_TOO_LARGE
    clock.turn(MAX_RECOUNT_DELAY_SECONDS)
    assert refusal(lambda: stage(limited, upload, piece(most, 1))) is ErrorCode.REQUEST_TOO_LARGE


def test_a_quota_that_is_set_later_counts_what_waits_already(limited: Database) -> None:
    accept(limited, work(7, quota=None))
    set_tenant(limited, ACME, max_waiting_tokens=QUOTA)
    assert len(fill(limited)) == (QUOTA - 7 * CHUNK) // JOB == 1


def test_counts_are_delayed_in_proportion_to_their_duration(limited: Database) -> None:
    fill(limited)
    seconds = recount(limited, ACME)
    assert 0.0 < seconds <= MAX_RECOUNT_DELAY_SECONDS


def test_whether_there_is_room_is_counted_no_more_often_than_for_work_that_is_submitted(
    limited: Database, clock: HandClock
) -> None:
    fill(limited)
    while (claimed := claim(limited, "worker", CARD, 20)) is not None:
        finish_all(limited, claimed)
    clock.turn(MAX_RECOUNT_DELAY_SECONDS)
    assert has_room(limited, ACME, QUOTA, JOB), "what was scored is not counted"
    fill(limited)
    with statements_of(limited) as sent:
        assert [has_room(limited, ACME, QUOTA, JOB) for _ in range(3)] == [False] * 3
    assert not [one for one in sent if "AS unfinished" in one]


@quick_on("sqlite")
def test_the_counter_is_never_less_than_the_unfinished_work(limited: Database, clock: HandClock) -> None:
    chance = random.Random(7)
    jobs: list[str] = []
    refused = 0
    for _ in range(150):
        match chance.randrange(6):
            case 0 | 1 | 2:
                job = accepted_within(limited, work(chance.randint(1, 3)))
                if job is None:
                    refused += 1
                else:
                    jobs.append(job.job_id)
            case 3:
                claimed = claim(limited, "worker", CARD, chance.choice([4, 20, 200]))
                if claimed is not None:
                    end = chance.choice([finish_all, _release, _abandon])
                    end(limited, claimed)
            case 4 if jobs:
                cancel(limited, ACME, chance.choice(jobs))
            case 5:
                clock.turn(1.0)
        # Before it is counted for the first time it is more than any quota.
        assert unfinished(limited) <= min(QUOTA, counted(limited))
    assert refused
    clock.turn(MAX_RECOUNT_DELAY_SECONDS)
    recount(limited, ACME)
    assert counted(limited) == unfinished(limited)


def _release(store: Database, claimed: object) -> object:
    return release(store, claimed.batch_id)  # type: ignore[attr-defined]


def _abandon(store: Database, claimed: object) -> object:
    return abandon(store, claimed.batch_id, "a bad moment")  # type: ignore[attr-defined]


def test_racing_accepts_do_not_exceed_the_quota(store: Database) -> None:
    create_tenant(store, ACME, max_waiting_tokens=QUOTA)
    shapes = [[work() for _ in range(4)] for _ in range(8)]

    def keep_accepting(number: int) -> int:
        return sum(accepted_within(store, shape) is not None for shape in shapes[number])

    accepted = sum(at_once(8, keep_accepting))
    assert unfinished(store) == accepted * JOB == QUOTA


def test_counting_waits_for_an_accept_that_is_under_way(postgres_store: Database) -> None:
    """What it brings is not to be seen yet, and would be forgotten."""
    create_tenant(postgres_store, ACME, max_waiting_tokens=QUOTA)
    accept(postgres_store, work())
    columns = [column for column in chunks.c if column.name != "id"]
    waiting = text("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")

    def counting_waits() -> bool:
        with postgres_store.read() as looking:
            return looking.scalar(waiting) is not None

    with ThreadPoolExecutor(1) as pool:
        with postgres_store.write() as connection:
            connection.execute(update(tenants).values(recount_at=0.0))
            connection.execute(insert(chunks).from_select(columns, select(*columns)))
            charge(connection, ACME, QUOTA, CHUNK)
            counted_anew = pool.submit(recount, postgres_store, ACME)
            wait_until(counting_waits, "the count waits")
        assert counted_anew.result() == 0.0
    assert counted(postgres_store) == unfinished(postgres_store) == 2 * CHUNK


def test_work_of_a_tenant_that_was_deleted_meanwhile_is_refused_like_its_keys(store: Database) -> None:
    with pytest.raises(RequestError) as refused:
        accept(store, submission(tenant="gone", quota=1_000))
    assert refused.value.code is ErrorCode.INVALID_API_KEY
