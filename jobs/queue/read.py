"""Reading jobs and scores. Jobs of other tenants and jobs past their retention count as missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import Column, ColumnElement, Row, Select, and_, bindparam, case, func, literal_column, null, select

from checkpoints.card import ModelCard
from jobs.queue.homes import FREE
from jobs.store.clock import NOW
from jobs.store.codec import unpack_ids, unpack_options, unpack_scores, unpack_targets
from jobs.store.database import Database
from jobs.store.lists import is_one_of
from jobs.store.records import JobError, JobRecord, JobResult, JobStatus, Origin, ScorePage, Submission
from jobs.store.tables import (
    CONTINUED,
    DONE,
    FAILED,
    HAS_ENDED,
    IS_CALL,
    LISTED,
    WAITING,
    chunk_inputs,
    chunk_scores,
    chunks,
    flows,
    jobs,
)
from jobs.tenancy.ownership import VISIBLE, find_job, job_not_found, owned
from jobs.webhooks.outbox import unpack_webhook
from scoring.error_codes import ErrorCode
from scoring.labels.item_labels import ItemLabels
from scoring.layout import Continuations, LabelScores, TargetScores
from scoring.options import Priority

PAGE_TOKENS = 2**19
"""About how many tokens the items of a page have, if they are shown. A page with so many takes some 50 MB of memory."""

HIDDEN_TOKENS = 2**21
"""The same, if a page needs the scores of single tokens, but does not show them: then they are only in arrays."""


def job_record(row: Row[Any]) -> JobRecord:
    """Return a row of the jobs table as a record."""
    values = row._asdict() | {
        "status": JobStatus(row.status),
        "origin": Origin(row.origin),
        "priority": Priority(row.priority),
        "options": unpack_options(row.options),
        "label_token_ids": tuple(unpack_ids(row.label_token_ids).tolist()),
        "warnings": tuple(row.warnings),
        "error": JobError(ErrorCode(row.error_code), row.error_message) if row.error_code else None,
        "webhook": unpack_webhook(row.webhook),
        "item_labels": None if row.item_labels is None else ItemLabels.from_bytes(row.item_labels),
    }
    return JobRecord(**{name: values[name] for name in JobRecord.__slots__})


def get_job(db: Database, tenant: str, job_id: str) -> JobRecord:
    """Return one job. Raises RequestError JOB_NOT_FOUND."""
    with db.read() as tx:
        return job_record(find_job(tx, tenant, job_id))


_LONG = (jobs.c.item_labels, jobs.c.form)
LISTED_COLUMNS = [null().label(column.name) if column in _LONG else column for column in jobs.c]
"""The columns of jobs in a list. It shows no scores, and what only they need may be long."""


def has_status(status: JobStatus) -> ColumnElement[bool]:
    """Return the SQL condition that a job has a status, in words by which an index has those that may be rare."""
    condition = jobs.c.status == status.value
    if status is JobStatus.FAILED:
        return and_(condition, FAILED)
    return condition if status.ended else and_(condition, ~HAS_ENDED)


def list_jobs(
    db: Database,
    tenant: str,
    status: JobStatus | None = None,
    limit: int = 20,
    after: str | None = None,
    *,
    calls: bool = False,
) -> list[JobRecord]:
    """Return a tenant's jobs, newest first. after: the last id of the previous page. calls: its calls instead."""
    query = select(*LISTED_COLUMNS).where(owned(tenant), IS_CALL if calls else LISTED)
    if status is not None:
        query = query.where(has_status(status))
    if after is not None:
        query = query.where(jobs.c.id < after)
    with db.read() as tx:
        return [job_record(row) for row in tx.execute(query.order_by(jobs.c.id.desc()).limit(limit))]


def read_scores(db: Database, tenant: str, job_id: str, offset: int, limit: int) -> ScorePage:
    """Return the scores of items ``offset`` to ``offset + limit`` (exclusive), as far as they were scored.

    Raises RequestError JOB_NOT_FOUND.
    """
    job = get_job(db, tenant, job_id)
    return scores_of(db, job, offset, most_items(job, limit))


def most_embedded(job: JobRecord | Submission, limit: int) -> int:
    """Return how many items a job may have to be shown with its result. An answer to questions is always shown."""
    return job.total_items if job.form is not None else most_items(job, limit)


def most_items(job: JobRecord | Submission, limit: int) -> int:
    """Return how many of ``limit`` items a page may have: fewer, if it needs the tokens of each and they are long."""
    if not job.options.needs_targets:
        return limit
    shows = job.options.return_token_logprobs or job.options.return_tokens
    tokens_of_each = job.prompt_tokens // max(1, job.total_items)
    return max(1, min(limit, (PAGE_TOKENS if shows else HIDDEN_TOKENS) // max(1, tokens_of_each)))


def scores_of(db: Database, job: JobRecord, offset: int, limit: int) -> ScorePage:
    """Do what :func:`read_scores` does, for a job that has just been read."""
    stop = min(offset + limit, job.total_items)
    with db.read() as tx:
        found = tx.execute(_PAGE, {"of_job": job.id, "offset": offset, "stop": stop}).all()
    if not found:
        raise job_not_found()
    return _page(job, found, offset, stop)


# What an answer needs of single targets: null, and not looked for, where no scores of them are stored.
_TARGETS = (
    chunk_scores.c.targets,
    case(
        (
            chunk_scores.c.targets.is_not(None),
            select(chunk_inputs.c.continuations).where(chunk_inputs.c.chunk_id == chunks.c.id).scalar_subquery(),
        )
    ).label("continuations"),
)


def _with_scores(condition: ColumnElement[bool], *columns: Column[Any]) -> Select[Any]:
    """Return a query for jobs, with a row for each chunk that has scores and meets a condition, or one without any."""
    return (
        select(
            *columns,
            *chunks.c["first_item", "item_count"],
            *chunk_scores.c["logits", "logprobs", "provenance_id"],
            *_TARGETS,
        )
        .select_from(jobs)
        .outerjoin(chunks, and_(chunks.c.job_id == jobs.c.id, DONE, condition))
        .outerjoin(chunk_scores, chunk_scores.c.chunk_id == chunks.c.id)
        .order_by(jobs.c.id, chunks.c.first_item)
    )


# The chunk that holds the first item of the page. An index finds it, however many chunks come before it.
_FIRST_OF_PAGE = select(func.max(chunks.c.first_item)).where(
    chunks.c.job_id == bindparam("of_job"), chunks.c.first_item <= bindparam("offset")
)
# One statement sees one moment. As long as the job is visible in it, none of its chunks have been removed. So a job
# that was deleted after it was read can't be mistaken for a job without scores.
_PAGE = _with_scores(
    and_(chunks.c.first_item >= _FIRST_OF_PAGE.scalar_subquery(), chunks.c.first_item < bindparam("stop"))
).where(jobs.c.id == bindparam("of_job"), VISIBLE)
_RESULTS = _with_scores(jobs.c.status == JobStatus.SUCCEEDED.value, *jobs.c).where(
    is_one_of(jobs.c.id, "job_ids"), VISIBLE
)


def _page(job: JobRecord, chunk_rows: Iterable[Row[Any]], offset: int, stop: int) -> ScorePage:
    """Return the scores of items ``offset`` to ``stop`` from rows of chunks. A row without scores is left out."""
    rows = [row for row in chunk_rows if row.logits is not None]
    indices = np.concatenate(
        [np.zeros(0, np.int64), *(np.arange(row.first_item, row.first_item + row.item_count) for row in rows)]
    )
    inside = (indices >= offset) & (indices < stop)
    labels = len(job.label_token_ids)
    keeps_top = job.options.top and not job.options.has_continuations
    scores = LabelScores(
        logits=unpack_scores([row.logits for row in rows], labels),
        logprobs=None
        if any(row.logprobs is None for row in rows)
        else unpack_scores([row.logprobs for row in rows], labels),
        # A worker of the previous version keeps none.
        top_logprobs=None
        if not keeps_top or any(row.targets is None for row in rows)
        else unpack_scores([row.targets for row in rows], 1)[:, 0],
    ).part(inside)
    provenances = tuple(dict.fromkeys(row.provenance_id for row in rows))
    continuations, targets = _targets_of(job, rows, inside)
    next_offset = stop if stop < job.total_items else None
    return ScorePage(job, indices[inside], scores, next_offset, continuations, targets, provenances)


def _targets_of(
    job: JobRecord, rows: Sequence[Row[Any]], inside: npt.NDArray[np.bool_]
) -> tuple[Continuations | None, TargetScores | None]:
    """Return the continuations of the rows that are inside of a page, and their scores, if an answer needs them."""
    if not job.options.needs_targets:
        return None, None
    columns = len(job.label_token_ids)
    parts = [Continuations.from_bytes(row.continuations) for row in rows]
    scored = [unpack_targets(row.targets, len(part), len(part.tokens)) for row, part in zip(rows, parts, strict=True)]
    whole = Continuations.join(parts)
    kept = np.flatnonzero(inside)  # consecutive, since the rows of a page are
    start, stop = (int(kept[0]), int(kept[-1]) + 1) if len(kept) else (0, 0)
    first, last = (int(whole.lengths[: place * columns].sum()) for place in (start, stop))
    targets = TargetScores.join(scored).part(slice(first, last), slice(start * columns, stop * columns))
    return whole.of_rows(start, stop, len(inside)), targets


def results_of(db: Database, job_ids: Collection[str]) -> dict[str, JobResult]:
    """Return jobs by id, each with all of its scores if it has succeeded, in one statement.

    The jobs may be of any tenants. Removed ones are left out.
    """
    with db.read() as tx:
        rows = tx.execute(_RESULTS, {"job_ids": list(job_ids)}).all()
    found: dict[str, JobResult] = {}
    for job_id, group in groupby(rows, lambda row: str(row.id)):
        of_job = list(group)
        job = job_record(of_job[0])
        page = _page(job, of_job, 0, job.total_items) if job.status is JobStatus.SUCCEEDED else None
        found[job_id] = (job, page)
    return found


class Progress(NamedTuple):
    """How far a job has come."""

    id: str
    tenant: str
    status: JobStatus
    total_items: int
    scored_items: int


def progress_of(db: Database, job_ids: Collection[str]) -> dict[str, Progress]:
    """Return the progress of jobs by id, whichever tenants own them, in one statement. Removed jobs are left out."""
    with db.read() as tx:
        rows = tx.execute(_PROGRESS, {"job_ids": list(job_ids)})
        return {row.id: Progress(**row._asdict() | {"status": JobStatus(row.status)}) for row in rows}


def statuses(db: Database, job_ids: Collection[str]) -> dict[str, JobStatus]:
    """Return the statuses of jobs by id, as :func:`progress_of` does."""
    return {job_id: progress.status for job_id, progress in progress_of(db, job_ids).items()}


def jobs_of(db: Database, job_ids: Collection[str]) -> dict[str, JobRecord]:
    """Return jobs by id, whichever tenants own them, in one statement. Removed jobs are left out."""
    with db.read() as tx:
        return {row.id: job_record(row) for row in tx.execute(_JOBS, {"job_ids": list(job_ids)})}


_OF_JOBS = (is_one_of(jobs.c.id, "job_ids"), VISIBLE)
_JOBS = select(jobs).where(*_OF_JOBS)
_PROGRESS = select(*jobs.c[Progress._fields]).where(*_OF_JOBS)


CLAIMABLE = and_(
    WAITING,
    chunks.c.model == bindparam("for_model"),
    chunks.c.tokenizer_fingerprint == bindparam("for_tokenizer"),
    chunks.c.longest_sequence.op("&")(literal_column(str(CONTINUED - 1))) <= bindparam("for_context"),
    chunks.c.highest_token < bindparam("for_vocabulary"),
)
"""Whether a chunk waits and the worker of :func:`card_parameters` can score it: its ids come from the same tokenizer,
and no sequence or id is too large for the model.
"""


def card_parameters(card: ModelCard, worker_id: str = "") -> dict[str, str | int]:
    """Return the parameters of :data:`CLAIMABLE` for a worker that serves a model, and those of :data:`homes.FREE`."""
    return {
        "for_worker": worker_id,
        "for_model": card.name,
        "for_tokenizer": card.work_key,
        "for_context": card.context_length,
        "for_vocabulary": card.vocabulary,
    }


def has_waiting(db: Database, card: ModelCard, worker_id: str = "", *, interactive_only: bool = False) -> bool:
    """Return whether work waits that a worker with this card may claim; if asked for, interactive work alone."""
    statement = _FIRST_INTERACTIVE if interactive_only else _FIRST
    with db.read() as tx:
        return tx.scalar(statement, card_parameters(card, worker_id)) is not None


def waiting_work_keys(db: Database, model: str) -> set[str]:
    """Return the keys of the versions of a model for which work waits: see ModelCard.work_key."""
    with db.read() as tx:
        return set(tx.scalars(_WAITING_KEYS, {"for_model": model}))


def seconds_until_free(db: Database, card: ModelCard) -> float | None:
    """Return the seconds until work that is left to another worker may be claimed by anybody; None without any."""
    with db.read() as tx:
        found: float | None = tx.scalar(_NEXT_FREE, card_parameters(card))
        return found


def others_wait(db: Database, card: ModelCard, worker_id: str, without: Collection[str], most_tokens: int) -> bool:
    """Return whether interactive chunks of at most so many tokens wait for the worker, of tenants but these."""
    given = card_parameters(card, worker_id) | {"without": without, "most": most_tokens}
    with db.read() as tx:
        return tx.scalar(_OF_OTHERS, given) is not None


# Ordered, so that PostgreSQL reads the head of an index; without an order it may read through the whole table.
_FIRST = select(chunks.c.id).where(CLAIMABLE, FREE).order_by(chunks.c.due_at, chunks.c.id).limit(1)
_OF_MODEL = select(func.min(chunks.c.tokenizer_fingerprint).label("key")).where(
    WAITING, chunks.c.model == bindparam("for_model")
)
_KEYS = _OF_MODEL.cte("keys", recursive=True)
# From key to key in the index, however many chunks have each.
_KEYS = _KEYS.union_all(
    select(_OF_MODEL.where(chunks.c.tokenizer_fingerprint > _KEYS.c.key).scalar_subquery()).where(
        _KEYS.c.key.is_not(None)
    )
)
_WAITING_KEYS = select(_KEYS.c.key).where(_KEYS.c.key.is_not(None))
_NEXT_FREE = select(func.min(chunks.c.home_until) - NOW).where(CLAIMABLE, chunks.c.home_until > NOW)
_FIRST_INTERACTIVE = _FIRST.where(chunks.c.interactive)
_SHORT_OF_FLOW = (
    select(chunks.c.id)
    .where(
        CLAIMABLE,
        FREE,
        chunks.c.interactive,
        chunks.c.tenant == flows.c.tenant,
        chunks.c.token_count <= bindparam("most"),
    )
    .limit(1)  # This keeps PostgreSQL from a join with all chunks that wait.
    .scalar_subquery()
)
_OF_OTHERS = (
    select(flows.c.tenant)
    .where(flows.c.model == bindparam("for_model"), flows.c.interactive, flows.c.is_open)
    .where(~is_one_of(flows.c.tenant, "without"), _SHORT_OF_FLOW.is_not(None))
    .limit(1)
)
