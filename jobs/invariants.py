"""What must always hold of the store, looked for in the store itself.

Every check is one statement: on PostgreSQL a statement sees one snapshot, and so nothing half done, however much goes
on beside it. It selects the ids of what breaks the rule, a few of them.

Some checks read little by nature. Others would read whole tables, and a sweeper that did so every minute would be in
everybody's way: it looks at a sample instead, what is claimed, what is next to be claimed and what ended last. The
command ``scoreline check`` looks at all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Select, Subquery, Text, and_, cast, exists, func, or_, select, union_all

from jobs.store.database import Database
from jobs.store.records import ENDED, JobStatus
from jobs.store.tables import CLAIMED, WAITING, ChunkState, batches, chunk_inputs, chunk_scores, chunks, jobs, prefixes
from jobs.tenancy.ownership import visible
from jobs.webhooks.tables import webhook_deliveries

EXAMPLES = 5
"""Ids that a violation names at most: enough to go and look."""

SAMPLED_CHUNKS = 200
"""Claimed chunks, and as many of those next to be claimed, that a sample has at most."""
SAMPLED_RUNNING = 20
SAMPLED_ENDED = 100
"""Jobs that a sample has at most: of those that are being scored, whose chunks are all counted, and of ended ones."""


OVERDUE_SECONDS = 30.0
"""How late a sweep may be, where leases are shorter than that: sweeps come every few seconds, and take some."""


class Cost(StrEnum):
    """What a check reads."""

    BOUNDED = "bounded"
    """What workers hold or what is overdue, through an index, however much there is beside it."""
    SAMPLED = "sampled"
    """A bounded sample when the sweeper runs it; whole tables when the command does."""
    FULL = "full"
    """Whole tables: for the command alone."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What a check looks at. unfinished: chunks that are to be scored yet, with the columns of :data:`_LOOKED_AT`;
    kept_jobs: a condition on ``jobs``, those that are kept.
    """

    unfinished: Subquery
    kept_jobs: ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class Check:
    """A rule. says: what holds where it does; violating: the ids of what breaks it."""

    name: str
    cost: Cost
    says: str
    violating: Callable[[Database, Extent], Select[Any]]


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that is broken. examples: some ids of what breaks it, as text, in order."""

    check: Check
    examples: tuple[str, ...]


_LOOKED_AT = (chunks.c.id, chunks.c.job_id, chunks.c.prefix_id, chunks.c.state, chunks.c.batch_id)


def everything(db: Database) -> Extent:
    """All there is. Rows of a job that is being removed go one after another, so such a job has no rules to keep."""
    return Extent(select(*_LOOKED_AT).where(or_(WAITING, CLAIMED)).subquery("unfinished"), visible(db))


def sample(db: Database) -> Extent:
    """What is being worked on, what is next, and what ended last: through the heads of indexes alone."""
    claimed = select(*_LOOKED_AT).where(CLAIMED).limit(SAMPLED_CHUNKS).subquery()
    next_ones = (
        select(*_LOOKED_AT)
        .where(WAITING)
        .order_by(chunks.c.model, chunks.c.tokenizer_fingerprint, chunks.c.due_at, chunks.c.id)
        .limit(SAMPLED_CHUNKS)
        .subquery()
    )
    running = select(claimed.c.job_id).distinct().limit(SAMPLED_RUNNING).subquery()
    ended = (
        select(jobs.c.id)
        .where(jobs.c.remove_at.is_not(None))
        .order_by(jobs.c.remove_at.desc())
        .limit(SAMPLED_ENDED)
        .subquery()
    )
    return Extent(
        union_all(select(claimed), select(next_ones)).subquery("unfinished"),
        and_(visible(db), jobs.c.id.in_(union_all(select(running.c.job_id), select(ended.c.id)))),
    )


def find_violations(db: Database, *, full: bool) -> list[Violation]:
    """Run the checks. full: all of them on everything; else those that cost little, on a sample.

    To be called after a sweep: what is overdue is a sweep's to put right. Raises StorageUnavailable.
    """
    extent = everything(db) if full else sample(db)
    found = (run(db, check, extent) for check in CHECKS if full or check.cost is not Cost.FULL)
    return [violation for violation in found if violation is not None]


def run(db: Database, check: Check, extent: Extent) -> Violation | None:
    """What breaks a rule, if anything does. Raises StorageUnavailable."""
    with db.read() as connection:
        ids = connection.scalars(check.violating(db, extent).limit(EXAMPLES)).all()
    return Violation(check, tuple(map(str, sorted(ids)))) if ids else None


def _is_in(statuses: Iterable[JobStatus]) -> ColumnElement[bool]:
    return jobs.c.status.in_(sorted(status.value for status in statuses))


_UNENDED = _is_in((JobStatus.QUEUED, JobStatus.RUNNING))
_SUCCEEDED = jobs.c.status == JobStatus.SUCCEEDED.value
_DONE = chunks.c.state == ChunkState.DONE.value
_OF_JOB = chunks.c.job_id == jobs.c.id


def _overdue(db: Database) -> ColumnElement[float]:
    """What was due before this moment, a sweep should have put right by now."""
    return db.now - max(db.settings.lease_seconds, OVERDUE_SECONDS)


def _claimed_without_batch(_db: Database, _extent: Extent) -> Select[Any]:
    return select(chunks.c.id).where(CLAIMED, ~exists().where(batches.c.id == chunks.c.batch_id))


def _lease_long_over(db: Database, _extent: Extent) -> Select[Any]:
    return select(batches.c.id).where(batches.c.lease_until < _overdue(db))


def _deadline_long_over(db: Database, _extent: Extent) -> Select[Any]:
    return select(jobs.c.id).where(jobs.c.finished_at.is_(None), jobs.c.expires_at < _overdue(db))


def _unfinished_of_ended_job(_db: Database, extent: Extent) -> Select[Any]:
    unfinished = extent.unfinished.c
    ended = or_(_is_in(ENDED), jobs.c.finished_at.is_not(None))
    return select(unfinished.id).join(jobs, jobs.c.id == unfinished.job_id).where(ended)


def _waiting_with_batch(_db: Database, extent: Extent) -> Select[Any]:
    unfinished = extent.unfinished.c
    return select(unfinished.id).where(unfinished.state == ChunkState.WAITING.value, unfinished.batch_id.is_not(None))


def _without_prefix(_db: Database, extent: Extent) -> Select[Any]:
    unfinished = extent.unfinished.c
    return select(unfinished.id).where(~exists().where(prefixes.c.id == unfinished.prefix_id))


def _without_rows(_db: Database, extent: Extent) -> Select[Any]:
    unfinished = extent.unfinished.c
    return select(unfinished.id).where(~exists().where(chunk_inputs.c.chunk_id == unfinished.id))


def _remaining_miscounted(_db: Database, extent: Extent) -> Select[Any]:
    not_done = select(func.count()).select_from(chunks).where(_OF_JOB, ~_DONE).scalar_subquery()
    return select(jobs.c.id).where(extent.kept_jobs, _UNENDED, jobs.c.remaining_chunks != not_done)


def _scored_miscounted(_db: Database, extent: Extent) -> Select[Any]:
    done = select(func.coalesce(func.sum(chunks.c.item_count), 0)).where(_OF_JOB, _DONE).scalar_subquery()
    return select(jobs.c.id).where(extent.kept_jobs, jobs.c.scored_items != done)


def _items_missing(_db: Database, extent: Extent) -> Select[Any]:
    cut = select(func.coalesce(func.sum(chunks.c.item_count), 0)).where(_OF_JOB).scalar_subquery()
    return select(jobs.c.id).where(extent.kept_jobs, or_(_UNENDED, _SUCCEEDED), jobs.c.total_items != cut)


def _nothing_left_and_not_ended(_db: Database, extent: Extent) -> Select[Any]:
    left = exists().where(_OF_JOB, ~_DONE)
    return select(jobs.c.id).where(extent.kept_jobs, _UNENDED, ~left)


def _succeeded_incomplete(_db: Database, extent: Extent) -> Select[Any]:
    left = exists().where(_OF_JOB, ~_DONE)
    return select(jobs.c.id).where(extent.kept_jobs, _SUCCEEDED, or_(jobs.c.remaining_chunks != 0, left))


def _done_without_scores(_db: Database, extent: Extent) -> Select[Any]:
    # Counted job by job: asked whether there is any, PostgreSQL would join all chunks with all scores first.
    scores = exists().where(chunk_scores.c.chunk_id == chunks.c.id)
    without = select(func.count()).select_from(chunks).where(_OF_JOB, _DONE, ~scores).scalar_subquery()
    return select(jobs.c.id).where(extent.kept_jobs, without > 0)


def _end_without_times(_db: Database, extent: Extent) -> Select[Any]:
    too_few = and_(_is_in(ENDED), or_(jobs.c.finished_at.is_(None), jobs.c.remove_at.is_(None)))
    too_many = and_(_UNENDED, or_(jobs.c.finished_at.is_not(None), jobs.c.remove_at.is_not(None)))
    return select(jobs.c.id).where(extent.kept_jobs, or_(too_few, too_many))


def _end_not_told(_db: Database, extent: Extent) -> Select[Any]:
    delivery = exists().where(webhook_deliveries.c.job_id == jobs.c.id)
    # Among the names of events in its text, in quotes: a URL has none.
    asked = cast(jobs.c.webhook, Text).like('%"job.' + jobs.c.status + '"%')
    return select(jobs.c.id).where(extent.kept_jobs, _is_in(ENDED), jobs.c.webhook.is_not(None), asked, ~delivery)


def _scores_of_unfinished(_db: Database, _extent: Extent) -> Select[Any]:
    return select(chunks.c.id).join(chunk_scores, chunk_scores.c.chunk_id == chunks.c.id).where(~_DONE)


CHECKS = (
    Check(
        "claimed_chunk_without_batch",
        Cost.BOUNDED,
        "a claimed chunk belongs to a batch that is there",
        _claimed_without_batch,
    ),
    Check(
        "lease_long_over",
        Cost.BOUNDED,
        "a batch is gone before its lease has been over for as long as a lease lasts",
        _lease_long_over,
    ),
    Check(
        "deadline_long_over",
        Cost.BOUNDED,
        "a job ends before its deadline has been over for as long as a lease lasts",
        _deadline_long_over,
    ),
    Check(
        "unfinished_chunk_of_ended_job",
        Cost.SAMPLED,
        "an ended job has no chunk that waits or is claimed",
        _unfinished_of_ended_job,
    ),
    Check("waiting_chunk_with_batch", Cost.SAMPLED, "a waiting chunk belongs to no batch", _waiting_with_batch),
    Check("chunk_without_prefix", Cost.SAMPLED, "the prefix of an unfinished chunk is there", _without_prefix),
    Check("chunk_without_rows", Cost.SAMPLED, "the rows of an unfinished chunk are there", _without_rows),
    Check(
        "remaining_chunks_miscounted",
        Cost.SAMPLED,
        "an unfinished job's remaining chunks are those that are not done",
        _remaining_miscounted,
    ),
    Check(
        "scored_items_miscounted",
        Cost.SAMPLED,
        "a job's scored items are those of its chunks that are done",
        _scored_miscounted,
    ),
    Check("items_missing", Cost.SAMPLED, "a job's chunks hold all of its items", _items_missing),
    Check(
        "job_never_ends",
        Cost.SAMPLED,
        "a job that has not ended has a chunk that is not done",
        _nothing_left_and_not_ended,
    ),
    Check("succeeded_job_incomplete", Cost.SAMPLED, "all chunks of a succeeded job are done", _succeeded_incomplete),
    Check("done_chunk_without_scores", Cost.SAMPLED, "a chunk that is done has scores", _done_without_scores),
    Check(
        "end_without_times",
        Cost.SAMPLED,
        "a job has a time of its end and of its removal once it has ended, and not before",
        _end_without_times,
    ),
    Check(
        "end_not_told",
        Cost.SAMPLED,
        "an ended job whose webhook asks for its end has a delivery",
        _end_not_told,
    ),
    Check(
        "scores_of_unfinished_chunk",
        Cost.FULL,
        "a chunk that is not done has no scores",
        _scores_of_unfinished,
    ),
)
"""All checks. A rule that only a running sweep can keep is among the bounded ones."""
