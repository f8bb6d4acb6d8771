"""Invariants of the store, and checks that find violations of them in the data.

Every check is one statement that selects ids of rows that break a rule. One statement sees one snapshot, on PostgreSQL
too, so a check never sees part of a transaction.

Some checks read little. Others would read whole tables. The sweeper runs those on a sample: the claimed chunks, the
next chunks to be claimed, and the jobs that ended last. The command ``scoreline check`` runs all checks on everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Select, Subquery, Text, and_, cast, exists, func, or_, select, union_all

from jobs.store.clock import NOW
from jobs.store.database import Database
from jobs.store.records import ENDED, JobStatus
from jobs.store.tables import CLAIMED, WAITING, ChunkState, batches, chunk_inputs, chunk_scores, chunks, jobs, prefixes
from jobs.tenancy.ownership import VISIBLE
from jobs.webhooks.tables import webhook_deliveries

EXAMPLES = 5  # most ids in a violation
SAMPLED_CHUNKS = 200  # most claimed chunks in a sample, and most waiting chunks
SAMPLED_RUNNING = 20  # most jobs in a sample that are being scored; all of their chunks are read
SAMPLED_ENDED = 100  # most ended jobs in a sample
OVERDUE_SECONDS = 30.0  # how late a sweep may be if leases are shorter than this


class Cost(StrEnum):
    """How much a check reads."""

    BOUNDED = "bounded"  # what workers hold or what is overdue, through an index
    SAMPLED = "sampled"  # a bounded sample when the sweeper runs it, whole tables when the command runs it
    FULL = "full"  # whole tables; only the command runs it


@dataclass(frozen=True, slots=True)
class Extent:
    """The rows that checks read."""

    unfinished: Subquery  # unfinished chunks, with the columns of _CHUNK_COLUMNS
    kept_jobs: ColumnElement[bool]  # a condition on jobs


@dataclass(frozen=True, slots=True)
class Check:
    """A rule, and the query that finds violations of it."""

    name: str
    cost: Cost
    says: str  # the rule in words
    violating: Violating


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that is broken."""

    check: Check
    examples: tuple[str, ...]  # some ids of rows that break it, as text, sorted


CHECKS: list[Check] = []
"""All checks, in the order of their definitions. Rules that hold only while sweeps run are among the bounded ones."""

Violating = Callable[[Database, Extent], Select[Any]]


def _rule(cost: Cost, says: str) -> Callable[[Violating], Violating]:
    """Make a check of the query that finds violations of a rule. It is named as the function is."""

    def add(violating: Violating) -> Violating:
        CHECKS.append(Check(violating.__name__.removeprefix("_"), cost, says, violating))
        return violating

    return add


_CHUNK_COLUMNS = (chunks.c.id, chunks.c.job_id, chunks.c.prefix_id, chunks.c.state, chunks.c.batch_id)


def everything() -> Extent:
    """Return everything except jobs past their retention: their rows are removed in several transactions."""
    return Extent(select(*_CHUNK_COLUMNS).where(or_(WAITING, CLAIMED)).subquery("unfinished"), VISIBLE)


def sample() -> Extent:
    """Return what is claimed, what is next to be claimed, and what ended last, each read from the head of an index."""
    claimed = select(*_CHUNK_COLUMNS).where(CLAIMED).limit(SAMPLED_CHUNKS).subquery()
    next_ones = (
        select(*_CHUNK_COLUMNS)
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
        and_(VISIBLE, jobs.c.id.in_(union_all(select(running.c.job_id), select(ended.c.id)))),
    )


def find_violations(db: Database, *, full: bool) -> list[Violation]:
    """Run the checks: if ``full``, all of them on everything, else the cheap ones on a sample.

    Call it after a sweep, because overdue rows that a sweep would handle are violations. Raises StorageUnavailable.
    """
    extent = everything() if full else sample()
    found = (run(db, check, extent) for check in CHECKS if full or check.cost is not Cost.FULL)
    return [violation for violation in found if violation is not None]


def run(db: Database, check: Check, extent: Extent) -> Violation | None:
    """Return the violation of a rule, if there is any. Raises StorageUnavailable."""
    with db.read(slow=True) as tx:
        ids = tx.scalars(check.violating(db, extent).limit(EXAMPLES)).all()
    return Violation(check, tuple(map(str, sorted(ids)))) if ids else None


def _is_in(statuses: Iterable[JobStatus]) -> ColumnElement[bool]:
    return jobs.c.status.in_(sorted(status.value for status in statuses))


_UNENDED = _is_in((JobStatus.QUEUED, JobStatus.RUNNING))
_SUCCEEDED = jobs.c.status == JobStatus.SUCCEEDED.value
_DONE = chunks.c.state == ChunkState.DONE.value
_OF_JOB = chunks.c.job_id == jobs.c.id


def _overdue(db: Database) -> ColumnElement[float]:
    """Return the time before which sweeps have handled everything that was due."""
    return NOW - max(db.settings.lease_seconds, OVERDUE_SECONDS)


@_rule(Cost.BOUNDED, "a claimed chunk belongs to a batch that is there")
def _claimed_chunk_without_batch(_db: Database, _extent: Extent) -> Select[Any]:
    return select(chunks.c.id).where(CLAIMED, ~exists().where(batches.c.id == chunks.c.batch_id))


@_rule(Cost.BOUNDED, "a batch is gone before its lease has been over for as long as a lease lasts")
def _lease_long_over(db: Database, _extent: Extent) -> Select[Any]:
    return select(batches.c.id).where(batches.c.lease_until < _overdue(db))


@_rule(Cost.BOUNDED, "a job ends before its deadline has been over for as long as a lease lasts")
def _deadline_long_over(db: Database, _extent: Extent) -> Select[Any]:
    return select(jobs.c.id).where(jobs.c.finished_at.is_(None), jobs.c.expires_at < _overdue(db))


@_rule(Cost.SAMPLED, "an ended job has no chunk that waits or is claimed")
def _unfinished_chunk_of_ended_job(_db: Database, extent: Extent) -> Select[Any]:
    unfinished = extent.unfinished.c
    ended = or_(_is_in(ENDED), jobs.c.finished_at.is_not(None))
    return select(unfinished.id).join(jobs, jobs.c.id == unfinished.job_id).where(ended)


@_rule(Cost.SAMPLED, "a waiting chunk belongs to no batch")
def _waiting_chunk_with_batch(_db: Database, extent: Extent) -> Select[Any]:
    unfinished = extent.unfinished.c
    return select(unfinished.id).where(unfinished.state == ChunkState.WAITING.value, unfinished.batch_id.is_not(None))


@_rule(Cost.SAMPLED, "the prefix of an unfinished chunk is there")
def _chunk_without_prefix(_db: Database, extent: Extent) -> Select[Any]:
    unfinished = extent.unfinished.c
    return select(unfinished.id).where(~exists().where(prefixes.c.id == unfinished.prefix_id))


@_rule(Cost.SAMPLED, "the rows of an unfinished chunk are there")
def _chunk_without_rows(_db: Database, extent: Extent) -> Select[Any]:
    unfinished = extent.unfinished.c
    return select(unfinished.id).where(~exists().where(chunk_inputs.c.chunk_id == unfinished.id))


@_rule(Cost.SAMPLED, "an unfinished job's remaining chunks are those that are not done")
def _remaining_chunks_miscounted(_db: Database, extent: Extent) -> Select[Any]:
    not_done = select(func.count()).select_from(chunks).where(_OF_JOB, ~_DONE).scalar_subquery()
    return select(jobs.c.id).where(extent.kept_jobs, _UNENDED, jobs.c.remaining_chunks != not_done)


@_rule(Cost.SAMPLED, "a job's scored items are those of its chunks that are done")
def _scored_items_miscounted(_db: Database, extent: Extent) -> Select[Any]:
    done = select(func.coalesce(func.sum(chunks.c.item_count), 0)).where(_OF_JOB, _DONE).scalar_subquery()
    return select(jobs.c.id).where(extent.kept_jobs, jobs.c.scored_items != done)


@_rule(Cost.SAMPLED, "a job's chunks hold all of its items")
def _items_missing(_db: Database, extent: Extent) -> Select[Any]:
    cut = select(func.coalesce(func.sum(chunks.c.item_count), 0)).where(_OF_JOB).scalar_subquery()
    return select(jobs.c.id).where(extent.kept_jobs, or_(_UNENDED, _SUCCEEDED), jobs.c.total_items != cut)


@_rule(Cost.SAMPLED, "a job that has not ended has a chunk that is not done")
def _job_never_ends(_db: Database, extent: Extent) -> Select[Any]:
    left = exists().where(_OF_JOB, ~_DONE)
    return select(jobs.c.id).where(extent.kept_jobs, _UNENDED, ~left)


@_rule(Cost.SAMPLED, "all chunks of a succeeded job are done")
def _succeeded_job_incomplete(_db: Database, extent: Extent) -> Select[Any]:
    left = exists().where(_OF_JOB, ~_DONE)
    return select(jobs.c.id).where(extent.kept_jobs, _SUCCEEDED, or_(jobs.c.remaining_chunks != 0, left))


@_rule(Cost.SAMPLED, "a chunk that is done has scores")
def _done_chunk_without_scores(_db: Database, extent: Extent) -> Select[Any]:
    # Counted job by job, because for an EXISTS PostgreSQL would join all chunks with all scores first.
    scores = exists().where(chunk_scores.c.chunk_id == chunks.c.id)
    without = select(func.count()).select_from(chunks).where(_OF_JOB, _DONE, ~scores).scalar_subquery()
    return select(jobs.c.id).where(extent.kept_jobs, without > 0)


@_rule(Cost.SAMPLED, "a job has a time of its end and of its removal once it has ended, and not before")
def _end_without_times(_db: Database, extent: Extent) -> Select[Any]:
    too_few = and_(_is_in(ENDED), or_(jobs.c.finished_at.is_(None), jobs.c.remove_at.is_(None)))
    too_many = and_(_UNENDED, or_(jobs.c.finished_at.is_not(None), jobs.c.remove_at.is_not(None)))
    return select(jobs.c.id).where(extent.kept_jobs, or_(too_few, too_many))


@_rule(Cost.SAMPLED, "an ended job whose webhook asks for its end has a delivery")
def _end_not_told(_db: Database, extent: Extent) -> Select[Any]:
    delivery = exists().where(webhook_deliveries.c.job_id == jobs.c.id)
    # Search the JSON text for the event's name in quotes; a URL contains no quotes.
    asked = cast(jobs.c.webhook, Text).like('%"job.' + jobs.c.status + '"%')
    return select(jobs.c.id).where(extent.kept_jobs, _is_in(ENDED), jobs.c.webhook.is_not(None), asked, ~delivery)


@_rule(Cost.FULL, "a chunk that is not done has no scores")
def _scores_of_unfinished_chunk(_db: Database, _extent: Extent) -> Select[Any]:
    return select(chunks.c.id).join(chunk_scores, chunk_scores.c.chunk_id == chunks.c.id).where(~_DONE)
