"""Sending a request: reading its answer, and sending it again where that may help."""

from __future__ import annotations

import email.utils
import json
import math
import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from scoreline.client.errors import (
    NotFound,
    ScorelineError,
    UnexpectedResponse,
    error_for,
)
from scoreline.client.exchange.bodies import ItemsError
from scoreline.client.exchange.flow import (
    Answer,
    Exchange,
    Flow,
    Give,
    Iteration,
    Open,
    Reading,
    Request,
    Sleep,
    Stream,
)

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 8.0
"""Pauses between repetitions are random, below a bound that begins with the first of these and doubles to the other."""

FIRST_CONTACT_SECONDS = 5.0
"""The longest time of repetitions while nothing has ever answered: the service is probably at another address."""

REPEATED_STATUSES = frozenset({408, 429, 502, 503, 504})
AWAY_STATUSES = frozenset({0, 502, 503, 504})
"""The statuses of errors that say that nobody is there who could do it; 0: there was no answer."""

REPEATED_CODES = frozenset({"unreachable", "idempotency_in_progress"})
"""The answers after which a request is sent again, unless the service says that it would not help."""


def longest_pause(failures: int) -> float:
    """Return how long the pause may be behind a failure before which there were so many."""
    doublings = min(failures, 64)  # 2.0 ** 1024 is too large for a float.
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0**doublings)


@dataclass(slots=True)
class Service:
    """The service that a client talks to."""

    url: str
    timeout: float  # seconds in which an answer comes that waits for no scores
    retry_seconds: float  # for how long a request is repeated
    outage_seconds: float  # for how long an operation that takes long anyway bears an absent service
    was_reached: bool = False  # whether it has ever answered this client
    is_away: bool = False  # whether the latest request that ended got no answer, or one that says to come again later

    def window(self, *, patient: bool, away_for: float | None = None) -> float:
        """Return for how many seconds a request is repeated. patient: for an operation that takes long anyway.

        away_for: how long a service that is away, as one that restarts, is waited for if that is longer.
        """
        if not self.was_reached:
            return min(self.retry_seconds, FIRST_CONTACT_SECONDS)
        seconds = max(self.retry_seconds, self.outage_seconds) if patient else self.retry_seconds
        return seconds if away_for is None or seconds == 0 else max(seconds, away_for)


class Repetitions:
    """When a request is sent again, and until when."""

    def __init__(self, seconds: float, *, is_repeatable: bool = True) -> None:
        """seconds: how long after this moment the last repetition may begin."""
        self._began = time.monotonic()
        self._deadline = self._began + seconds
        self._is_repeatable = is_repeatable
        self.failures = 0

    @property
    def seconds_left(self) -> float:
        """The time until the deadline."""
        return self._deadline - time.monotonic()

    def pause_after(self, error: ScorelineError, seconds: float | None = None) -> float | None:
        """Return how long to wait before the next repetition, or None if there is none.

        seconds: how long after the first failure the last repetition may begin after this one; None: as it was.
        """
        if seconds is not None:
            self._deadline = self._began + seconds
        may_help = error.status in REPEATED_STATUSES or error.code in REPEATED_CODES
        if not (may_help and self._is_repeatable) or error.is_final:
            return None
        pause = random.uniform(0, longest_pause(self.failures)) + (error.retry_after or 0.0)
        self.failures += 1
        return pause if pause <= self.seconds_left else None


def send(
    service: Service, asked: Request[T] | Callable[[], Request[T]], *, patient: bool = False, until: float | None = None
) -> Flow[T]:
    """Send a request, again where that may help, and return what its answer means. Raises ScorelineError.

    asked: the request, or what makes it each time it is sent. patient: whether the service may be absent for longer,
    because the operation takes long anyway. until: the time of ``time.monotonic`` at which the last repetition begins,
    even if the service has asked for a longer pause; None: as the service's settings say.

    An error of the caller's own items is raised as it is: an iterable that has raised has no more items to send again.
    """
    repetitions: Repetitions | None = None
    began, total_deadline = time.monotonic(), math.inf
    while True:
        request = asked if isinstance(asked, Request) else asked()
        seconds = request.seconds or service.timeout
        is_streamed = request.body is not None and request.body.is_streamed
        left = seconds if is_streamed else min(seconds, max(0.1, total_deadline - time.monotonic()))
        try:
            answer = yield from Exchange(request, left)
            service.was_reached = True
            service.is_away = answer.status in AWAY_STATUSES
            return read_answer(service, request, answer)
        except NotFound as error:
            if repetitions is not None and request.gone_is_done:
                return request.parse({})
            failure: ScorelineError = error
        except ScorelineError as error:
            service.is_away = error.status in AWAY_STATUSES
            failure = error
        except ItemsError as failed:
            raise failed.error from failed.error.__cause__
        # An attempt may have shown that the service was there, and with that the window is a longer one.
        total_deadline = began + seconds + service.window(patient=patient)
        if repetitions is None:
            repetitions = Repetitions(0.0, is_repeatable=request.is_repeatable)
        # A call waits for a service that restarts as long as it would wait for its scores.
        is_away = failure.status in AWAY_STATUSES
        window = service.window(patient=patient, away_for=request.seconds if is_away else None)
        pause = repetitions.pause_after(failure, window)
        time_left = math.inf if until is None else until - time.monotonic()
        if pause is None or time_left <= 0:
            raise failure
        yield from Sleep(min(pause, time_left))


def page_of(service: Service, path: str, params: Mapping[str, str | int | None], after: str | None) -> Flow[Any]:
    """Return a page of a list. params: those that are None are left out. after: the id behind which it begins."""
    given = {name: value for name, value in {**params, "after": after}.items() if value is not None}
    request: Request[Any] = Request("GET", path, params=given)
    return (yield from send(service, request, patient=True))


def listed(
    service: Service,
    path: str,
    read: Callable[[Mapping[str, Any]], T],
    params: Mapping[str, str | int | None],
    after: str | None,
) -> Iteration[T]:
    """Yield what a list has, page by page. read: makes an object of an entry. The others are those of a page."""
    has_more = True
    while has_more:
        page = yield from page_of(service, path, params, after)
        for raw in page["data"]:
            yield Give(read(raw))
            after = raw["id"]
        has_more = page["has_more"]


def opened(service: Service, request: Request[Any], reading: Reading, *, silence: float) -> Flow[Stream]:
    """Open a stream, and try again where that may help. Raises ScorelineError.

    silence: seconds without a byte after which the connection counts as lost.
    """
    repetitions = Repetitions(service.window(patient=True))
    while True:
        try:
            answer = yield from Open(request, reading, silence)
            service.was_reached = True
            if isinstance(answer, Stream):
                return answer
            raise refusal(service, answer)
        except ScorelineError as error:
            pause = repetitions.pause_after(error)
            if pause is None:
                raise
        yield from Sleep(pause)


def read_answer(service: Service, request: Request[T], answer: Answer) -> T:
    """Return what an answer means. Raises the error that it stands for."""
    if not 200 <= answer.status < 300:
        raise refusal(service, answer)
    try:
        return request.parse(json.loads(answer.content) if answer.content else {})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _unexpected(service, answer) from None


def refusal(service: Service, answer: Answer) -> ScorelineError:
    """Return the error that an answer stands for."""
    try:
        error = json.loads(answer.content)["error"]
        found = error_for(
            error["code"],
            error["message"],
            answer.status,
            param=error.get("param"),
            request_id=answer.headers.get("x-request-id"),
            retry_after=retry_after_of(answer.headers),
            job_id=error.get("job_id"),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        found = _unexpected(service, answer)
    found.is_final = answer.headers.get("x-should-retry") == "false"
    return found


def _unexpected(service: Service, answer: Answer) -> ScorelineError:
    """Return the error for the answer of a proxy, or of another server. That of a proxy may be different later."""
    message = f"{service.url} answered {answer.status} with something else than Scoreline does"
    return UnexpectedResponse("unexpected_response", message, answer.status, retry_after=retry_after_of(answer.headers))


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of ``Retry-After``, which may be a number or a date, or None."""
    value = headers.get("retry-after", "")
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        date = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, date.timestamp() - time.time())


def idempotency(key: str | None) -> dict[str, str]:
    """Return the header that makes a repetition safe: with the caller's key, or with a new one."""
    return {"Idempotency-Key": key if key is not None else uuid.uuid4().hex}
