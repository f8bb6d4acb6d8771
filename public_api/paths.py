"""The paths of calls, of jobs and of batches, and of what belongs to them."""

from typing import Literal, get_args

CallPath = Literal["/v1/score", "/v1/likelihood", "/v1/rerank", "/v1/systemone", "/v1/decisions", "/v1/completions"]
"""The path of each kind of call. The lines of a batch may be requests to them, too."""

CALL_PATHS: tuple[str, ...] = get_args(CallPath)
SCORE, LIKELIHOOD, RERANK, SYSTEMONE, DECISIONS, COMPLETIONS = CALL_PATHS
JOBS = "/v1/jobs"
RECEIPT_KEYS = "/.well-known/jwks.json"


def job_path(job_id: str) -> str:
    """Return the path of a job."""
    return f"{JOBS}/{job_id}"


def job_urls(job_id: str) -> dict[str, str]:
    """Return the field ``urls`` of a job, in responses and in the bodies of webhooks."""
    path = job_path(job_id)
    return {
        "self": path,
        "scores": f"{path}/scores",
        "events": f"{path}/events",
        "cancel": f"{path}/cancel",
        "deliveries": f"{path}/deliveries",
    }


def batch_urls(batch_id: str) -> dict[str, str]:
    """Return the field ``urls`` of a batch of a file, in responses and in the bodies of webhooks."""
    path = f"/v1/batches/{batch_id}"
    return {
        "self": path,
        "events": f"{path}/events",
        "cancel": f"{path}/cancel",
        "deliveries": f"{path}/deliveries",
    }
