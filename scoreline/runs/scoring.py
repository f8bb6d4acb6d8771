"""Have the service score groups of rows: each becomes a job, or several if some of its rows can't be scored.

Where questions are asked, the rows of a group have the same state, and one job answers for all of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from scoreline.client import AsyncClient
from scoreline.client.errors import (
    InvalidRequest,
    JobEnded,
    NotFound,
    QuotaExceeded,
    RequestTooLarge,
    ScorelineError,
    Unreachable,
)
from scoreline.client.job_objects import Job
from scoreline.client.options import TextLabels
from scoreline.client.sets import JobSets
from scoreline.exit_codes import CommandError, ExitCode, exit_code_of
from scoreline.runs.decisions import StateColumns, answer_cells
from scoreline.runs.journal import Journal
from scoreline.runs.plan import Plan, Remedy
from scoreline.runs.prompts import Text
from scoreline.runs.windows import Group

Cells = list[Any]
"""What is added to a row: a number for each new column."""

RUN = "run"
"""The entry of a job's metadata that has the name of its run."""

TOO_LONG = "context_length_exceeded"

QUOTA_SECONDS = 2.0
"""How long to wait for room in a quota if the service does not say."""

REFUSALS_BEFORE_HALVES = 4
"""After so many refused rows, a group is divided: the service names one wrong row at a time."""

_OF_THE_QUERY = ("query", "state", None)
"""Where errors are that concern all rows of a group."""

_OF_EVERY_ROW = frozenset({"empty_query", TOO_LONG, "request_too_large", "delimiter_in_input"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a row can't be scored."""

    message: str
    is_too_long: bool
    exit_code: ExitCode = ExitCode.REFUSED
    is_empty: bool = False  # whether it has no text

    @property
    def outcome(self) -> str:
        """What has become of the row, in one word."""
        return "too_long" if self.is_too_long else "empty" if self.is_empty else "failed"


@dataclass(frozen=True, slots=True)
class Listener:
    """Who hears what comes of the rows."""

    scored: Callable[[int, Cells], None]  # a row of the window, by its place
    refused: Callable[[int, Refusal], None]  # the same; it may raise to end the run
    counted: Callable[[Job, int], None]  # a job that succeeded, and the number of its rows


class GroupScorer:
    """Submits jobs, and waits for them."""

    def __init__(self, client: AsyncClient, journal: Journal, plan: Plan, labels: Sequence[str]) -> None:
        self._client = client
        self._sets = JobSets(client)
        self._journal = journal
        self._plan = plan
        self._labels = list(labels)
        self._job_has_ended = asyncio.Event()
        self.waits_for_quota = 0  # jobs that are not submitted yet because of it
        self.under_way: set[str] = set()  # the keys of jobs that go on if this process ends now

    @property
    def waits(self) -> str:
        """What jobs wait for that is neither a worker nor an answer; empty if there is nothing."""
        if self._client.service.is_away:
            return "waiting for the service"
        return "waiting for room in the quota" if self.waits_for_quota else ""

    async def close(self) -> None:
        """Give up the requests that are under way."""
        await self._sets.close()

    async def score(self, window: int, group: Group, listener: Listener) -> None:
        """Score rows with the same query. Raises ScorelineError, CommandError.

        window: the number of their window.
        """
        if self._journal.shared is not None:
            group = group.in_order()  # Other processes may have the same rows in another order.
        query, labels = group.query, dict(zip(group.rows, group.labels, strict=bool(group.labels)))
        parts = [(group.rows, group.items, 0)]
        while parts:
            rows, items, refused = parts.pop()
            try:
                own_labels = [labels[row] for row in rows] if labels else None
                job = await self._job(window, query, items, own_labels)
            except RequestTooLarge as error:
                if len(rows) == 1 or self._plan.questions:
                    for wrong in rows:
                        listener.refused(wrong, refusal_of(error))
                else:
                    parts += _halves(rows, items)
            except InvalidRequest as error:
                place = place_of(error, group, len(rows))
                if not concerns_rows(error, group, self._plan):
                    raise  # The options are wrong, not the rows.
                for wrong in rows if place is None else rows[place : place + 1]:
                    listener.refused(wrong, refusal_of(error))
                if place is None or len(rows) == 1:
                    continue
                rows, items = rows[:place] + rows[place + 1 :], items[:place] + items[place + 1 :]
                refused += 1
                divide = refused % REFUSALS_BEFORE_HALVES == 0 and len(rows) > 1
                parts += _halves(rows, items) if divide else [(rows, items, refused)]
            except JobEnded as error:
                if self._plan.on_error is not Remedy.SKIP:
                    raise
                for row in rows:
                    listener.refused(row, Refusal(str(error), is_too_long=False, exit_code=ExitCode.JOB_FAILED))
            else:
                for row, cells in zip(rows, self._cells(job, len(rows), own_labels), strict=True):
                    listener.scored(row, cells)
                listener.counted(job, len(rows))

    def _cells(self, job: Job, count: int, own_labels: list[list[str]] | None) -> list[Cells]:
        if self._plan.questions:
            if job.decision is None:
                raise CommandError(f"the service gave no answers for {job.id}")
            cells = answer_cells(self._plan.questions, job.decision, with_probabilities=self._plan.with_probabilities)
            return [cells] * count
        result = job.result
        if result is None or len(result.scores) != count:
            raise CommandError(f"the service gave no scores for {job.id}")
        columns: list[Sequence[Any]]
        if self._plan.only_relevance:
            # What a model gives that was trained to rank is its only score.
            return [[one] for one in result.relevance or [row[0] for row in result.scores]]
        if own_labels is not None:
            rows = zip(result.scores, own_labels, strict=True)
            columns = [result.scores, [labels[scores.index(max(scores))] for scores, labels in rows]]
        elif result.scores and len(result.scores[0]) != len(self._labels):
            raise CommandError("the template has other labels than when the run began: --restart begins again")
        else:
            columns = [*zip(*(result.calibrated or result.adjusted or result.scores), strict=True)]
        for name in self._plan.of_each_row:
            values = result.raw.get(name)
            columns.append(values if values is not None else [None] * count)
        return [list(cells) for cells in zip(*columns, strict=True)]

    async def _job(self, window: int, query: Any, items: list[Text], labels: list[list[str]] | None) -> Job:
        """Return a job that has succeeded. It is submitted unless the journal knows it.

        labels: of each item, if they have labels of their own.
        """
        base = self._key(query, [] if self._plan.questions else items, *([] if labels is None else [labels]))
        while True:
            key = f"{base}-{self._journal.attempt(base)}"
            job_id = self._journal.job(key)
            if job_id is None:
                job = await self._submitted(key, query, items, labels)
                if job.ended and job.status != "succeeded" and self._journal.shared is not None:
                    # That of a task that was tried before.
                    self._journal.begin_attempt(base, key, window)
                    continue
                job_id = job.id
                self._journal.add_job(key, window, job_id)
            try:
                with self._under_way(key):
                    more = len(self._plan.options.get("baseline") or ())
                    return await self._sets.wait(job_id, len(self._plan.questions or items) + more)
            except NotFound:
                # It was deleted, perhaps because the run rested for days.
                self._journal.begin_attempt(base, key, window)
            except JobEnded:
                self._journal.begin_attempt(base, key, window)  # when the run is resumed
                raise
            finally:
                self._job_has_ended.set()

    async def _submitted(self, key: str, query: Any, items: list[Text], own_labels: list[list[str]] | None) -> Job:
        as_job: dict[str, Any] = {
            "metadata": {RUN: self._journal.run_name},
            "priority": "bulk",
            "idempotency_key": key,
        }
        # Without labels the template brings its own, and how they are scored.
        labels: TextLabels | None = own_labels or self._plan.labels or None
        while True:
            self._job_has_ended.clear()
            try:
                with self._under_way(key):
                    if self._plan.questions:
                        return await self._sets.submit_decision(
                            query, self._plan.questions, **self._plan.options, **as_job
                        )
                    return await self._sets.submit(query, items, labels=labels, **self._plan.options, **as_job)
            except QuotaExceeded as error:
                await self._room_in_quota(error.retry_after or QUOTA_SECONDS)

    @contextmanager
    def _under_way(self, key: str) -> Iterator[None]:
        """Count a job as under way for the block, and from then on if nobody knows whether it has ended."""
        self.under_way.add(key)
        try:
            yield
        except ScorelineError as error:
            if not isinstance(error, Unreachable):
                self.under_way.discard(key)
            raise
        self.under_way.discard(key)

    async def _room_in_quota(self, seconds: float) -> None:
        """Wait until a job of this run has ended, or for some seconds: another run may use the quota."""
        self.waits_for_quota += 1
        try:
            async with asyncio.timeout(seconds):
                await self._job_has_ended.wait()
        except TimeoutError:
            pass
        finally:
            self.waits_for_quota -= 1

    def _key(self, *asked: object) -> str:
        content = json.dumps([self._journal.run_id, *asked]).encode()
        return f"run-{hashlib.blake2b(content, digest_size=20).hexdigest()}"


def _halves(rows: list[int], items: list[Text]) -> list[tuple[list[int], list[Text], int]]:
    middle = len(rows) // 2
    return [(rows[:middle], items[:middle], 0), (rows[middle:], items[middle:], 0)]


def place_of(error: ScorelineError, group: Group, items: int) -> int | None:
    """Return the place of the item that an error is about; None if it is about something else.

    Its own labels are an item's, as in ``labels[7][1]``. items: of the job, which may be a part of the group.
    """
    name, bracket, rest = (error.param or "").partition("[")
    number = rest.partition("]")[0]
    if name not in (("items", "labels") if group.labels else ("items",)) or not bracket:
        return None
    return int(number) if number.isdigit() and int(number) < items else None


def concerns_rows(error: InvalidRequest, group: Group, plan: Plan) -> bool:
    """Return whether an error is one of rows of a group, and not of the options."""
    if isinstance(error, RequestTooLarge) or place_of(error, group, len(group.rows)) is not None:
        return True
    columns, field = plan.columns, re.split(r"[.\[]", error.param or "")[0]
    of_row = isinstance(columns, StateColumns) or columns.query is not None or columns.query_filling is not None
    if of_row and field in _OF_THE_QUERY:
        return True
    # A state is too long together with a question, which the error names then.
    return error.code in _OF_EVERY_ROW and (error.param in _OF_THE_QUERY or bool(plan.questions))


def refusal_of(error: ScorelineError) -> Refusal:
    """Return why a row can't be scored, by the error of its job."""
    return Refusal(str(error), error.code == TOO_LONG, exit_code_of(error.code, error.status))
