"""Convert the outcome of a dry run to the JSON of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from api.answers.presentation import show_usage
from jobs.store.records import Submission
from scoring.planning.forecast import Forecast


@dataclass(frozen=True, slots=True)
class DryRun:
    """The answer to a dry run."""

    submission: Submission
    work: int  # tokens to compute, as quotas count them
    forecast: Forecast | None  # None without a worker that says how it plans
    cached_tokens: int  # that would not have to be computed
    is_calibrated: bool  # whether the forecast rests on times that were measured by the workers
    seconds: float | None  # of the scoring; None if nobody knows
    wait_seconds: float | None  # before it begins; None if nobody knows
    waits_for: Sequence[tuple[str, str]]  # what it would have to wait for: a word, and a sentence


def show_dry_run(found: DryRun) -> dict[str, Any]:
    """Return what a job would take."""
    submission, forecast = found.submission, found.forecast
    plan = None
    if forecast is not None:
        plan = [
            {"algorithm": choice.algorithm.value, "items": items, "reason": choice.reason}
            for choice, items in forecast.items_of.items()
        ]
    return {
        "object": "scoring.dry_run",
        "model": submission.model_name,
        "total_items": submission.total_items,
        "usage": show_usage(submission, found.cached_tokens),
        "work": found.work,
        "stored_bytes": submission.stored_bytes,
        "plan": plan,
        "estimated_seconds": _rounded(found.seconds),
        "estimated_wait_seconds": _rounded(found.wait_seconds),
        "calibrated": found.is_calibrated,
        "waits_for": [{"what": what, "message": message} for what, message in found.waits_for],
        "warnings": list(submission.warnings),
    }


def _rounded(seconds: float | None) -> float | None:
    """Round a time to as many digits as an estimate is worth."""
    return None if seconds is None else float(f"{seconds:.3g}")
