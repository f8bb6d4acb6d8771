"""Claiming all that waits with one statement of PostgreSQL, which is a transaction of its own.

A worker that keeps up with its work, such as calls, finds few chunks, which fit into one batch. So there is nothing to
choose, and the claim takes one round trip.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from sqlalchemy import BigInteger, bindparam, text

from checkpoints.card import ModelCard
from jobs.queue.claims import claim_choice
from jobs.queue.claims.claim_choice import Chosen, by_flow, groups_of
from jobs.queue.claims.claimed_work import claimed_jobs, claimed_work
from jobs.queue.fair_shares import update_flows
from jobs.queue.read import card_parameters
from jobs.store.clock import UNIX_SECONDS
from jobs.store.codec import TOKEN_BYTES
from jobs.store.database import Database, StorageUnavailable
from jobs.store.hot_statement import HotStatement
from jobs.store.identifiers import new_batch_id
from jobs.store.records import Claim
from jobs.store.tables import CONTINUED


class AllAtOnce(NamedTuple):
    """What :func:`claim_all` has found."""

    claimed: Claim | None
    work_waits: bool  # whether work waits for the worker that was not claimed; others may hold it at the moment


def claim_all(
    db: Database, worker_id: str, card: ModelCard, budget_tokens: int, max_chunks: int, *, interactive_only: bool
) -> AllAtOnce:
    """Claim all waiting chunks of the class of the most urgent one, or nothing if they do not all fit into one batch.

    Nothing is claimed, either, if :data:`jobs.queue.claims.claim_choice.FEW_CHUNKS` chunks wait or more, if a flow with
    work is closed, or if a chunk limits its next batch. The parameters are those of
    :func:`jobs.queue.claims.claim.claim`.
    """
    batch_id = new_batch_id()
    values = card_parameters(card) | {
        "budget": budget_tokens,
        "most": max_chunks,
        "in_batch": batch_id,
        "to_worker": worker_id,
        "lease_seconds": db.settings.lease_seconds,
    }
    with db.without_transaction() as tx:
        found = _statement(claim_choice.FEW_CHUNKS, interactive_only).rows(tx, values)
    first = found[0]
    if first.id is None:
        return AllAtOnce(None, first.work_waits)
    found = sorted(found, key=lambda row: (row.due_at, row.id))
    chosen = [
        Chosen(row.id, row.prefix_id, row.tenant, row.token_count + (0 if place else prefix_tokens))
        for of_flow in by_flow(found).values()
        for rows, prefix_tokens in groups_of(of_flow)
        for place, row in enumerate(rows)
    ]
    if first.empty:
        _close(db, card.name, first.empty, first.interactive)
    work_left = first.seen > len(found)
    claimed = Claim(
        batch_id,
        claimed_work({row.id: row for row in found}, chosen),
        first.interactive,
        work_left,
        durable=any(row.ends_durably for row in found),
        tokens=_tokens(chosen),
        jobs=claimed_jobs(found),
    )
    return AllAtOnce(claimed, work_left)


def _tokens(chosen: list[Chosen]) -> Counter[str]:
    tokens: Counter[str] = Counter()
    for chunk in chosen:
        tokens[chunk.tenant] += chunk.cost
    return tokens


def _close(db: Database, model: str, empty: list[str], interactive: bool) -> None:
    """Close flows without work. The claim is committed, so an outage must not end it; a later claim closes them."""
    with suppress(StorageUnavailable), db.write(durable=False) as tx:
        update_flows(tx, model, {}, empty, interactive=interactive)


@cache
def _statement(few: int, interactive_only: bool) -> HotStatement:
    """Return the statement. Its first row says what waits, and each row holds a chunk that was taken, if any was.

    The limit is part of the text, because PostgreSQL plans the statement once for all values of its parameters.
    """
    claimable = f"""
        state = 'waiting' AND model = :for_model AND tokenizer_fingerprint = :for_tokenizer
        AND longest_sequence & {CONTINUED - 1} <= :for_context AND highest_token < :for_vocabulary
        {"AND interactive" if interactive_only else ""}
        ORDER BY due_at, id"""
    of_class = "l.model = :for_model AND l.interactive = (SELECT interactive FROM head)"
    sql = f"""
        WITH waiting AS (
            SELECT id, tenant, prefix_id, interactive, token_count, batch_limit, due_at,
                (SELECT coalesce(work, length(tokens) / {TOKEN_BYTES}) FROM prefixes AS p WHERE p.id = prefix_id)
                    AS prefix_work
            FROM chunks WHERE {claimable} LIMIT {few} FOR UPDATE SKIP LOCKED
        ),
        head AS (SELECT interactive FROM waiting ORDER BY due_at, id LIMIT 1),
        part AS (
            SELECT tenant, count(*) AS chunks, count(batch_limit) AS limits,
                sum(token_count) + max(prefix_work) AS tokens
            FROM waiting WHERE interactive = (SELECT interactive FROM head) GROUP BY tenant, prefix_id
        ),
        flow AS (
            SELECT tenant, sum(chunks) AS chunks, sum(limits) AS limits, sum(tokens) AS tokens, (
                SELECT virtual_time FROM lanes AS l WHERE {of_class} AND l.tenant = part.tenant AND is_open
            ) AS turn
            FROM part GROUP BY tenant
        ),
        fits AS (
            SELECT sum(chunks) <= :most AND sum(tokens) <= :budget AND sum(limits) = 0 AND count(turn) = count(*)
                AND (SELECT count(*) FROM waiting) < {few} AS all_of_them
            FROM flow
        ),
        taken AS (
            UPDATE chunks SET state = 'claimed', batch_id = :in_batch
            WHERE id = ANY (ARRAY(
                SELECT id FROM waiting
                WHERE interactive = (SELECT interactive FROM head) AND (SELECT all_of_them FROM fits)
            ))
            RETURNING id, job_id, prefix_id
        ),
        -- A claim holds chunks already, so it must not wait for a job. See jobs.queue.claims.claim.
        queued AS (
            SELECT id FROM jobs
            WHERE id = ANY (ARRAY(SELECT job_id FROM taken)) AND status = 'queued' FOR NO KEY UPDATE SKIP LOCKED
        ),
        started AS (
            UPDATE jobs SET status = 'running', started_at = {UNIX_SECONDS["postgresql"]}
            WHERE id = ANY (ARRAY(SELECT id FROM queued))
        ),
        -- A crash may undo a claim. The fence then rejects its scores, as the batch is unknown.
        granted AS (
            INSERT INTO batches (id, worker_id, lease_until)
            SELECT :in_batch, :to_worker, {UNIX_SECONDS["postgresql"]} + :lease_seconds
            WHERE EXISTS (SELECT FROM taken) AND set_config('synchronous_commit', 'off', true) = 'off'
        ),
        charge AS (
            SELECT l.tenant, tokens / coalesce((SELECT weight FROM tenants AS t WHERE t.name = l.tenant), 1) AS time
            FROM lanes AS l JOIN flow USING (tenant)
            WHERE {of_class} AND EXISTS (SELECT FROM taken) ORDER BY l.tenant COLLATE "C" FOR NO KEY UPDATE OF l
        ),
        charged AS (
            UPDATE lanes AS l SET virtual_time = virtual_time + time FROM charge
            WHERE {of_class} AND l.tenant = charge.tenant
        ),
        found AS (
            SELECT count(*) AS seen,
                count(*) > 0 OR (SELECT id FROM chunks WHERE {claimable} LIMIT 1) IS NOT NULL AS work_waits,
                ARRAY(
                    SELECT tenant FROM lanes AS l
                    WHERE {of_class} AND is_open AND tenant NOT IN (SELECT tenant FROM flow)
                    ORDER BY virtual_time LIMIT {claim_choice.MAX_FLOWS}
                ) AS empty
            FROM waiting
        )
        SELECT found.*, taken.id, taken.prefix_id, w.tenant, w.interactive, w.token_count, w.due_at, w.prefix_work,
            job_id, priority, traceparent, turn, rows, continuations, label_token_ids, options, p.tokens,
            p.tenant AS owner,
            p.tokenizer_fingerprint, ends_durably
        FROM found LEFT JOIN (
            taken JOIN waiting AS w USING (id) JOIN flow USING (tenant)
            JOIN chunk_inputs AS i ON i.chunk_id = taken.id JOIN jobs AS j ON j.id = taken.job_id
            LEFT JOIN prefixes AS p
                ON p.id = taken.prefix_id AND taken.id IN (SELECT min(id) FROM taken GROUP BY prefix_id)
        ) ON true"""
    return HotStatement(
        text(sql).bindparams(bindparam("budget", type_=BigInteger), bindparam("most", type_=BigInteger))
    )
