"""Storing new jobs: on PostgreSQL, small ones with one statement.

Large jobs, jobs whose query or flow another transaction is storing, and all jobs on SQLite are stored with a statement
for each table: see :mod:`jobs.queue.new_jobs`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import text

from jobs.queue.ending import end_jobs
from jobs.queue.fair_shares import START
from jobs.queue.new_jobs import NewJob, find_homes, flows_of, prefix_row, rows_of, store_by_steps
from jobs.store.clock import UNIX_SECONDS
from jobs.store.database import Database, Transaction
from jobs.store.hot_statement import HotStatement
from jobs.store.records import JobStatus, Submission
from jobs.store.tables import chunks, jobs

MAX_AT_ONCE_BYTES = 2**19
"""The most bytes of queries, rows and labels that :func:`store_at_once` stores. It writes them as hexadecimal text
within JSON. That takes about seven times their size in memory here, and nine times in PostgreSQL."""


def store_jobs(tx: Transaction, new: Sequence[NewJob]) -> None:
    """Store jobs with their prefixes and chunks, and open their flows. One with nothing to compute has succeeded."""
    empty = [job.id for job in new if not job.submission.waiting_chunks]
    if _fits(tx, new):
        stored = store_at_once(tx, new)
        new = [job for job in new if job.id not in stored]
    if new:
        store_by_steps(tx, new)
    if empty:
        end_jobs(tx, empty, JobStatus.SUCCEEDED)


def store_alone(db: Database, new: Sequence[NewJob], *, durable: bool, lock_seconds: float | None) -> set[str] | None:
    """Do what :func:`store_at_once` does, as a transaction of its own. Return None if that can't be."""
    if not _fits(db, new):
        return None
    with db.without_transaction() as tx:
        return store_at_once(tx, new, durable=durable, lock_seconds=lock_seconds)


def _fits(store: Database | Transaction, new: Iterable[NewJob]) -> bool:
    """Return whether :func:`store_at_once` can store jobs. SQLite can't change several tables in one statement.

    The statement stores no scores, so all chunks must have something to compute.
    """
    if store.is_sqlite or any(chunk.is_known for job in new for chunk in job.submission.chunks):
        return False
    return sum(_bytes(job.submission) for job in new) <= MAX_AT_ONCE_BYTES


def _bytes(submission: Submission) -> int:
    of_chunks = sum(chunk.nbytes for chunk in submission.chunks)
    return int(submission.prefix.nbytes) + submission.bytes_beside_tokens + of_chunks


def store_at_once(
    tx: Transaction, new: Sequence[NewJob], *, durable: bool = True, lock_seconds: float | None = None
) -> set[str]:
    """Store jobs with one statement of PostgreSQL. Return the ids of those it has stored.

    Nothing is stored of a job whose query or flow another transaction has just stored for the first time: the statement
    sees only what was committed before it began. durable, lock_seconds: see :meth:`Database.write`. Give them if the
    statement is a transaction of its own; in a larger one, they change nothing.
    """
    packed = [prefix_row(tx.settings, job.submission) for job in new]
    wanted = sorted(set(packed))
    places = {prefix.key: place for place, prefix in enumerate(wanted)}
    # The statement finds the id of a prefix by its place, and adds the time of the database to all times.
    homes = find_homes(tx, new)
    rows, of_jobs = rows_of(tx.settings, new, [places[prefix.key] for prefix in packed], 0.0, homes)
    settings = {} if durable else {"synchronous_commit": "off"}
    if lock_seconds is not None:
        settings["lock_timeout"] = f"{round(1000 * lock_seconds)}ms"
    given = {
        "settings": settings,
        "prefixes": [prefix._asdict() | {"place": places[prefix.key]} for prefix in wanted],
        "jobs": [_as_texts(row) for row in rows],
        "chunks": [{"chunk": chunk.row, **chunk.inputs} for chunk in of_jobs],
        "flows": [flow._asdict() | {"place": place} for place, flow in enumerate(sorted(flows_of(new)))],
    }
    return {job_id for (job_id,) in STORE.rows(tx, {name: _JSON.encode(value) for name, value in given.items()})}


def _as_texts(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a job with its JSON as texts, which PostgreSQL stores as they are, without a look into them."""
    texts = {name: row.pop(column) for name, column in _JSON_COLUMNS.items()}
    return {"job": row} | {name: None if one is None else json.dumps(one) for name, one in texts.items()}


_JSON_COLUMNS = {"opts": "options", "meta": "metadata", "warns": "warnings", "hook": "webhook", "frm": "form"}


def _encode_bytes(value: bytes) -> str:
    return f"\\x{value.hex()}"


_JSON = json.JSONEncoder(default=_encode_bytes)


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
    "home_until": "created_at + home_until",
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
            SELECT (job).*, {", ".join(_JSON_COLUMNS)}
            FROM json_to_recordset(:jobs) AS x (job jobs, {", ".join(f"{name} text" for name in _JSON_COLUMNS)})
        ) AS job
        JOIN known ON known.place = job.prefix_id,
        (SELECT {UNIX_SECONDS["postgresql"]} AS now) AS clock
        WHERE remaining_chunks = 0 OR (model, tenant, priority = 'interactive') IN (SELECT * FROM open_flow)
        RETURNING id, prefix_id, created_at
    ),
    -- A chunk as it is given, with its inputs beside it.
    given AS (
        SELECT (chunk).*, rows, continuations, sources
        FROM json_to_recordset(:chunks) AS x (chunk chunks, rows bytea, continuations bytea, sources bytea)
    ),
    new_chunk AS (
        INSERT INTO chunks ({", ".join(_CHUNK_VALUES)}) SELECT {", ".join(_CHUNK_VALUES.values())}
        FROM given JOIN new_job ON new_job.id = job_id
        ORDER BY job_id, first_item
        RETURNING id, job_id, first_item
    ),
    new_input AS (
        INSERT INTO chunk_inputs (chunk_id, rows, continuations, sources)
        SELECT new_chunk.id, rows, continuations, sources FROM new_chunk JOIN given USING (job_id, first_item)
    )
    SELECT id FROM new_job
"""
STORE = HotStatement(text(_SQL))
"""Stores what :func:`job_row` and :func:`chunks_to_store` return, as JSON."""
