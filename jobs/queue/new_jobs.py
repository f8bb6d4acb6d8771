"""Storing new jobs with their queries and chunks, and opening their flows: on PostgreSQL, all of it with one statement.

Rows that other transactions may want are locked in this order: prefixes, flows. Of each kind they are locked in the
order of their keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import insert, select, text

from jobs.queue.ending import end_jobs
from jobs.queue.fair_shares import START, Flow, open_flows
from jobs.store.clock import NOW, UNIX_SECONDS
from jobs.store.codec import pack_ids, pack_options
from jobs.store.database import Database, Transaction
from jobs.store.hot_statement import HotStatement
from jobs.store.records import JobStatus, Submission
from jobs.store.tables import CONTINUED, ChunkState, chunk_inputs, chunks, jobs, prefixes
from jobs.store.upsert import FindByKey, get_or_create_all, insert_if_new
from jobs.webhooks.outbox import pack_webhook
from scoring.layout import Chunk
from scoring.options import Priority
from scoring.work import work_of_prefix
from settings.store import StoreSettings

MAX_AT_ONCE_BYTES = 2**19
"""The most bytes of queries, rows and labels that :func:`store_at_once` stores. It writes them as hexadecimal text
within JSON. That takes about seven times their size in memory here, and nine times in PostgreSQL."""

SHARED = "*"  # the tenant name that owns prefixes shared by all tenants; no real tenant can have it


class NewJob(NamedTuple):
    """A job that is about to be stored."""

    id: str
    submission: Submission


def store_jobs(tx: Transaction, new: Sequence[NewJob]) -> None:
    """Store jobs with their prefixes and chunks, and open their flows. One without items has succeeded with that."""
    empty = [job.id for job in new if not job.submission.chunks]
    if not tx.is_sqlite and fits_at_once(new):  # SQLite can't change several tables in one statement.
        stored = store_at_once(tx, new)
        new = [job for job in new if job.id not in stored]
    if new:
        store_by_steps(tx, new)
    if empty:
        end_jobs(tx, empty, JobStatus.SUCCEEDED)


def store_alone(db: Database, new: Sequence[NewJob], *, durable: bool, lock_seconds: float | None) -> set[str] | None:
    """Do what :func:`store_at_once` does, as a transaction of its own. Return None if that can't be."""
    if db.is_sqlite or not fits_at_once(new):
        return None
    with db.without_transaction() as tx:
        return store_at_once(tx, new, durable=durable, lock_seconds=lock_seconds)


def fits_at_once(new: Iterable[NewJob]) -> bool:
    """Return whether jobs are small enough for :func:`store_at_once`."""
    return sum(_bytes(job.submission) for job in new) <= MAX_AT_ONCE_BYTES


def _bytes(submission: Submission) -> int:
    labels = 0 if submission.item_labels is None else submission.item_labels.nbytes
    return int(submission.prefix.nbytes) + labels + sum(chunk.nbytes for chunk in submission.chunks)


def store_by_steps(tx: Transaction, new: Sequence[NewJob]) -> None:
    """Do the same with a statement for each table."""
    prefix_ids, now = store_prefixes(tx, [job.submission for job in new])
    rows, of_jobs = _rows(tx.settings, new, prefix_ids, now)
    tx.execute(_INSERT_JOBS, rows)
    store_chunks(tx, of_jobs)
    open_flows(tx, _flows_of(new))


def store_at_once(
    tx: Transaction, new: Sequence[NewJob], *, durable: bool = True, lock_seconds: float | None = None
) -> set[str]:
    """Store jobs with one statement of PostgreSQL, as :func:`store_jobs` does. Return the ids of those it has stored.

    Nothing is stored of a job whose query or flow another transaction has just stored for the first time: the statement
    sees only what was committed before it began. durable, lock_seconds: see :meth:`Database.write`. Give them if the
    statement is a transaction of its own; in a larger one, they change nothing.
    """
    packed = [_prefix(tx.settings, job.submission) for job in new]
    wanted = sorted(set(packed))
    places = {prefix.key: place for place, prefix in enumerate(wanted)}
    # The statement finds the id of a prefix by its place, and adds the time of the database to all times.
    rows, of_jobs = _rows(tx.settings, new, [places[prefix.key] for prefix in packed], 0.0)
    settings = {} if durable else {"synchronous_commit": "off"}
    if lock_seconds is not None:
        settings["lock_timeout"] = f"{round(1000 * lock_seconds)}ms"
    given = {
        "settings": settings,
        "prefixes": [prefix._asdict() | {"place": places[prefix.key]} for prefix in wanted],
        "jobs": [_as_texts(row) for row in rows],
        "chunks": [{"chunk": chunk.row, **chunk.inputs} for chunk in of_jobs],
        "flows": [flow._asdict() | {"place": place} for place, flow in enumerate(sorted(_flows_of(new)))],
    }
    return {job_id for (job_id,) in STORE.rows(tx, {name: _JSON.encode(value) for name, value in given.items()})}


def _rows(
    settings: StoreSettings, new: Sequence[NewJob], prefix_ids: Sequence[int], now: float
) -> tuple[list[dict[str, Any]], list[NewChunk]]:
    """Return the rows of jobs that are accepted now, and their chunks."""
    rows: list[dict[str, Any]] = []
    of_jobs: list[NewChunk] = []
    for (job_id, submission), prefix_id in zip(new, prefix_ids, strict=True):
        row = job_row(submission, job_id, prefix_id, now)
        due = due_at(settings, submission.priority, now, row["expires_at"])
        rows.append(row)
        of_jobs += chunks_to_store(submission, submission.chunks, job_id, prefix_id, due, ChunkState.WAITING)
    return rows, of_jobs


def _as_texts(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a job with its JSON as texts, which PostgreSQL stores as they are, without a look into them."""
    texts = {name: row.pop(column) for name, column in _JSON_COLUMNS.items()}
    return {"job": row} | {name: None if one is None else json.dumps(one) for name, one in texts.items()}


_JSON_COLUMNS = {"opts": "options", "meta": "metadata", "warns": "warnings", "hook": "webhook"}


def _encode_bytes(value: bytes) -> str:
    return f"\\x{value.hex()}"


_JSON = json.JSONEncoder(default=_encode_bytes)


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


def _prefix(settings: StoreSettings, submission: Submission) -> _Prefix:
    tokens = pack_ids(submission.prefix)
    owner = SHARED if settings.share_prefixes else submission.tenant
    digest, work = sha256(tokens).hexdigest(), work_of_prefix(len(submission.prefix))
    return _Prefix(owner, submission.tokenizer_fingerprint, digest, tokens, work)


def store_prefixes(tx: Transaction, submissions: Sequence[Submission]) -> tuple[list[int], float]:
    """Store the prefixes that are new. Return the id of each submission's, and the time.

    Nobody can remove them before the transaction ends.
    """
    wanted = [_prefix(tx.settings, submission) for submission in submissions]
    values = {prefix.key: prefix._asdict() for prefix in wanted}
    rows = get_or_create_all(tx, _FIND_PREFIXES, _CREATE_PREFIXES, values)
    return [rows[prefix.key].id for prefix in wanted], max(row.now for row in rows.values())


_PREFIX_KEY = prefixes.c["tenant", "tokenizer_fingerprint", "sha256"]
_PREFIX = (*_PREFIX_KEY, prefixes.c.id, NOW.label("now"))
_FIND_PREFIXES = FindByKey(select(*_PREFIX).with_for_update(read=True, key_share=True), tuple(_PREFIX_KEY))
_CREATE_PREFIXES = insert_if_new(prefixes).returning(*_PREFIX)


def _flows_of(new: Iterable[NewJob]) -> set[Flow]:
    """Return the flows that the chunks of jobs belong to."""
    given = (job.submission for job in new)
    return {Flow(one.model, one.tenant, one.priority is Priority.INTERACTIVE) for one in given if one.chunks}


def job_row(submission: Submission, job_id: str, prefix_id: int, now: float) -> dict[str, Any]:
    """Return the row of a job that is accepted now, with all of its chunks unfinished."""
    return {
        "id": job_id,
        "tenant": submission.tenant,
        "model": submission.model,
        "origin": submission.origin.value,
        "priority": submission.priority.value,
        "status": JobStatus.QUEUED.value,
        "prefix_id": prefix_id,
        "total_items": submission.total_items,
        "scored_items": 0,
        "remaining_chunks": len(submission.chunks),
        "prompt_tokens": submission.prompt_tokens,
        "cached_tokens": 0,
        "created_at": now,
        "expires_at": None if submission.expires_in is None else now + submission.expires_in,
        "label_token_ids": pack_ids(submission.label_token_ids),
        "options": pack_options(submission.options),
        "metadata": dict(submission.metadata),
        "warnings": list(submission.warnings),
        "webhook": pack_webhook(submission.webhook),
        "notice_key": submission.notice_key,
        "item_labels": None if submission.item_labels is None else submission.item_labels.to_bytes(),
        "traceparent": submission.traceparent,
        "stored_bytes": submission.stored_bytes,
        "ends_durably": submission.ends_durably,
    }


class NewChunk(NamedTuple):
    """A chunk that is about to be stored."""

    row: dict[str, Any]  # of the table chunks
    inputs: dict[str, bytes | None]  # of the table chunk_inputs, without the id


def chunks_to_store(
    submission: Submission,
    given: Sequence[Chunk],
    job_id: str,
    prefix_id: int,
    due_at: float,
    state: ChunkState,
) -> list[NewChunk]:
    """Return chunks of a job as they are stored."""
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
                "state": state.value,
                "first_item": chunk.first_item,
                "item_count": len(chunk.rows),
                "token_count": chunk.work,
                "failures": 0,
                "tokenizer_fingerprint": submission.tokenizer_fingerprint,
                "longest_sequence": chunk.longest_sequence + (CONTINUED if has_continuations else 0),
                "highest_token": max(chunk.highest_token, *shared_ids),
                "interactive": submission.priority is Priority.INTERACTIVE,
            },
            {
                "rows": chunk.rows.to_bytes(),
                "continuations": None if chunk.continuations is None else chunk.continuations.to_bytes(),
            },
        )
        for chunk in given
    ]


def store_chunks(tx: Transaction, given: Sequence[NewChunk]) -> None:
    """Store chunks, perhaps of several jobs."""
    if not given:
        return
    stored = tx.execute(_INSERT_CHUNKS, [chunk.row for chunk in given])
    ids = {(row.job_id, row.first_item): row.id for row in stored}
    inputs = [{"chunk_id": ids[chunk.row["job_id"], chunk.row["first_item"]], **chunk.inputs} for chunk in given]
    tx.execute(_INSERT_INPUTS, inputs)


_INSERT_CHUNKS = insert(chunks).returning(chunks.c.id, chunks.c.job_id, chunks.c.first_item)
_INSERT_INPUTS = insert(chunk_inputs)
_INSERT_JOBS = insert(jobs)

# The columns of new rows, with their values in the statement. All others are null, or are given by the database.
_LATER = {"started_at", "finished_at", "received_at", "remove_at", "error_code", "error_message"}
_JOB_VALUES = {column.name: column.name for column in jobs.c if column.name not in _LATER} | {
    "id": "job.id",
    "prefix_id": "known.id",
    "created_at": "now + created_at",
    "expires_at": "now + expires_at",
    **{column: f"{name}::json" for name, column in _JSON_COLUMNS.items()},
}
_CHUNK_VALUES = {
    column.name: column.name for column in chunks.c if column.name not in {"id", "batch_id", "batch_limit"}
} | {
    "prefix_id": "new_job.prefix_id",
    "due_at": "created_at + due_at",
}
_SQL = f"""
    WITH setting AS (
        SELECT set_config(key, value, true) FROM json_each_text(:settings)
    ),
    -- Each query is looked up by the index, whatever the statistics say, and locked, so that nobody removes it.
    prefix AS (
        SELECT w.*, (
            SELECT id FROM prefixes AS p
            WHERE p.tenant = w.tenant
            AND p.tokenizer_fingerprint = w.tokenizer_fingerprint
            AND p.sha256 = w.sha256
            FOR KEY SHARE
        ) AS id
        FROM json_to_recordset(:prefixes) AS w (
            place int, tenant text, tokenizer_fingerprint text, sha256 text, tokens bytea, work int
        )
        -- The settings apply before the first lock is waited for.
        WHERE (SELECT count(*) FROM setting) >= 0
    ),
    -- If another transaction is storing the same query, this waits for it, and then returns nothing.
    added AS (
        INSERT INTO prefixes (tenant, tokenizer_fingerprint, sha256, tokens, work)
        SELECT tenant, tokenizer_fingerprint, sha256, tokens, work FROM prefix WHERE id IS NULL ORDER BY place
        ON CONFLICT DO NOTHING RETURNING id, tenant, tokenizer_fingerprint, sha256
    ),
    known AS (
        SELECT place, id FROM prefix WHERE id IS NOT NULL
        UNION ALL
        SELECT place, added.id FROM added JOIN prefix USING (tenant, tokenizer_fingerprint, sha256)
    ),
    flow AS (
        SELECT w.*, (
            SELECT is_open FROM lanes AS l
            WHERE (l.model, l.tenant, l.interactive) = (w.model, w.tenant, w.interactive)
            FOR KEY SHARE
        ) AS is_open
        FROM json_to_recordset(:flows) AS w (place int, model text, tenant text, interactive bool)
        -- All queries are locked before the first flow.
        WHERE (SELECT count(*) FROM known) >= 0
    ),
    to_open AS (
        SELECT lanes.*, {START} AS start FROM flow AS lanes WHERE is_open IS NOT TRUE
    ),
    -- All missing flows are created before one is opened, as open_flows() does it: two orders could deadlock.
    created AS (
        INSERT INTO lanes (model, tenant, interactive, is_open, virtual_time)
        SELECT model, tenant, interactive, true, start FROM to_open WHERE is_open IS NULL ORDER BY place
        ON CONFLICT DO NOTHING RETURNING model, tenant, interactive
    ),
    closed AS (
        SELECT model, tenant, interactive, start
        FROM to_open JOIN lanes USING (model, tenant, interactive)
        WHERE NOT to_open.is_open AND (SELECT count(*) FROM created) >= 0
        ORDER BY place FOR NO KEY UPDATE OF lanes
    ),
    opened AS (
        UPDATE lanes AS l SET is_open = true, virtual_time = greatest(virtual_time, start) FROM closed AS c
        WHERE (l.model, l.tenant, l.interactive) = (c.model, c.tenant, c.interactive)
        RETURNING l.model, l.tenant, l.interactive
    ),
    open_flow AS (
        SELECT model, tenant, interactive FROM flow WHERE is_open
        UNION ALL SELECT * FROM opened
        UNION ALL SELECT * FROM created
    ),
    new_job AS (
        INSERT INTO jobs ({", ".join(_JOB_VALUES)}) SELECT {", ".join(_JOB_VALUES.values())}
        FROM (
            SELECT (job).*, opts, meta, warns, hook
            FROM json_to_recordset(:jobs) AS x (job jobs, opts text, meta text, warns text, hook text)
        ) AS job
        JOIN known ON known.place = job.prefix_id,
        (SELECT {UNIX_SECONDS["postgresql"]} AS now) AS clock
        WHERE remaining_chunks = 0 OR (model, tenant, priority = 'interactive') IN (SELECT * FROM open_flow)
        RETURNING id, prefix_id, created_at
    ),
    -- A chunk as it is given, with its inputs beside it.
    given AS (
        SELECT (chunk).*, rows, continuations
        FROM json_to_recordset(:chunks) AS x (chunk chunks, rows bytea, continuations bytea)
    ),
    new_chunk AS (
        INSERT INTO chunks ({", ".join(_CHUNK_VALUES)}) SELECT {", ".join(_CHUNK_VALUES.values())}
        FROM given JOIN new_job ON new_job.id = job_id
        ORDER BY job_id, first_item
        RETURNING id, job_id, first_item
    ),
    new_input AS (
        INSERT INTO chunk_inputs (chunk_id, rows, continuations)
        SELECT new_chunk.id, rows, continuations FROM new_chunk JOIN given USING (job_id, first_item)
    )
    SELECT id FROM new_job
"""
STORE = HotStatement(text(_SQL))
"""Stores what :func:`job_row` and :func:`chunks_to_store` return, as JSON."""
