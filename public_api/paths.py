"""The paths of a job and of what belongs to it."""


def job_path(job_id: str) -> str:
    """Return the path of a job."""
    return f"/v1/jobs/{job_id}"


def job_urls(job_id: str) -> dict[str, str]:
    """Return the field ``urls`` of a job, in responses and in the bodies of webhooks."""
    path = job_path(job_id)
    return {
        "self": path,
        "scores": f"{path}/scores",
        "cancel": f"{path}/cancel",
        "deliveries": f"{path}/deliveries",
    }
