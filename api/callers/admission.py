"""Back-pressure: what could not be scored in time is refused before it is accepted, and told when to come again.

The measure is time: what waits, in tokens to compute, over what the live workers measure that they compute in a second.
Both are estimates, so nothing is refused on their word alone: a call is refused only while others have truly been
waiting. Where nothing waits, nothing is refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from api.callers.compatibility import Handshake, Standing
from api.remembering import Remembered
from checkpoints.card import ModelCard
from jobs.queue.accept import is_known
from jobs.queue.statistics import Waiting, count_waiting, has_more_than
from jobs.store.database import Database
from jobs.store.records import Submission
from scoring.error_codes import ErrorCode, RequestError
from settings.api import ApiSettings

GOOD_FOR_SECONDS, MOST_GOOD_FOR_SECONDS = 1.0, 30.0
"""How long what was counted lets requests pass, or not, without another query; of jobs, the longer the more wait."""

COUNTED_CALLS = 20_000
COUNTED_JOBS = 500_000
"""Chunks that are counted at most, of interactive work and of all: what comes after them is taken for nothing."""

WAITED_SECONDS = 1.0
"""For so long some call has truly been waiting before another is refused: a burst that is being worked on is not yet a
backlog, whatever a worker's pace in quieter times would make of it."""

RETRY_SECONDS = (1.0, 60.0)
"""The least and the most that a caller is told to wait, before jitter."""
JITTER = 0.5
"""The share by which that varies, upwards: whoever was refused together should not come again together."""


class Admission:
    """What may be accepted now. Blocks on the database; safe to use from threads."""

    def __init__(self, database: Database, card: ModelCard, handshake: Handshake, settings: ApiSettings) -> None:
        self._database = database
        self._handshake = handshake
        self._settings = settings
        self._calls = Remembered(
            lambda: count_waiting(database, card, COUNTED_CALLS, interactive_only=True),
            GOOD_FOR_SECONDS,
            GOOD_FOR_SECONDS,
        )
        self._jobs = Remembered(
            lambda: count_waiting(database, card, COUNTED_JOBS, interactive_only=False),
            GOOD_FOR_SECONDS,
            MOST_GOOD_FOR_SECONDS,
        )
        self._too_many = Remembered(
            lambda: has_more_than(database, card, settings.max_waiting_chunks), GOOD_FOR_SECONDS, MOST_GOOD_FOR_SECONDS
        )

    def admit_call(self, submission: Submission, timeout: float) -> None:
        """Raise RequestError OVERLOADED or MODEL_UNAVAILABLE unless a call may be expected to be scored in time.

        timeout: seconds. Raises StorageUnavailable.
        """
        self._unless_known(submission, lambda: self._check_call(timeout))

    def admit_job(self, submission: Submission) -> None:
        """Raise RequestError OVERLOADED or MODEL_UNAVAILABLE unless there is room for a job.

        Raises StorageUnavailable.
        """
        self._unless_known(submission, self._check_job)

    def admit_upload(self) -> None:
        """The same of an upload that is new and has brought its first items."""
        self._check_job()

    def _unless_known(self, submission: Submission, check: Callable[[], None]) -> None:
        """Check, but for a request without work, and one whose work was accepted when it came for the first time."""
        if submission.total_items == 0:
            return
        try:
            check()
        except RequestError:
            key = submission.idempotency
            if key is None or not is_known(self._database, submission.tenant, key):
                raise

    def _check_call(self, timeout: float) -> None:
        standing = self._handshake.check(waits=False)
        waiting = self._calls.get()
        seconds = estimated_seconds(waiting, standing)
        if seconds > timeout and waiting.oldest_seconds >= WAITED_SECONDS:
            raise _overloaded(
                f"calls wait about {seconds:.0f} s now, and this one would for {timeout:g} s at most;"
                " jobs sent to /v1/jobs wait longer",
                seconds - timeout,
            )

    def _check_job(self) -> None:
        standing = self._handshake.check(waits=True)
        if self._too_many.get():
            raise _overloaded(f"more than {self._settings.max_waiting_chunks} chunks wait already", RETRY_SECONDS[1])
        most = self._settings.max_waiting_seconds
        if most is None:
            return
        seconds = estimated_seconds(self._jobs.get(), standing)
        if seconds > most:
            raise _overloaded(f"jobs wait about {seconds:.0f} s now, and {most:g} s at most", seconds - most)


def estimated_seconds(waiting: Waiting, standing: Standing) -> float:
    """How long the matching workers will take for what waits; 0 where none of them has measured its pace."""
    rate = standing.tokens_per_second
    return waiting.tokens / rate if rate else 0.0


def _overloaded(message: str, excess_seconds: float) -> RequestError:
    least, most = RETRY_SECONDS
    seconds = min(most, max(least, excess_seconds)) * random.uniform(1.0, 1.0 + JITTER)
    return RequestError(ErrorCode.OVERLOADED, message, retry_after=seconds)
