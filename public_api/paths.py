"""The paths of calls, of jobs and of batches, and of what belongs to them."""

from typing import Literal, get_args

CallPath = Literal["/v1/score", "/v1/likelihood", "/v1/rerank", "/v1/systemone", "/v1/decisions", "/v1/completions"]
"""The path of each kind of call. The lines of a batch may be requests to them, too."""

CALL_PATHS: tuple[str, ...] = get_args(CallPath)
SCORE, LIKELIHOOD, RERANK, SYSTEMONE, DECISIONS, COMPLETIONS = CALL_PATHS
JOBS = "/v1/jobs"
RECEIPT_KEYS = "/.well-known/jwks.json"


def job_path(job_id: str) -> str:
    return f"{JOBS}/{job_id}"


def job_urls(job_id: str) -> dict[str, str]:
    """Return the field ``urls`` of a job, in responses and in the bodies of webhooks."""
    return _urls(job_path(job_id), "scores", "events", "cancel", "deliveries")


def batch_urls(batch_id: str) -> dict[str, str]:
    """Return the field ``urls`` of a batch of a file, in responses and in the bodies of webhooks."""
    return _urls(f"/v1/batches/{batch_id}", "events", "cancel", "deliveries")


def _urls(path: str, *parts: str) -> dict[str, str]:
    return {"self": path, **{part: f"{path}/{part}" for part in parts}}
