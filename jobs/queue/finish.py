"""Committing scores: each chunk once, under the fence of its batch. The last chunk of a job ends the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Row,
    Select,
    Update,
    bindparam,
    case,
    column,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY

from jobs.queue.ending import FOR_DELIVERIES, ending_columns, lock_jobs, retention
from jobs.queue.reuse import NewScores, keep
from jobs.store.clock import NOW
from jobs.store.codec import pack_places, pack_scores
from jobs.store.database import Database, Transaction
from jobs.store.hot_statement import WITHOUT_WAITING_FOR_THE_DISK, HotStatement
from jobs.store.lists import is_one_of
from jobs.store.records import Finished, JobStatus, Origin, SucceededJob
from jobs.store.signed_result import CallResult, sign_result
from jobs.store.tables import CLAIMED, ChunkState, chunk_scores, chunks, jobs
from jobs.webhooks.outbox import store_deliveries
from scoring.layout import LabelScores, ScoredChunk, TargetScores
from scoring.options import Priority


def finish(
    db: Database,
    batch_id: str,
    scored: Sequence[ScoredChunk],
    *,
    durable: bool = True,
    provenances: Mapping[int, int] | None = None,
    new_scores: Mapping[int, NewScores] | None = None,
) -> Finished:
    """Store the scores of some chunks of a batch, and end the jobs whose last chunks they are.

    A batch may be finished in several calls. Chunks that the batch does not hold, or no longer holds, are counted as
    fenced and otherwise ignored. durable: see :class:`Claim`. If it is false, a crash of the database may undo this, no
    job may have a webhook, and the caller has compared the numbers of scores with those of items. provenances: the ids
    of the chunks' provenances by the ids of the chunks, as far as they are known. new_scores: those that later jobs may
    use, by the ids of their chunks, if ``durable``.
    """
    provenances = provenances or {}
    by_id = {chunk.id: chunk for chunk in scored}
    if not by_id:
        return Finished((), 0)
    values = {"chunk_ids": list(by_id), "of_batch": batch_id, **retention(db.settings)}
    with db.write() if durable else db.without_transaction() as tx:
        done = _store(tx, values, by_id, provenances, durable=durable)
        for row in done:
            given = len(by_id[row.chunk_id].scores)
            if given != row.item_count:
                raise ValueError(f"chunk {row.chunk_id} has {row.item_count} items, scored were {given}")
        store_deliveries(tx, _ended(done).values(), JobStatus.SUCCEEDED)
        _correct_reused(tx, done, by_id)
        if new_scores:
            of_jobs = [row for row in done if row.origin != Origin.CALL.value and row.chunk_id in new_scores]
            keep(tx, [(row.tenant, new_scores[row.chunk_id]) for row in of_jobs])
    ended = _ended(done)
    return Finished(
        tuple(ended),
        fenced=len(by_id) - len(done),
        results=_signed_results(ended, done, by_id, provenances),
        succeeded=tuple(
            SucceededJob(Priority(job.priority), job.created_at, job.started_at, job.finished_at)
            for job in ended.values()
        ),
    )


def _correct_reused(tx: Transaction, done: Iterable[Row[Any]], scored: Mapping[int, ScoredChunk]) -> None:
    """Have jobs say how many items were reused, where more or fewer were computed than was known at acceptance."""
    recomputed: Counter[str] = Counter()
    for row in done:
        recomputed[row.id] += scored[row.chunk_id].recomputed
    for job_id, count in recomputed.items():
        if count:
            tx.execute(update(jobs).where(jobs.c.id == job_id).values(reused_items=jobs.c.reused_items - count))


def _ended(done: Iterable[Row[Any]]) -> dict[str, Row[Any]]:
    """Return a row of each job that has ended, by its id. done: the finished chunks, perhaps several of a job."""
    return {row.id: row for row in done if row.remaining_chunks == 0}


def _store(
    tx: Transaction,
    values: Mapping[str, Any],
    scored: Mapping[int, ScoredChunk],
    provenances: Mapping[int, int],
    *,
    durable: bool,
) -> Sequence[Row[Any]]:
    """Store the scores of the chunks that the batch holds, and subtract these chunks from the counters of their jobs.

    Returns a row for each of these chunks, with columns of its job. The counters are changed in place. So if two
    transactions finish the last two chunks of a job, the second one waits for the first and then counts down to zero.
    """
    if not tx.is_sqlite:
        statement = _FINISH if durable else _FINISH_QUICKLY
        return statement.rows(tx, {**values, **_scores_rows(scored.values(), provenances)})
    # SQLite can't change several tables in one statement.
    done = list(tx.scalars(_UPDATE_DONE, values))
    if not done:
        return ()
    tx.execute(insert(chunk_scores), [_scores_row(scored[chunk_id], provenances) for chunk_id in done])
    tx.execute(_COUNT_DOWN, {**values, "chunk_ids": done})
    return tx.execute(_SELECT_DONE, {"chunk_ids": done}).all()


# The fence: only the worker that claimed the batch knows its id, and the chunks lose the id when the lease runs out.
_HELD = (is_one_of(chunks.c.id, "chunk_ids"), chunks.c.batch_id == bindparam("of_batch"), CLAIMED)


def _scores_row(chunk: ScoredChunk, provenances: Mapping[int, int]) -> dict[str, object]:
    logprobs = chunk.scores.logprobs
    return {
        "chunk_id": chunk.id,
        "logits": pack_scores(chunk.scores.logits),
        "logprobs": None if logprobs is None else pack_scores(logprobs),
        "cached_tokens": chunk.cached_tokens,
        "provenance_id": provenances.get(chunk.id),
        "targets": pack_places(chunk.scores, chunk.targets),
    }


def _scores_rows(scored: Iterable[ScoredChunk], provenances: Mapping[int, int]) -> dict[str, list[object]]:
    """Return the rows of the scores as a list for each column."""
    rows = [_scores_row(chunk, provenances) for chunk in scored]
    return {name: [row[name] for row in rows] for name in _GIVEN}


def _counting_down(done: CTE) -> Update:
    """Return a statement that subtracts finished chunks, with their numbers of items and cached tokens, from jobs.

    A job whose last chunks they are has succeeded with it.
    """
    share = (
        select(
            done.c.job_id,
            func.count().label("chunks"),
            func.sum(done.c.item_count).label("item_count"),
            func.sum(done.c.cached_tokens).label("cached_tokens"),
        )
        .group_by(done.c.job_id)
        .subquery("share")
    )
    left = jobs.c.remaining_chunks - share.c.chunks
    return (
        update(jobs)
        .where(jobs.c.id == share.c.job_id)
        .values(
            remaining_chunks=left,
            scored_items=jobs.c.scored_items + share.c.item_count,
            cached_tokens=jobs.c.cached_tokens + share.c.cached_tokens,
            status=case((left == 0, JobStatus.SUCCEEDED.value), else_=JobStatus.RUNNING.value),
            started_at=func.coalesce(jobs.c.started_at, NOW),
            **ending_columns(left == 0),
        )
    )


_OF_JOB = (
    *FOR_DELIVERIES,
    *jobs.c["remaining_chunks", "total_items", "cached_tokens", "notice_key"],
    *jobs.c["priority", "origin", "created_at", "started_at"],
)
_OF_CHUNK = (chunks.c.id.label("chunk_id"), *chunks.c["job_id", "first_item", "item_count"])
_DONE = update(chunks).values(state=ChunkState.DONE.value)

_UPDATE_DONE = _DONE.where(*_HELD).returning(chunks.c.id)
_COUNT_DOWN = _counting_down(
    select(*_OF_CHUNK, chunk_scores.c.cached_tokens)
    .join(chunk_scores)
    .where(is_one_of(chunks.c.id, "chunk_ids"))
    .cte("done")
)
_SELECT_DONE = select(*_OF_CHUNK, *_OF_JOB).join(jobs).where(is_one_of(chunks.c.id, "chunk_ids"))

_LOCKED = lock_jobs(select(chunks.c.job_id).where(*_HELD)).cte("locked")
_GIVEN = ("chunk_id", "logits", "logprobs", "cached_tokens", "provenance_id", "targets")
_SCORES = (
    func.unnest(*(bindparam(name, type_=ARRAY(chunk_scores.c[name].type, dimensions=1)) for name in _GIVEN))
    .table_valued(*(column(name, chunk_scores.c[name].type) for name in _GIVEN), name="scores")
    .render_derived()
)


def _finishing(begin: ColumnElement[bool]) -> Select[Any]:
    """Return a statement for PostgreSQL that does everything.

    begin: depends on all locked jobs, so that it begins by locking them. If it waits for a lock, others may change
    chunks and jobs meanwhile. PostgreSQL then checks the condition of each update again and computes its values from
    the new row. So chunks that were taken away stay out of it, and the counters are right.
    """
    held = _DONE.where(*_HELD, begin).returning(*_OF_CHUNK).cte("held")
    done = (
        select(*held.c, *(_SCORES.c[name] for name in _GIVEN[1:]))
        .join(_SCORES, _SCORES.c.chunk_id == held.c.chunk_id)
        .cte("done")
    )
    counted = _counting_down(done).returning(*_OF_JOB).cte("counted")
    stored = insert(chunk_scores).from_select(_GIVEN, select(*(done.c[name] for name in _GIVEN))).cte("stored")
    return select(*held.c, *counted.c).join(counted, counted.c.id == held.c.job_id).add_cte(stored)


_FINISH = HotStatement(_finishing(select(func.count()).select_from(_LOCKED).scalar_subquery() > 0))
_FINISH_QUICKLY = HotStatement(
    _finishing(select(func.max(WITHOUT_WAITING_FOR_THE_DISK)).select_from(_LOCKED).scalar_subquery() == "off")
)


def _signed_results(
    ended: Mapping[str, Row[Any]],
    done: Iterable[Row[Any]],
    scored: Mapping[int, ScoredChunk],
    provenances: Mapping[int, int],
) -> dict[str, str]:
    """Return the results of small jobs with a key whose chunks were all finished together, and by one provenance.

    ended: a row of each job; done: the finished chunks.
    """
    chunks_of: dict[str, list[Row[Any]]] = {job.id: [] for job in ended.values() if job.notice_key is not None}
    for chunk in done:
        if chunk.job_id in chunks_of:
            chunks_of[chunk.job_id].append(chunk)
    results: dict[str, str] = {}
    for job_id, parts in chunks_of.items():
        job = ended[job_id]
        if sum(part.item_count for part in parts) != job.total_items:
            continue
        origins = {provenances.get(part.chunk_id) for part in parts}
        if len(origins) != 1:
            continue
        parts.sort(key=lambda chunk: chunk.first_item)
        of_job = [scored[part.chunk_id] for part in parts]
        scores = LabelScores.join([chunk.scores for chunk in of_job])
        of_targets = [chunk.targets for chunk in of_job if chunk.targets is not None]
        targets = TargetScores.join(of_targets) if len(of_targets) == len(of_job) else None
        result = CallResult(job.finished_at, job.cached_tokens, scores, origins.pop(), targets)
        text = sign_result(result, job.notice_key)
        if text is not None:
            results[job_id] = text
    return results
