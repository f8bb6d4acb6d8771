"""Claiming: a worker gets whole groups of chunks, the most urgent first, under a lease."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from sqlalchemy import CTE, Select, Update, and_, bindparam, func, select, update

from checkpoints.card import ModelCard
from jobs.queue.claims.claim_at_once import claim_all
from jobs.queue.claims.claim_choice import Choice, choose
from jobs.queue.claims.claimed_work import claimed_jobs, claimed_work
from jobs.queue.fair_shares import charging, update_flows
from jobs.queue.lease import granting
from jobs.queue.read import has_waiting
from jobs.store.clock import NOW
from jobs.store.database import Database, DeadlockError, Transaction
from jobs.store.identifiers import new_batch_id
from jobs.store.lists import is_one_of
from jobs.store.records import Claim, JobStatus
from jobs.store.tables import ChunkState, chunk_inputs, chunks, jobs, prefixes

MAX_CHUNKS = 1_024  # in one batch: this bounds every transaction that handles a batch
TRIES = 5
PAUSE_SECONDS = 0.005  # between two tries


def claim(
    db: Database,
    worker_id: str,
    card: ModelCard,
    budget_tokens: int,
    max_chunks: int = MAX_CHUNKS,
    *,
    interactive_only: bool = False,
    after_interactive: bool = False,
    work_left: bool = False,
    without: Collection[str] | None = None,
) -> Claim | None:
    """Claim waiting chunks for a worker; return None if there is none that it can score.

    card: what the worker serves; chunks with ids of another tokenizer, or too large for its model, keep waiting.
    budget_tokens: how much work may be claimed, counted as in :mod:`scoring.work`: all rows, and once for each group
    its prefix. If the first chunk is larger than the budget, it is claimed alone.

    Flows are served in the order of :mod:`jobs.queue.fair_shares` while the budget lasts. In each flow, the group (the
    chunks with the same prefix) that holds the most urgent chunk comes first. The other groups follow, in the order of
    their most urgent chunks. A chunk is never claimed twice, however many workers claim at once.

    A batch is either all interactive or not interactive at all, because interactive chunks would have to wait for the
    others. With ``interactive_only`` only interactive chunks are claimed, even if others are more urgent. With
    ``after_interactive``, because the worker's last claim was interactive and left work behind, this claim is not
    interactive if a tenant without interactive work waits for its turn. So a backlog of interactive work delays the
    other work of its own tenant, and that of another tenant by one claim.

    With ``without``, only interactive chunks of other tenants than these are claimed, and only what fits the budget. It
    is for a claim that makes longer interactive work wait.

    work_left: whether the worker's last claim left work behind. Otherwise PostgreSQL is asked for all that waits with
    one statement. Only if that is more than fits, the work is chosen here, in a transaction of four round trips.
    """
    interactive_only = interactive_only or without is not None
    if not (db.is_sqlite or work_left or after_interactive or without is not None):
        with suppress(DeadlockError):
            at_once = claim_all(db, worker_id, card, budget_tokens, max_chunks, interactive_only=interactive_only)
            if at_once.claimed is not None or not at_once.work_waits:
                return at_once.claimed
    for attempt in range(TRIES):
        try:
            # A crash of the database may undo a claim. The fence then rejects its scores, as the batch id is unknown.
            with db.write(durable=False, avoid_sort=True) as tx:
                choice = choose(tx, card, budget_tokens, max_chunks, interactive_only, after_interactive, without)
                claimed = _take(tx, worker_id, card.name, choice) if choice.chunks else None
        except DeadlockError:
            # All transactions lock flows in one order: see jobs.queue.fair_shares. If PostgreSQL ends a claim because
            # of a deadlock all the same, that is no outage.
            if attempt + 1 == TRIES:
                raise
            continue
        if claimed is not None:
            return claimed
        # Other claims lock more rows than they take, and release them a moment later.
        # A claim of short work alone leaves other work behind, which is no reason to try again.
        if attempt + 1 == TRIES or without is not None or not has_waiting(db, card, interactive_only=interactive_only):
            break
        time.sleep(PAUSE_SECONDS)
    return None


def _take(tx: Transaction, worker_id: str, model: str, choice: Choice) -> Claim | None:
    """Make the chosen chunks one batch. If rows were not locked, the condition of the update decides who gets them."""
    batch_id = new_batch_id()
    tokens: Counter[str] = Counter()
    for chunk in choice.chunks:
        tokens[chunk.tenant] += chunk.cost
    values = {
        "chunk_ids": [chunk.id for chunk in choice.chunks],
        "in_batch": batch_id,
        "to_worker": worker_id,
        "lease_seconds": tx.settings.lease_seconds,
        "of_model": model,
        "of_class": choice.interactive,
        "tokens": {} if choice.maybe_closed else tokens,
    }
    for statement in _TAKE_BY_STEPS if tx.is_sqlite else ():
        tx.execute(statement, values)
    rows = {row.id: row for row in tx.execute(_LOAD_TAKEN if tx.is_sqlite else _TAKE_AND_LOAD, values)}
    if not rows:
        return None
    work = claimed_work(rows, [chunk for chunk in choice.chunks if chunk.id in rows])
    update_flows(tx, model, tokens if choice.maybe_closed else {}, choice.empty, interactive=choice.interactive)
    durable = any(row.ends_durably for row in rows.values())
    jobs_of_work = claimed_jobs(rows.values())
    return Claim(batch_id, work, choice.interactive, choice.leaves_work(len(rows)), durable, tokens, jobs_of_work)


def _starting(taken: CTE) -> Update:
    """Return a statement that starts the jobs of chunks that were taken.

    A claim holds chunks already, so it must not wait for the lock of a job. A locked job is skipped: either another
    claim is starting it, or it is ending. If a skipped job is still queued later, its first finished chunk starts it.
    """
    queued = (
        select(jobs.c.id)
        .where(jobs.c.id.in_(select(taken.c.job_id)), jobs.c.status == JobStatus.QUEUED.value)
        .with_for_update(key_share=True, skip_locked=True)
        .cte("queued")
    )
    started = {"status": JobStatus.RUNNING.value, "started_at": NOW}
    return update(jobs).where(jobs.c.id.in_(select(queued.c.id))).values(started)


def _loading(taken: CTE) -> Select[Any]:
    """Return a query for the inputs of chunks that were taken."""
    # A prefix may be long, so it is read with one chunk of its group only.
    bearers = select(func.min(taken.c.id)).group_by(taken.c.prefix_id)
    return (
        select(
            *taken.c["id", "job_id"],
            *chunk_inputs.c["rows", "continuations"],
            *jobs.c["label_token_ids", "options", "priority", "traceparent", "ends_durably"],
            *prefixes.c["tokens", "tokenizer_fingerprint"],
            prefixes.c.tenant.label("owner"),
        )
        .join(chunk_inputs, chunk_inputs.c.chunk_id == taken.c.id)
        .join(jobs, jobs.c.id == taken.c.job_id)
        .outerjoin(prefixes, and_(prefixes.c.id == taken.c.prefix_id, taken.c.id.in_(bearers)))
    )


# Written so that no index of waiting chunks fits: if old statistics say that few chunks wait, PostgreSQL would read all
# of such an index instead of finding the chunks by their ids.
_STILL_WAITING = chunks.c.state.concat("") == ChunkState.WAITING.value
_TAKE = (
    update(chunks)
    .where(is_one_of(chunks.c.id, "chunk_ids"), _STILL_WAITING)
    .values(state=ChunkState.CLAIMED.value, batch_id=bindparam("in_batch"))
)
_COLUMNS = chunks.c["id", "job_id", "prefix_id"]
# PostgreSQL runs all of it as one statement.
_TAKEN = _TAKE.returning(*_COLUMNS).cte("taken")
_TAKE_AND_LOAD = _loading(_TAKEN).add_cte(
    _starting(_TAKEN).cte("started"), granting(_TAKEN).cte("granted"), charging(_TAKEN).cte("charged_flows")
)
# SQLite can't change several tables in one statement.
_NOW_TAKEN = (
    select(*_COLUMNS)
    .where(is_one_of(chunks.c.id, "chunk_ids"), chunks.c.batch_id == bindparam("in_batch"))
    .cte("taken")
)
_TAKE_BY_STEPS = (_TAKE, _starting(_NOW_TAKEN), granting(_NOW_TAKEN), charging(_NOW_TAKEN))
_LOAD_TAKEN = _loading(_NOW_TAKEN)
