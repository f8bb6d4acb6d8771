"""Accepting jobs, one or several in one short transaction. Once it is committed, only losing the database loses them.

The number of statements does not depend on the number of jobs. Rows that other transactions may want are locked in this
order: Idempotency-Keys, prefixes, flows, tenants. Of each kind they are locked in the order of their keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import compress

import structlog

from jobs.queue.idempotency import WantedKey, check_earlier, take_keys
from jobs.queue.new_jobs import NewJob
from jobs.queue.reuse import reusing
from jobs.queue.storing import store_alone, store_jobs
from jobs.store.database import Database, DeadlockError, LockedError, StorageUnavailable, Transaction
from jobs.store.identifiers import new_job_id
from jobs.store.records import Accepted, Origin, Submission
from jobs.tenancy.quotas import QuotaFullError, charge_all, check_size, have_room, within_quota
from scoring.error_codes import RequestError

GROUP_LOCK_SECONDS = 0.25
"""How long a group waits for a row that another transaction holds, such as the key of a job that is being stored. Most
transactions take a few milliseconds, but that of a large job, or one that waits for the count of a quota, takes long.
"""

TRIES = 3
"""How often a transaction is tried that PostgreSQL ends because of a deadlock. All transactions lock in one order, so
there should be none. If there is one all the same, that is no outage: nothing was stored, and the others go on.
"""

Outcome = Accepted | Exception | None
"""What became of one submission of a group: a job, an error of its own, or None if it must be accepted by itself."""

log = structlog.stdlib.get_logger("jobs")


def accept(db: Database, submission: Submission) -> Accepted:
    """Store a job with its work; workers can claim it at once. A job with nothing to compute succeeds immediately.

    Raises RequestError IDEMPOTENCY_KEY_REUSED, IDEMPOTENCY_IN_PROGRESS, QUOTA_EXCEEDED, REQUEST_TOO_LARGE.
    """
    [member] = _members(db, [submission])

    def attempt() -> Accepted:
        [outcome] = _commit(db, [NewJob(new_job_id(), member.submission)], alone=True)
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
    members = _members(db, submissions)
    outcomes: dict[str, Outcome] = {}
    group = _with_different_keys(members)
    while group:
        try:
            outcomes = {member.id: outcome for member, outcome in zip(group, _commit(db, group), strict=True)}
            break
        except QuotaFullError as full:  # Somebody else has used the room that there seemed to be.
            group = [
                member for member in group if not (member.submission.price and member.submission.tenant == full.tenant)
            ]
        except StorageUnavailable:
            raise
        except LockedError:  # Who waits longer does so by himself.
            break
        except Exception as error:
            if len(members) == 1:
                return [error]
            log.warning("a group could not be accepted, so its jobs are accepted one by one", error=str(error))
            break
    return [outcomes.get(member.id) for member in members]


def _members(db: Database, submissions: Sequence[Submission]) -> list[NewJob]:
    """Return new jobs, with the scores that are kept of their items."""
    return [NewJob(new_job_id(), submission) for submission in reusing(db, submissions)]


def _with_different_keys(members: Iterable[NewJob]) -> list[NewJob]:
    """Return the members without a key, and the first one with each key."""
    seen: set[tuple[str, str]] = set()
    different = []
    for member in members:
        key = _key(member)
        if key is not None:
            if key[:2] in seen:
                continue
            seen.add(key[:2])
        different.append(member)
    return different


def _commit(db: Database, members: Sequence[NewJob], *, alone: bool = False) -> list[Outcome]:
    """Store members in one transaction, which is tried again at once if a deadlock ends it.

    The outcome of a member without room in its quota is None. alone: there is one member. It may wait for others that
    use its quota, and raises an error if it has no room. Raises QuotaFullError if the room was used by others in the
    end, and DeadlockError.
    """
    for _ in range(TRIES - 1):
        with suppress(DeadlockError):
            return _try_to_commit(db, members, alone=alone)
    return _try_to_commit(db, members, alone=alone)


def _try_to_commit(db: Database, members: Sequence[NewJob], *, alone: bool) -> list[Outcome]:
    outcomes: dict[str, Outcome] = {}
    # The client of a call has been promised nothing yet, so the work can start before its job is on disk.
    durable = any(member.submission.origin is Origin.JOB for member in members)
    lock_seconds = None if alone else GROUP_LOCK_SECONDS
    is_plain = all(map(_is_plain, members))
    stored = store_alone(db, members, durable=durable, lock_seconds=lock_seconds) if is_plain else None
    if stored or (stored is not None and not alone):
        return [_accepted(one) if one.id in stored else None for one in members]
    with db.write(durable=durable, lock_seconds=lock_seconds) as tx:
        if alone:  # A job that was accepted earlier is found whether or not there is room.
            outcomes = _take_keys(tx, members)
            new = [member for member in members if member.id not in outcomes]
            for member in new:
                check_size(member.submission.quota, member.submission.price)
            if len(_with_room(tx, new)) < len(new):
                raise QuotaFullError(new[0].submission.tenant)
        else:  # No key is taken for a member without room.
            roomy = _with_room(tx, members)
            outcomes = _take_keys(tx, roomy)
            new = [member for member in roomy if member.id not in outcomes]
        if new:
            store_jobs(tx, new)
            charge_all(tx, [member.submission for member in new], waits=alone)
            outcomes |= {member.id: _accepted(member) for member in new}
    return [outcomes.get(member.id) for member in members]


def _accepted(job: NewJob) -> Accepted:
    return Accepted(job.id, replayed=False, reused_items=job.submission.reused_items)


def _is_plain(job: NewJob) -> bool:
    """Whether it takes no more than to store the job: no key, no quota, and no end because nothing is to compute."""
    submission = job.submission
    return submission.idempotency is None and submission.quota is None and submission.waiting_chunks > 0


def _key(job: NewJob) -> WantedKey | None:
    idempotency = job.submission.idempotency
    if idempotency is None:
        return None
    return WantedKey(job.submission.tenant, idempotency.key, idempotency.body_hash, job.id)


def _take_keys(tx: Transaction, members: Sequence[NewJob]) -> dict[str, Outcome]:
    """Reserve the Idempotency-Keys of members. Return the outcomes of those whose key another job has."""
    wanted = {key.job_id: key for member in members if (key := _key(member)) is not None}
    outcomes: dict[str, Outcome] = {}
    for job_id, earlier in take_keys(tx, list(wanted.values())).items():
        try:
            check_earlier(wanted[job_id].key, wanted[job_id].body_hash, earlier.body_hash)
            outcomes[job_id] = Accepted(earlier.job_id, replayed=True)
        except RequestError as error:
            outcomes[job_id] = error
    return outcomes


def _with_room(tx: Transaction, members: Sequence[NewJob]) -> list[NewJob]:
    return list(compress(members, have_room(tx, [member.submission for member in members])))
