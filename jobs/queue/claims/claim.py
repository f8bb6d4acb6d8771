"""Claiming: a worker gets whole groups of chunks, the most urgent first, under a lease."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from checkpoints.card import ModelCard
from jobs.queue.claims import claim_choice
from jobs.queue.claims.claim_choice import Choice, by_flow, choose, flows_without, groups_of
from jobs.queue.claims.claimed_work import claimed_jobs, claimed_work
from jobs.queue.claims.taking import take_all, take_chosen
from jobs.queue.fair_shares import update_flows
from jobs.queue.read import card_parameters, has_waiting
from jobs.store.codec import TOKEN_BYTES
from jobs.store.database import Database, DeadlockError, StorageUnavailable, Transaction
from jobs.store.identifiers import new_batch_id
from jobs.store.records import Claim
from scoring.work import work_of_prefix
from settings.store import StoreSettings

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
    provenance_id: int | None = None,
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

    provenance_id: of the worker, as in WorkerRecord. Kept scores of another provenance are computed anew.
    """
    interactive_only = interactive_only or without is not None
    given = card_parameters(card, worker_id)
    if not (work_left or after_interactive or without is not None):
        with suppress(DeadlockError):
            claimed, work_waits = _claim_all(
                db, worker_id, card, budget_tokens, max_chunks, provenance_id, interactive_only=interactive_only
            )
            if claimed is not None or not work_waits:
                return claimed
    for attempt in range(TRIES):
        try:
            # A crash of the database may undo a claim. The fence then rejects its scores, as the batch id is unknown.
            with db.write(durable=False, avoid_sort=True) as tx:
                choice = choose(tx, given, budget_tokens, max_chunks, interactive_only, after_interactive, without)
                claimed = _take(tx, worker_id, card, choice, provenance_id) if choice.chunks else None
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
        if (
            attempt + 1 == TRIES
            or without is not None
            or not has_waiting(db, card, worker_id, interactive_only=interactive_only)
        ):
            break
        time.sleep(PAUSE_SECONDS)
    return None


def _claim_all(
    db: Database,
    worker_id: str,
    card: ModelCard,
    budget_tokens: int,
    max_chunks: int,
    provenance_id: int | None,
    *,
    interactive_only: bool,
) -> tuple[Claim | None, bool]:
    """Claim all that waits: see :func:`take_all`. Return also whether work may wait for the worker now."""
    given = card_parameters(card, worker_id) | {"budget": budget_tokens, "most": max_chunks}
    batch = _new_batch(db.settings, worker_id, card.name)
    waiting = take_all(db, batch | given, claim_choice.FEW_CHUNKS, interactive_only=interactive_only)
    if waiting is None:
        return None, True
    rows = {row.id: row for row in waiting if row.job_id is not None}
    if not rows:  # Other claims may hold what waits.
        return None, bool(waiting) or has_waiting(db, card, worker_id, interactive_only=interactive_only)
    choice = Choice(interactive=waiting[0].interactive, seen=len(waiting))
    of_flow = by_flow(rows.values())
    choice.fill(chain.from_iterable(map(groups_of, of_flow.values())), budget_tokens, max_chunks)
    if len(of_flow) < waiting[0].open_flows:
        # The claim is committed, so an outage must not end it; a later claim closes them.
        with suppress(StorageUnavailable), db.write(durable=False) as tx:
            empty = flows_without(tx, given, of_flow, interactive=choice.interactive)
            update_flows(tx, card, {}, empty, interactive=choice.interactive)
    return _claimed(batch["in_batch"], rows, choice, provenance_id), len(waiting) > len(rows)


def _take(tx: Transaction, worker_id: str, card: ModelCard, choice: Choice, provenance_id: int | None) -> Claim | None:
    """Make the chosen chunks one batch."""
    tokens = choice.tokens
    batch = _new_batch(tx.settings, worker_id, card.name)
    given = {
        "chunk_ids": [chunk.id for chunk in choice.chunks],
        "of_class": choice.interactive,
        "tokens": {} if choice.maybe_closed else tokens,
    }
    rows = take_chosen(tx, batch | given)
    if not rows:
        return None
    update_flows(tx, card, tokens if choice.maybe_closed else {}, choice.empty, interactive=choice.interactive)
    return _claimed(batch["in_batch"], rows, choice, provenance_id)


def _new_batch(settings: StoreSettings, worker_id: str, model: str) -> dict[str, Any]:
    return {
        "in_batch": new_batch_id(),
        "to_worker": worker_id,
        "lease_seconds": settings.lease_seconds,
        "of_model": model,
    }


def _claimed(batch_id: str, rows: Mapping[int, Any], choice: Choice, provenance_id: int | None) -> Claim:
    """Return what was claimed. rows: of the chosen chunks that were taken, with their inputs."""
    groups, partial = claimed_work(rows, [chunk for chunk in choice.chunks if chunk.id in rows], provenance_id)
    return Claim(
        batch_id,
        groups,
        choice.interactive,
        choice.leaves_work(len(rows)),
        durable=any(row.ends_durably for row in rows.values()),
        tokens=choice.tokens,
        jobs=claimed_jobs(rows.values()),
        partial=partial,
        shared_prefixes=_shared_prefixes(rows, choice),
    )


def _shared_prefixes(rows: Mapping[int, Any], choice: Choice) -> tuple[int, ...]:
    """Return the ids of prefixes that are computed once for their group. One row of each group has its tokens."""
    heads = ((chunk.prefix_id, rows[chunk.id].tokens) for chunk in choice.chunks if chunk.id in rows)
    return tuple(
        prefix_id for prefix_id, tokens in heads if tokens is not None and work_of_prefix(len(tokens) // TOKEN_BYTES)
    )
