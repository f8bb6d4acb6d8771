"""Accepting jobs, one or several in one short transaction. Once it is committed, only losing the database loses them.

The number of statements does not depend on the number of jobs. Rows that other transactions may want are locked in this
order: Idempotency-Keys, prefixes, flows, tenants. Of each kind they are locked in the order of their keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import structlog
from sqlalchemy import insert, select

from jobs.queue.ending import end_jobs
from jobs.queue.fair_shares import Flow, open_flows
from jobs.queue.idempotency import WantedKey, check_earlier, take_keys
from jobs.store.clock import NOW
from jobs.store.codec import pack_ids, pack_options
from jobs.store.database import Database, LockedError, StorageUnavailable, Transaction
from jobs.store.identifiers import new_job_id
from jobs.store.records import Accepted, JobStatus, Origin, Submission
from jobs.store.tables import ChunkState, chunk_inputs, chunks, jobs, prefixes
from jobs.store.upsert import FindByKey, get_or_create_all, insert_if_new
from jobs.tenancy.quotas import QuotaFullError, charge, check_size, read_counters, within_quota
from jobs.webhooks.outbox import pack_webhook
from scoring.error_codes import RequestError
from scoring.layout import Chunk, Rows
from scoring.options import Priority
from scoring.work import work_of_group, work_of_rows
from settings.jobs import StoreSettings

SHARED = "*"  # the tenant name that owns prefixes shared by all tenants; no real tenant can have it

GROUP_LOCK_SECONDS = 0.25
"""How long a group waits for a row that another transaction holds, such as the key of a job that is being stored. Most
transactions take a few milliseconds, but that of a large job, or one that waits for the count of a quota, takes long.
"""

Outcome = Accepted | Exception | None
"""What became of one submission of a group: a job, an error of its own, or None if it must be accepted by itself."""

log = structlog.stdlib.get_logger("jobs")


def accept(db: Database, submission: Submission) -> Accepted:
    """Store a job with its work; workers can claim it at once. A job without items succeeds immediately.

    Raises RequestError IDEMPOTENCY_KEY_REUSED, IDEMPOTENCY_IN_PROGRESS, QUOTA_EXCEEDED, REQUEST_TOO_LARGE.
    """

    def attempt() -> Accepted:
        [outcome] = _commit(db, [_Member(submission)], alone=True)
        if not isinstance(outcome, Accepted):
            assert outcome is not None, "alone, a job has room or raises"
            raise outcome
        return outcome

    return within_quota(db, submission.tenant, attempt)


def accept_group(db: Database, submissions: Sequence[Submission]) -> list[Outcome]:
    """Store several jobs in one transaction, as :func:`accept` stores one. None of them fails because of another.

    The outcome of a job is None, and nothing of it is stored, if it could delay the others: if the quota of its tenant
    seems full, if an earlier one of the group has the same Idempotency-Key, or if the transaction failed or waited for
    another one, so that it is not known whose fault that was. Raises StorageUnavailable.
    """
    members = [_Member(submission) for submission in submissions]
    outcomes: dict[str, Outcome] = {}
    group = _with_different_keys(members)
    while group:
        try:
            outcomes = {member.job_id: outcome for member, outcome in zip(group, _commit(db, group), strict=True)}
            break
        except QuotaFullError as full:  # Somebody else has used the room that there seemed to be.
            group = [member for member in group if not (member.price and member.submission.tenant == full.tenant)]
        except StorageUnavailable:
            raise
        except LockedError:  # Who waits longer does so by himself.
            break
        except Exception as error:
            if len(members) == 1:
                return [error]
            log.warning("a group could not be accepted, so its jobs are accepted one by one", error=str(error))
            break
    return [outcomes.get(member.job_id) for member in members]


@dataclass(eq=False)
class _Member:
    """A submission that is about to become a job."""

    submission: Submission

    def __post_init__(self) -> None:
        self.job_id = new_job_id()

    @property
    def key(self) -> WantedKey | None:
        idempotency = self.submission.idempotency
        if idempotency is None:
            return None
        return WantedKey(self.submission.tenant, idempotency.key, idempotency.body_hash, self.job_id)

    @cached_property
    def price(self) -> int:
        """The tokens that are charged to the quota of its tenant; 0 if it has none."""
        if self.submission.quota is None:
            return 0
        return work_of_group(len(self.submission.prefix), (chunk.rows for chunk in self.submission.chunks))


def _with_different_keys(members: Iterable[_Member]) -> list[_Member]:
    """Return the members without a key, and the first one with each key."""
    seen: set[tuple[str, str]] = set()
    different = []
    for member in members:
        key = member.key
        if key is not None:
            if key[:2] in seen:
                continue
            seen.add(key[:2])
        different.append(member)
    return different


def _commit(db: Database, members: Sequence[_Member], *, alone: bool = False) -> list[Outcome]:
    """Store members in one transaction. The outcome of a member without room in its quota is None.

    alone: there is one member. It may wait for others that use its quota, and raises an error if it has no room.
    Raises QuotaFullError if the room was used by others in the end.
    """
    outcomes: dict[str, Outcome] = {}
    # The client of a call has been promised nothing yet, so the work can start before its job is on disk.
    durable = any(member.submission.origin is Origin.JOB for member in members)
    with db.write(durable=durable, lock_seconds=None if alone else GROUP_LOCK_SECONDS) as tx:
        if alone:  # A job that was accepted earlier is found whether or not there is room.
            outcomes = _take_keys(tx, members)
            new = _with_room(tx, [member for member in members if member.job_id not in outcomes], alone=True)
        else:  # No key is taken for a member without room.
            roomy = _with_room(tx, members)
            outcomes = _take_keys(tx, roomy)
            new = [member for member in roomy if member.job_id not in outcomes]
        if new:
            _store(tx, new)
            _charge(tx, new, waits=alone)
            outcomes |= {member.job_id: Accepted(member.job_id, replayed=False) for member in new}
    return [outcomes.get(member.job_id) for member in members]


def _take_keys(tx: Transaction, members: Sequence[_Member]) -> dict[str, Outcome]:
    """Reserve the Idempotency-Keys of members. Return the outcomes of those whose key another job has."""
    wanted = {key.job_id: key for member in members if (key := member.key) is not None}
    outcomes: dict[str, Outcome] = {}
    for job_id, earlier in take_keys(tx, list(wanted.values())).items():
        try:
            check_earlier(wanted[job_id], earlier)
            outcomes[job_id] = Accepted(earlier.job_id, replayed=True)
        except RequestError as error:
            outcomes[job_id] = error
    return outcomes


def _with_room(tx: Transaction, members: Sequence[_Member], *, alone: bool = False) -> list[_Member]:
    """Return the members for which the quotas of their tenants have room, each after those before it.

    alone: raise QuotaFullError for a member without room, or RequestError REQUEST_TOO_LARGE.
    """
    counters = read_counters(tx, {member.submission.tenant for member in members if member.price})
    with_room = []
    for member in members:
        submission = member.submission
        if member.price:
            assert submission.quota is not None
            if alone:
                check_size(submission.quota, member.price)
            waiting = counters.get(submission.tenant, submission.quota) + member.price
            if waiting > submission.quota and alone:
                raise QuotaFullError(submission.tenant)
            if waiting > submission.quota:
                continue
            counters[submission.tenant] = waiting
        with_room.append(member)
    return with_room


def _charge(tx: Transaction, members: Sequence[_Member], *, waits: bool) -> None:
    """Charge tenants with members that are stored."""
    prices: Counter[str] = Counter()
    quotas: dict[str, int] = {}
    for member in members:
        if member.price:
            tenant, quota = member.submission.tenant, member.submission.quota
            assert quota is not None
            prices[tenant] += member.price
            quotas[tenant] = min(quota, quotas.get(tenant, quota))
    for tenant in sorted(prices):
        charge(tx, tenant, quotas[tenant], prices[tenant], waits=waits)


def _store(tx: Transaction, members: Sequence[_Member]) -> None:
    """Store jobs with their prefixes and chunks, and open their flows."""
    prefix_ids, now = store_prefixes(tx, [member.submission for member in members])
    rows: list[dict[str, Any]] = []
    chunks_of_all: list[NewChunk] = []
    for member, prefix_id in zip(members, prefix_ids, strict=True):
        submission = member.submission
        row = job_row(submission, member.job_id, prefix_id, now)
        rows.append(row)
        due = due_at(tx.settings, submission.priority, now, row["expires_at"])
        state = ChunkState.WAITING
        chunks_of_all += chunks_to_store(submission, submission.chunks, member.job_id, prefix_id, due, state)
    tx.execute(_INSERT_JOBS, rows)
    store_chunks(tx, chunks_of_all)
    open_flows(tx, {flow_of(member.submission) for member in members if member.submission.chunks})
    if empty := [member.job_id for member in members if not member.submission.chunks]:
        end_jobs(tx, empty, JobStatus.SUCCEEDED)


def flow_of(submission: Submission) -> Flow:
    """Return the flow that the chunks of a job belong to."""
    return Flow(submission.model, submission.tenant, submission.priority is Priority.INTERACTIVE)


_INSERT_JOBS = insert(jobs)


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


def store_prefixes(tx: Transaction, submissions: Sequence[Submission]) -> tuple[list[int], float]:
    """Store the prefixes that are new. Return the id of each submission's, and the time.

    Nobody can remove them before the transaction ends.
    """
    wanted: dict[tuple[str, str, str], dict[str, Any]] = {}
    keys = []
    for submission in submissions:
        tokens = pack_ids(submission.prefix)
        owner = SHARED if tx.settings.share_prefixes else submission.tenant
        key = (owner, submission.tokenizer_fingerprint, sha256(tokens).hexdigest())
        wanted[key] = dict(zip(_PREFIX_KEY.keys(), key, strict=True)) | {"tokens": tokens}
        keys.append(key)
    rows = get_or_create_all(tx, _FIND_PREFIXES, _CREATE_PREFIXES, wanted)
    return [rows[key].id for key in keys], max(row.now for row in rows.values())


_PREFIX_KEY = prefixes.c["tenant", "tokenizer_fingerprint", "sha256"]
_PREFIX = (*_PREFIX_KEY, prefixes.c.id, NOW.label("now"))
_FIND_PREFIXES = FindByKey(select(*_PREFIX).with_for_update(read=True, key_share=True), tuple(_PREFIX_KEY))
_CREATE_PREFIXES = insert_if_new(prefixes).returning(*_PREFIX)


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
    }


class NewChunk(NamedTuple):
    """A chunk that is about to be stored."""

    row: dict[str, Any]  # of the table chunks
    rows: Rows


def chunks_to_store(
    submission: Submission,
    given: Sequence[Chunk],
    job_id: str,
    prefix_id: int,
    due_at: float,
    state: ChunkState,
) -> list[NewChunk]:
    """Return chunks of a job as they are stored."""
    shared_ids = (int(submission.prefix.max(initial=0)), *submission.label_token_ids)
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
                "token_count": work_of_rows(chunk.rows),
                "failures": 0,
                "tokenizer_fingerprint": submission.tokenizer_fingerprint,
                "longest_sequence": int(chunk.rows.sequence_lengths.max(initial=0)),
                "highest_token": max(int(chunk.rows.tokens.max(initial=0)), *shared_ids),
                "interactive": submission.priority is Priority.INTERACTIVE,
            },
            chunk.rows,
        )
        for chunk in given
    ]


def store_chunks(tx: Transaction, given: Sequence[NewChunk]) -> None:
    """Store chunks, perhaps of several jobs."""
    if not given:
        return
    stored = tx.execute(_INSERT_CHUNKS, [chunk.row for chunk in given])
    ids = {(row.job_id, row.first_item): row.id for row in stored}
    inputs = [
        {"chunk_id": ids[chunk.row["job_id"], chunk.row["first_item"]], "rows": chunk.rows.to_bytes()}
        for chunk in given
    ]
    tx.execute(_INSERT_INPUTS, inputs)


_INSERT_CHUNKS = insert(chunks).returning(chunks.c.id, chunks.c.job_id, chunks.c.first_item)
_INSERT_INPUTS = insert(chunk_inputs)
