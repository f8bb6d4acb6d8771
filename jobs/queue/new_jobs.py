"""New jobs as rows: with their queries and chunks, and the flows that they open.

Rows that other transactions may want are locked in this order: prefixes, flows. Of each kind they are locked in the
order of their keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import insert, select

from jobs.queue.fair_shares import Flow, open_flows
from jobs.queue.homes import Home, PrefixKey, homes_of
from jobs.store.clock import NOW
from jobs.store.codec import pack_ids, pack_options, pack_places, pack_scores
from jobs.store.database import Transaction
from jobs.store.records import JobStatus, Origin, Submission
from jobs.store.tables import CONTINUED, ChunkState, chunk_inputs, chunk_scores, chunks, jobs, prefixes
from jobs.store.upsert import FindByKey, get_or_create_all, insert_if_new
from jobs.webhooks.outbox import pack_webhook
from scoring.chunk import Chunk
from scoring.options import Priority
from scoring.work import work_of_prefix
from settings.store import StoreSettings

SHARED = "*"  # the tenant name that owns prefixes shared by all tenants; no real tenant can have it


class NewJob(NamedTuple):
    """A job that is about to be stored."""

    id: str
    submission: Submission


def store_by_steps(tx: Transaction, new: Sequence[NewJob]) -> None:
    """Store jobs with their prefixes and chunks, and open their flows, with a statement for each table."""
    homes = find_homes(tx, new)
    prefix_ids, now = store_prefixes(tx, [job.submission for job in new])
    rows, of_jobs = rows_of(tx.settings, new, prefix_ids, now, homes)
    tx.execute(_INSERT_JOBS, rows)
    store_chunks(tx, of_jobs)
    open_flows(tx, flows_of(new))


def find_homes(tx: Transaction, new: Iterable[NewJob]) -> dict[PrefixKey, Home]:
    """Return the homes of the prefixes of jobs, by their keys, except for calls: whoever is free answers them."""
    shared = {
        prefix_row(tx.settings, submission).key
        for _, submission in new
        if submission.origin is not Origin.CALL and submission.waiting_chunks and work_of_prefix(len(submission.prefix))
    }
    return homes_of(tx, shared)


def rows_of(
    settings: StoreSettings,
    new: Sequence[NewJob],
    prefix_ids: Sequence[int],
    now: float,
    homes: Mapping[PrefixKey, Home],
) -> tuple[list[dict[str, Any]], list[NewChunk]]:
    """Return the rows of jobs that are accepted now, and their chunks. homes: see :func:`find_homes`."""
    rows: list[dict[str, Any]] = []
    of_jobs: list[NewChunk] = []
    for (job_id, submission), prefix_id in zip(new, prefix_ids, strict=True):
        row = job_row(submission, job_id, prefix_id, now)
        due = due_at(settings, submission.priority, now, row["expires_at"])
        rows.append(row)
        stored = chunks_to_store(submission, submission.chunks, job_id, prefix_id, due, ChunkState.WAITING)
        home = homes.get(prefix_row(settings, submission).key) if homes else None
        if home is not None and submission.origin is not Origin.CALL:
            for chunk in stored:
                chunk.row.update(home=home.worker, home_until=now + home.seconds)
        of_jobs += stored
    return rows, of_jobs


def slack_seconds(settings: StoreSettings, priority: Priority) -> float:
    """Return the seconds from a job's acceptance to its due time. It never changes, so waiting work ages."""
    return {
        Priority.INTERACTIVE: settings.slack_interactive_seconds,
        Priority.NORMAL: settings.slack_normal_seconds,
        Priority.BULK: settings.slack_bulk_seconds,
    }[priority]


def due_at(settings: StoreSettings, priority: Priority, accepted_at: float, expires_at: float | None) -> float:
    """Return the due time of a job's chunks, which orders them among all chunks: Unix seconds."""
    due = accepted_at + slack_seconds(settings, priority)
    return due if expires_at is None else min(due, expires_at)


class _Prefix(NamedTuple):
    """A prefix as it is stored. Prefixes are stored in their order, so that transactions can't deadlock."""

    tenant: str
    tokenizer_fingerprint: str
    sha256: str
    tokens: bytes
    work: int

    @property
    def key(self) -> tuple[str, ...]:
        return self[:3]


def prefix_row(settings: StoreSettings, submission: Submission) -> _Prefix:
    """Return the prefix of a job as it is stored."""
    tokens = pack_ids(submission.prefix)
    owner = SHARED if settings.share_prefixes else submission.tenant
    adapter = submission.options.adapter
    # Behind the name of an adapter, which no token is a part of, the same tokens are another prefix.
    digest = sha256(tokens if adapter is None else f"{adapter}:".encode() + tokens).hexdigest()
    work = work_of_prefix(len(submission.prefix))
    return _Prefix(owner, submission.work_key, digest, tokens, work)


def store_prefixes(tx: Transaction, submissions: Sequence[Submission]) -> tuple[list[int], float]:
    """Store the prefixes that are new. Return the id of each submission's, and the time.

    Nobody can remove them before the transaction ends.
    """
    wanted = [prefix_row(tx.settings, submission) for submission in submissions]
    values = {prefix.key: prefix._asdict() for prefix in wanted}
    rows = get_or_create_all(tx, _FIND_PREFIXES, _CREATE_PREFIXES, values)
    return [rows[prefix.key].id for prefix in wanted], max(row.now for row in rows.values())


_PREFIX_KEY = prefixes.c["tenant", "tokenizer_fingerprint", "sha256"]
_PREFIX = (*_PREFIX_KEY, prefixes.c.id, NOW.label("now"))
_FIND_PREFIXES = FindByKey(select(*_PREFIX).with_for_update(read=True, key_share=True), tuple(_PREFIX_KEY))
_CREATE_PREFIXES = insert_if_new(prefixes).returning(*_PREFIX)


def flows_of(new: Iterable[NewJob]) -> set[Flow]:
    """Return the flows that the chunks of jobs belong to."""
    given = (job.submission for job in new)
    return {Flow(one.model, one.tenant, one.priority is Priority.INTERACTIVE) for one in given if one.waiting_chunks}


def job_row(submission: Submission, job_id: str, prefix_id: int, now: float) -> dict[str, Any]:
    """Return the row of a job that is accepted now. Chunks whose scores are known are finished with that."""
    reused = submission.reused_items
    known = [chunk for chunk in submission.chunks if chunk.is_known] if reused else []
    return {
        "id": job_id,
        "tenant": submission.tenant,
        "model": submission.model,
        "origin": submission.origin.value,
        "priority": submission.priority.value,
        "status": JobStatus.QUEUED.value,
        "prefix_id": prefix_id,
        "total_items": submission.total_items,
        "scored_items": sum(len(chunk.rows) for chunk in known),
        "remaining_chunks": len(submission.chunks) - len(known),
        "prompt_tokens": submission.prompt_tokens,
        "cached_tokens": sum(chunk.prompt_tokens for chunk in known),
        "created_at": now,
        "expires_at": None if submission.expires_in is None else now + submission.expires_in,
        "label_token_ids": pack_ids(submission.label_token_ids),
        "options": pack_options(submission.options),
        "metadata": dict(submission.metadata),
        "warnings": list(submission.warnings),
        "webhook": pack_webhook(submission.webhook),
        "notice_key": submission.notice_key,
        "item_labels": None if submission.item_labels is None else submission.item_labels.to_bytes(),
        "form": None if submission.form is None else dict(submission.form),
        "traceparent": submission.traceparent,
        "stored_bytes": submission.stored_bytes,
        "ends_durably": submission.ends_durably,
        "reused_items": reused,
    }


class NewChunk(NamedTuple):
    """A chunk that is about to be stored."""

    row: dict[str, Any]  # of the table chunks
    inputs: dict[str, bytes | None]  # of the table chunk_inputs, without the id
    scores: dict[str, Any] | None  # of the table chunk_scores, without the id; None: they are to be computed


def chunks_to_store(
    submission: Submission,
    given: Sequence[Chunk],
    job_id: str,
    prefix_id: int,
    due_at: float,
    state: ChunkState,
) -> list[NewChunk]:
    """Return chunks of a job as they are stored. state: of those that have something to compute."""
    has_continuations = submission.options.has_continuations
    shared_ids = (int(submission.prefix.max(initial=0)), *(() if has_continuations else submission.label_token_ids))
    return [
        NewChunk(
            {
                "job_id": job_id,
                "tenant": submission.tenant,
                "model": submission.model,
                "prefix_id": prefix_id,
                "due_at": due_at,
                "state": (ChunkState.DONE if chunk.is_known else state).value,
                "first_item": chunk.first_item,
                "item_count": len(chunk.rows),
                "token_count": chunk.work,
                "failures": 0,
                "tokenizer_fingerprint": submission.work_key,
                "longest_sequence": chunk.longest_sequence + (CONTINUED if has_continuations else 0),
                "highest_token": max(chunk.highest_token, *shared_ids),
                "interactive": submission.priority is Priority.INTERACTIVE,
                "home": None,
                "home_until": None,
            },
            {
                "rows": chunk.rows.to_bytes(),
                "continuations": None if chunk.continuations is None else chunk.continuations.to_bytes(),
                "sources": None if chunk.sources is None or chunk.is_known else chunk.sources.to_bytes(),
            },
            _known_scores(chunk),
        )
        for chunk in given
    ]


def _known_scores(chunk: Chunk) -> dict[str, Any] | None:
    if chunk.sources is None or not chunk.is_known or chunk.sources.known is None:
        return None
    scores = chunk.sources.spread(None)
    return {
        "logits": pack_scores(scores.logits),
        "logprobs": None if scores.logprobs is None else pack_scores(scores.logprobs),
        "cached_tokens": chunk.prompt_tokens,
        "targets": pack_places(scores, None),
        "provenance_id": chunk.sources.known.stored_provenance,
    }


def store_chunks(tx: Transaction, given: Sequence[NewChunk]) -> None:
    """Store chunks, perhaps of several jobs."""
    if not given:
        return
    stored = tx.execute(_INSERT_CHUNKS, [chunk.row for chunk in given])
    ids = {(row.job_id, row.first_item): row.id for row in stored}
    own = [ids[chunk.row["job_id"], chunk.row["first_item"]] for chunk in given]
    tx.execute(_INSERT_INPUTS, [{"chunk_id": one, **chunk.inputs} for one, chunk in zip(own, given, strict=True)])
    scores = [{"chunk_id": one, **chunk.scores} for one, chunk in zip(own, given, strict=True) if chunk.scores]
    if scores:
        tx.execute(_INSERT_SCORES, scores)


_INSERT_CHUNKS = insert(chunks).returning(chunks.c.id, chunks.c.job_id, chunks.c.first_item)
_INSERT_INPUTS = insert(chunk_inputs)
_INSERT_SCORES = insert(chunk_scores)
_INSERT_JOBS = insert(jobs)
