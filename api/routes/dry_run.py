"""Say what a job would take, without storing it: the answer, whose shape is ``api.answers.schemas.jobs.DryRun``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap
from typing import Any

from api.acceptance.acceptance import Acceptance
from api.answers.presentation import show_usage
from api.callers.compatibility import Compatibility
from api.callers.storage_quota import check_stored_bytes
from api.store import Store
from jobs.queue.statistics import WaitingWork
from jobs.store.database import Database
from jobs.store.records import Submission, WorkerRecord
from jobs.tenancy.quotas import check_size, has_room
from scoring.chunk import sequence_tokens
from scoring.planning.description import planner_of
from scoring.planning.forecast import Pace, forecast
from scoring.work import work_of_group


@dataclass(frozen=True, slots=True)
class _Situation:
    """What a job would meet."""

    compatibility: Compatibility
    waiting: WaitingWork
    has_quota: bool
    has_storage: bool


async def dry_run(store: Store, acceptance: Acceptance, submission: Submission) -> dict[str, Any]:
    """Return what a job would take. Raises RequestError if it could never be accepted, StorageUnavailable."""
    work = work_of_group(len(submission.prefix), submission.chunks)
    if submission.quota is not None:
        check_size(submission.quota, work)
    check_stored_bytes(submission.stored_bytes, acceptance.storage_quota.most)
    situation = await store.in_turn(submission.tenant, _look, acceptance, submission, work)
    return await store.threads.text_of(submission.tenant, _foresee, submission, work, situation)


def _look(db: Database, acceptance: Acceptance, submission: Submission, work: int) -> _Situation:
    quota, door = submission.quota, acceptance.doors.of(submission)
    return _Situation(
        door.compatibility.current(),
        door.admission.waiting_work(),
        quota is None or has_room(db, submission.tenant, quota, work),
        submission.stored_bytes <= acceptance.storage_quota.room(submission.tenant),
    )


def _foresee(submission: Submission, work: int, situation: _Situation) -> dict[str, Any]:
    compatibility = situation.compatibility
    rate = compatibility.tokens_per_second
    seconds = work / rate if rate else None
    plan, cached = None, 0
    paces = [pace for worker in compatibility.matching if (pace := _pace(worker)) is not None]
    if paces:
        computed = [chunk.computed for chunk in submission.chunks]
        rows, continuations = [part for part, _ in computed], [behind for _, behind in computed]
        found = forecast(len(submission.prefix), rows, paces, continuations)
        seconds = found.seconds
        plan = [
            {"algorithm": choice.algorithm.value, "items": items, "reason": choice.reason}
            for choice, items in found.items_of.items()
        ]
        # Of items that are not computed, no token has to be.
        cached = found.cached_tokens + submission.prompt_tokens - sum(starmap(sequence_tokens, computed))
    ahead = situation.waiting.tokens_ahead(submission.tenant, work)
    wait = None
    if not ahead and compatibility.matching:
        wait = 0.0
    elif rate:
        wait = ahead / rate
    waits_for = []
    if not compatibility.matching:
        waits_for.append(("worker", "no worker that serves this model with this tokenizer is live"))
    if ahead:
        waits_for.append(("backlog", f"about {ahead:.0f} tokens of work would be scored before it"))
    if not situation.has_quota:
        waits_for.append(("quota", "as much as may wait of this tenant waits already, so it would be refused now"))
    if not situation.has_storage:
        waits_for.append(("storage", "this tenant stores too much, so it would be refused before something is deleted"))
    return {
        "object": "scoring.dry_run",
        "model": submission.model_name,
        "total_items": submission.total_items,
        "usage": show_usage(submission, cached),
        "work": work,
        "stored_bytes": submission.stored_bytes,
        "plan": plan,
        "estimated_seconds": _rounded(seconds),
        "estimated_wait_seconds": _rounded(wait),
        "calibrated": bool(paces) and all(worker.estimate_ratio is not None for worker in compatibility.matching),
        "waits_for": [{"what": what, "message": message} for what, message in waits_for],
        "warnings": list(submission.warnings),
    }


def _rounded(seconds: float | None) -> float | None:
    """Round a time to as many digits as an estimate is worth."""
    return None if seconds is None else float(f"{seconds:.3g}")


def _pace(worker: WorkerRecord) -> Pace | None:
    """Return how a worker plans and how fast it is; None if it does not say, as those of an older version do not."""
    planner = None if worker.planning is None else planner_of(worker.planning["planner"])
    if worker.planning is None or planner is None:
        return None
    ratio = 1.0 if worker.estimate_ratio is None else worker.estimate_ratio
    return Pace(planner, ratio, worker.planning["claim_seconds"])
