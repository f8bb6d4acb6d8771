"""Compares what clients were promised with what can be read over HTTP, without a look at the store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.end_to_end.deployment import AUTHORIZATION
from tests.faults.outcomes import TOLERANCE
from tests.soak.clients import Submitted, end_of

PAGE = 1_000


@dataclass
class Verdict:
    """What the checks found: a line for each fault."""

    accepted: int = 0  # number of accepted jobs
    lost: list[str] = field(default_factory=list)  # jobs that are gone, have failed, or did not end in time
    duplicated: list[str] = field(default_factory=list)  # keys with more than one job
    wrong: list[str] = field(default_factory=list)  # jobs whose end changed, or with wrong scores
    untold: list[str] = field(default_factory=list)  # ended jobs without a delivered webhook
    misdelivered: list[str] = field(default_factory=list)  # webhooks that are unsigned, untrue, or have a second id
    ends: dict[str, str] = field(default_factory=dict)  # the status with which each job ended, by job id

    @property
    def clean(self) -> bool:
        return self.accepted > 0 and not self.faults

    @property
    def faults(self) -> list[str]:
        """All faults that were found."""
        return [*self.lost, *self.duplicated, *self.wrong, *self.untold, *self.misdelivered]

    def __str__(self) -> str:
        counts = f"lost {len(self.lost)} duplicated {len(self.duplicated)} wrong {len(self.wrong)}"
        told = f"untold {len(self.untold)} misdelivered {len(self.misdelivered)}"
        return f"accepted {self.accepted} {counts} {told}"


def check(url: str, submitted: Sequence[Submitted], seconds: float) -> Verdict:
    """Check what became of every accepted job. seconds: time within which all of them have to end."""
    verdict = Verdict(accepted=len(submitted))
    deadline = time.monotonic() + seconds
    with httpx2.Client(base_url=url, timeout=30.0, trust_env=False, headers=AUTHORIZATION) as client:
        for one in submitted:
            if len(set(one.ids)) > 1:
                verdict.duplicated.append(f"{one.work.key} was answered with {sorted(one.ids)}")
            job = _ended(client, one.id, deadline)
            if job is None:
                verdict.lost.append(f"{one.id} is gone or does not end")
                continue
            verdict.ends[one.id] = job["status"]
            if job["status"] not in ("succeeded", "cancelled") or (job["status"] == "cancelled" and not one.cancelled):
                verdict.lost.append(f"{one.id} has {job['status']}: {job['error']}")
            elif one.end is not None and end_of(job) != one.end:
                verdict.wrong.append(f"{one.id} had ended with {one.end} and now with {end_of(job)}")
            elif fault := _fault_of_scores(client, one, job):
                verdict.wrong.append(f"{one.id}: {fault}")
        jobs_of_key = Counter(_keys(client))
    verdict.duplicated += [f"{key} made {count} jobs" for key, count in jobs_of_key.items() if count > 1]
    return verdict


def _ended(client: httpx2.Client, job_id: str, deadline: float) -> dict[str, Any] | None:
    while True:
        response = client.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=2"})
        if response.status_code == 404:
            return None
        job: dict[str, Any] = response.json()
        if response.status_code == 200 and end_of(job) is not None:
            return job
        if time.monotonic() > deadline:
            return None


def _fault_of_scores(client: httpx2.Client, one: Submitted, job: dict[str, Any]) -> str | None:
    """Return what is wrong with a job's scores, or None. A cancelled job may have some scores, which must be right."""
    rows: dict[int, list[float]] = {}
    for offset in range(0, len(one.work.items), PAGE):
        page = client.get(f"/v1/jobs/{one.id}/scores", params={"offset": offset, "limit": PAGE}).json()
        for row in page["data"]:
            if row["index"] in rows:
                return f"item {row['index']} was scored twice"
            rows[row["index"]] = row["logits"]
    if len(rows) != job["progress"]["scored_items"]:
        return f"{job['progress']['scored_items']} items were counted, {len(rows)} have scores"
    if job["status"] == "succeeded" and len(rows) != len(one.work.items):
        return f"{len(rows)} of {len(one.work.items)} items have scores"
    for index, logits in rows.items():
        expected = one.work.logits(index)
        if len(logits) != len(expected) or any(abs(a - b) > TOLERANCE for a, b in zip(logits, expected, strict=True)):
            return f"item {index} has {logits}, not {expected}"
    return None


def _keys(client: httpx2.Client) -> list[str]:
    """Return the idempotency keys of all jobs."""
    keys: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = client.get("/v1/jobs", params={"limit": "100", **after}).json()
        keys += [job["metadata"]["key"] for job in page["data"]]
        if not page["has_more"]:
            return keys
        after = {"after": page["data"][-1]["id"]}
