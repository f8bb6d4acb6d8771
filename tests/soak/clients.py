"""Well-behaved clients: every submission has an idempotency key, and every request is repeated until it is answered."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.end_to_end.deployment import AUTHORIZATION
from tests.soak.work import Work

RETRY_SECONDS = 0.2
ENDED = {"succeeded", "failed", "cancelled", "expired"}


@dataclass
class Submitted:
    """A job that was answered with 202, as its client saw it."""

    work: Work
    ids: list[str] = field(default_factory=list)  # the id in each answer; all have to be the same
    end: tuple[str, float] | None = None  # status and time of the end when the client first saw it
    cancelled: bool = False  # whether the client has cancelled the job

    @property
    def id(self) -> str:
        return self.ids[0]


def end_of(job: dict[str, Any]) -> tuple[str, float] | None:
    """Return the status and time of a job's end, which must never change; None if it has not ended."""
    return (job["status"], job["finished_at"]) if job["status"] in ENDED else None


class Client(threading.Thread):
    """Submits jobs until told to stop, with a bounded number of them unfinished. Sends some twice, and cancels some.

    Every job has a webhook if there is a ``webhook_url``.
    """

    def __init__(
        self, url: str, number: int, seed: int, webhook_url: str | None = None, *, under_way: int = 24
    ) -> None:
        super().__init__(name=f"client {number}", daemon=True)
        self._http = httpx2.Client(base_url=url, timeout=30.0, trust_env=False, headers=AUTHORIZATION)
        self._number = number
        self._webhook = {"webhook": {"url": webhook_url}} if webhook_url else {}
        self._chance = random.Random(f"{seed} client {number}")
        self._under_way = under_way
        self._stopped = threading.Event()
        self.submitted: list[Submitted] = []
        self.refusals: list[str] = []  # answers that were neither success nor 503; there should be none
        self.retries = 0
        self.failure: BaseException | None = None

    def stop(self) -> None:
        """Submit no further jobs. The present request is repeated until it is answered."""
        self._stopped.set()

    def run(self) -> None:
        """Submit jobs until stopped."""
        try:
            while not self._stopped.is_set():
                self._submit()
                self._wait_for_room()
        except Exception as error:
            self.failure = error
        finally:
            self._http.close()

    def _submit(self) -> None:
        work = Work.by_chance(self._chance, f"client-{self._number}-{len(self.submitted)}")
        submitted = Submitted(work)
        key = {"Idempotency-Key": work.key}
        for _ in range(2 if self._chance.random() < 0.1 else 1):
            job = self._until_answered("POST", "/v1/jobs", json=work.body | self._webhook, headers=key)
            submitted.ids.append(job["id"])
        self.submitted.append(submitted)
        if self._chance.random() < 0.05:
            submitted.cancelled = True
            submitted.end = end_of(self._until_answered("POST", f"/v1/jobs/{submitted.id}/cancel"))

    def _wait_for_room(self) -> None:
        waiting = [one for one in self.submitted if one.end is None]
        while len(waiting) >= self._under_way and not self._stopped.is_set():
            oldest = waiting[0]
            job = self._until_answered("GET", f"/v1/jobs/{oldest.id}", headers={"Prefer": "wait=1"})
            oldest.end = end_of(job)
            waiting = [one for one in waiting if one.end is None]

    def _until_answered(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        while True:
            try:
                response = self._http.request(method, path, **request)
            except httpx2.TransportError:
                pass
            else:
                if response.status_code in (200, 202):
                    answer: dict[str, Any] = response.json()
                    return answer
                if response.status_code != 503:
                    self.refusals.append(f"{method} {path}: {response.status_code} {response.text[:200]}")
                    if response.status_code < 500:
                        raise RuntimeError(self.refusals[-1])
            self.retries += 1
            time.sleep(RETRY_SECONDS)
