"""Clients that ask again and again, and write down how long each answer took."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import httpx2

from tests.end_to_end.deployment import AUTHORIZATION

Request = tuple[str, str, dict[str, object] | None]

TIMEOUT = 3.0
"""How long a call waits for its scores, in seconds. Its answer may take this long, whatever else happens."""

CALL: Request = ("POST", "/v1/score", {"query": [5, 6], "items": [[7]], "label_token_ids": [9, 10], "timeout": TIMEOUT})
LIST: Request = ("GET", "/v1/jobs", None)
READY: Request = ("GET", "/readyz", None)
LIVE: Request = ("GET", "/livez", None)

PAUSE_SECONDS = 0.1


@dataclass(frozen=True)
class Answer:
    """What came of a request. Times are on the monotonic clock."""

    path: str
    asked_at: float
    seconds: float
    status: int | None  # None: no answer came within the caller's time


class Caller(threading.Thread):
    """Sends a request again and again until stopped. most_seconds: how long it waits for an answer."""

    def __init__(self, url: str, request: Request, most_seconds: float) -> None:
        super().__init__(name=f"caller of {request[1]}", daemon=True)
        self._http = httpx2.Client(base_url=url, timeout=most_seconds, trust_env=False, headers=AUTHORIZATION)
        self._request = request
        self._stopped = threading.Event()
        self.answers: list[Answer] = []

    def stop(self) -> None:
        """Send no more requests."""
        self._stopped.set()

    def run(self) -> None:
        """Ask until stopped."""
        method, path, body = self._request
        while not self._stopped.wait(PAUSE_SECONDS):
            asked_at = time.monotonic()
            status: int | None
            try:
                status = self._http.request(method, path, json=body).status_code
            except httpx2.TransportError:
                status = None
            self.answers.append(Answer(path, asked_at, time.monotonic() - asked_at, status))
        self._http.close()


@dataclass(frozen=True)
class Span:
    """What callers saw of a fault."""

    answers: Sequence[Answer]  # to what was asked during the fault
    recovered_seconds: float | None  # from the end of the fault to the first success of every caller; None: not yet

    @property
    def unanswered(self) -> int:
        """The number of requests that got no answer in time."""
        return sum(answer.status is None for answer in self.answers)

    @property
    def slowest(self) -> float:
        """The longest time of an answer, in seconds."""
        return max((answer.seconds for answer in self.answers), default=0.0)

    @property
    def statuses(self) -> Counter[int | None]:
        """How often each status was the answer."""
        return Counter(answer.status for answer in self.answers)


def span(callers: Sequence[Caller], began_at: float, ended_at: float) -> Span:
    """Return what callers saw of a fault between two times on the monotonic clock."""
    during = [answer for one in callers for answer in list(one.answers) if began_at <= answer.asked_at < ended_at]
    firsts = [
        next(
            (
                answer.asked_at + answer.seconds
                for answer in list(one.answers)
                if answer.asked_at >= ended_at and answer.status in (200, 202)
            ),
            None,
        )
        for one in callers
    ]
    times = [first for first in firsts if first is not None]
    return Span(during, max(times) - ended_at if len(times) == len(callers) else None)
