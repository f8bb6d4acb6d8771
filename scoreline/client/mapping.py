"""``map`` and ``decide_many``: many jobs under way at a time, whose results come in the order of their inputs."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack

from scoreline.client.decisions import Decision, Questions, State, bodies_of
from scoreline.client.errors import Overloaded, QuotaExceeded, RateLimited, ScorelineError, TimedOut, Unavailable
from scoreline.client.exchange.bodies import check_is_list
from scoreline.client.exchange.flow import Command, Flow
from scoreline.client.exchange.sending import Service, idempotency, longest_pause
from scoreline.client.job_objects import Job
from scoreline.client.methods import checked
from scoreline.client.operations.jobs import present, result
from scoreline.client.options import DecideManyOptions, Items, MapOptions, Query, ScoreJobOptions
from scoreline.client.progress import MapProgress, shown
from scoreline.client.results import ScoreResult

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from scoreline.client.sets import Driver, JobSets

T = TypeVar("T")
R = TypeVar("R", ScoreResult, Decision)

Pair = tuple[Query, Items] | tuple[Query, Items, ScoreJobOptions]
"""A query and the items that follow it, and options of its own, if it has some."""

CONCURRENCY = 256
"""How many pairs are under way at a time, if the caller does not say."""

HEAR_SECONDS = 0.2
"""How long Ctrl-C goes unheard at most."""

_OF_THE_WHOLE = {"timeout": None, "idempotency_key": None, "progress": None, "bar": False}
"""The options that do not hold for each pair, and their defaults."""

_BUSY = (Overloaded, QuotaExceeded, RateLimited, Unavailable)
"""The errors that are no errors here, but say that the client is to wait."""


@dataclass(frozen=True, slots=True)
class Mapping(Command[list[R]], Generic[T, R]):
    """What ``map`` or ``decide_many`` was asked to do. It is checked before the first pair or state is read.

    A flow that has it done gets all results at once.
    """

    pairs: Iterable[T] | AsyncIterable[T]  # or states
    submit: Callable[[JobSets, T, str, dict[str, Any]], Awaitable[Job]]  # a job for one of them, by its key and options
    read: Callable[[Service, Job], Flow[R]]  # the result of a job that has succeeded
    concurrency: int
    errors: str  # "raise" or "yield"
    options: dict[str, Any]  # of each pair: those of its job
    timeout: float | None
    idempotency_key: str | None
    progress: Callable[[MapProgress], object] | None
    bar: bool

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {self.concurrency}")
        if self.errors not in ("raise", "yield"):
            raise ValueError(f"errors must be 'raise' or 'yield', not {self.errors!r}")

    async def carry_out(self, sets: JobSets, pair: T, number: int) -> R:
        """Have one pair or state computed as a job. Where the service is busy, wait instead of failing."""
        import asyncio  # Whoever imports a client for one call need not wait for it.

        began = time.monotonic()
        given = None if self.idempotency_key is None else f"{self.idempotency_key}-{number}"
        key = idempotency(given)["Idempotency-Key"]
        refusals, reason = 0, "the service is away or busy"
        try:
            async with asyncio.timeout(self.timeout):
                while True:
                    try:
                        job = await self.submit(sets, pair, key, self.options)
                        break
                    except _BUSY as error:
                        refusals, reason = refusals + 1, error.message
                        pause = pause_of(error, refusals)
                    await asyncio.sleep(pause)
        except TimeoutError as error:
            if self.timeout is None or isinstance(error, TimedOut):
                raise
            raise TimedOut("timeout", f"not submitted within {self.timeout:g} s: {reason}") from error
        left = None if self.timeout is None else max(0.0, self.timeout - (time.monotonic() - began))
        ended = await sets.wait(job, job.total_items, left)
        return await sets.driver.carry_out(self.read(sets.driver.service, ended))

    def returned(self, result: Callable[[], R]) -> R | ScorelineError:
        """Return a result, or the error in its place. Raises it if that is wanted."""
        try:
            return result()
        except ScorelineError as error:
            if self.errors == "raise":
                raise
            return error

    @contextmanager
    def showing(self) -> Iterator[Callable[[R | ScorelineError], None]]:
        """Return what to call with everything that is returned."""
        so_far = MapProgress(0, 0, 0, len(self.pairs) if isinstance(self.pairs, Sized) else None)
        with shown(self.progress, "pairs" if self.bar else None) as show:

            def count(found: R | ScorelineError) -> None:
                nonlocal so_far
                failed, items = isinstance(found, ScorelineError), _items_of(found)
                so_far = MapProgress(
                    so_far.pairs + 1, so_far.failed_pairs + failed, so_far.items + items, so_far.total_pairs
                )
                if show is not None:
                    show(so_far)

            yield count


def _items_of(returned: ScoreResult | Decision | ScorelineError) -> int:
    if isinstance(returned, ScorelineError):
        return 0
    return len(returned.scores if isinstance(returned, ScoreResult) else returned.answers)


def pause_of(error: ScorelineError, refusals: int) -> float:
    """Return how long to wait after so many refusals of a pair. Raises the error if the service does not say so."""
    if error.retry_after is None:
        raise error
    return error.retry_after + random.uniform(0, longest_pause(refusals))


@checked
def map(
    service: Service,
    pairs: Iterable[Pair] | AsyncIterable[Pair],
    *,
    concurrency: int = CONCURRENCY,
    errors: Literal["raise", "yield"] = "raise",
    **options: Unpack[MapOptions],
) -> Mapping[Pair, ScoreResult]:
    """Score the items of many queries, and yield the results in the order of the pairs.

    Each pair becomes a job, and short ones are sent in sets. At most ``concurrency`` jobs are under way, and no more
    results than that are kept, so memory stays small however many pairs there are; they are read one at a time. Where
    the service is overloaded or a quota is used up, this waits as long as the service asks for. A restart of the
    service does no harm.

    pairs: a query and its items, and behind these, if some pairs have other options than the rest, a mapping of their
    own options. For an :class:`AsyncClient`, pairs may come from an asynchronous iterable, too.
    concurrency: jobs under way at a time. errors: ``"raise"``: a pair that fails ends the iteration; ``"yield"``:
    its error is yielded in the place of its result.

    >>> reviews = {"hotel": ["A lovely room.", "The room was dirty."], "cafe": ["The soup was cold."]}
    >>> pairs = (("Review: ", items) for items in reviews.values())
    >>> template = "{item}\\nSentiment:"
    >>> for result in client.map(pairs, item_template=template, labels=[" positive", " negative"]):
    ...     print([row[0] > row[1] for row in result.scores])
    [True, False]
    [False]
    """
    given: dict[str, Any] = dict(options)
    check_is_list(pairs, "gives no pairs of a query and its items")
    own = {name: given.pop(name, default) for name, default in _OF_THE_WHOLE.items()}
    return Mapping(pairs, _scored, _scores_of, concurrency, errors, given, **own)


async def _scored(sets: JobSets, pair: Pair, key: str, options: dict[str, Any]) -> Job:
    query, items, *own = pair
    for more in own:
        options = {**options, **more}
    return await sets.submit(query, items, idempotency_key=key, **options)


def _scores_of(service: Service, job: Job) -> Flow[ScoreResult]:
    return job.result if job.result is not None else (yield from result(service, job))


@checked
def decide_many(
    service: Service,
    states: Iterable[State] | AsyncIterable[State],
    questions: Questions,
    *,
    concurrency: int = CONCURRENCY,
    errors: Literal["raise", "yield"] = "raise",
    **options: Unpack[DecideManyOptions],
) -> Mapping[State, Decision]:
    """Ask the same questions about many states, and yield the decisions in the order of the states.

    Each state becomes a job, and the jobs are sent and awaited as those of :meth:`map`.

    states: for an :class:`AsyncClient`, they may come from an asynchronous iterable, too. questions: as those of
    :meth:`decide`.
    concurrency: jobs under way at a time. errors: ``"raise"``: a state that fails ends the iteration; ``"yield"``:
    its error is yielded in the place of its decision.

    >>> from scoreline import Choice
    >>> tickets = ["I was charged twice for one order.", "The app crashes when I open it."]
    >>> route = {"team": Choice("Which team is this for?", ["billing", "technical support", "sales"])}
    >>> teams = [decision["team"] for decision in client.decide_many(tickets, route)]
    >>> len(teams), set(teams) <= {"billing", "technical support", "sales"}
    (2, True)
    """
    if isinstance(states, str):
        raise TypeError("the states are a list; decide() takes one")
    check_is_list(states, "gives no states")
    given: dict[str, Any] = {"questions": bodies_of(questions), **options}
    own = {name: given.pop(name, default) for name, default in _OF_THE_WHOLE.items()}
    return Mapping(states, _decided, _decision_of, concurrency, errors, given, **own)


async def _decided(sets: JobSets, state: State, key: str, options: dict[str, Any]) -> Job:
    return await sets.submit_decision(state, idempotency_key=key, **options)


def _decision_of(service: Service, job: Job) -> Flow[Decision]:
    found = job if job.decision is not None else (yield from present(service, job))
    assert found.decision is not None
    return found.decision


async def map_async(wanted: Mapping[T, R], driver: Driver) -> AsyncIterator[R | ScorelineError]:
    """Yield the results of all pairs or states."""
    import asyncio  # Whoever imports a client for one call need not wait for it.

    from scoreline.client.sets import JobSets

    sets = JobSets(driver)
    under_way: deque[asyncio.Task[R]] = deque()
    try:
        with wanted.showing() as show:
            number = 0
            async for pair in _asynchronous(wanted.pairs):
                under_way.append(asyncio.create_task(wanted.carry_out(sets, pair, number)))
                number += 1
                while under_way and (len(under_way) >= wanted.concurrency or under_way[0].done()):
                    await asyncio.wait([under_way[0]])
                    show(found := wanted.returned(under_way.popleft().result))
                    yield found
            while under_way:
                await asyncio.wait([under_way[0]])
                show(found := wanted.returned(under_way.popleft().result))
                yield found
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await sets.close()


def outcome(task: Future[T]) -> T:
    """Wait for a task, and return its value.

    Ctrl-C ends a wait of any length only where no library, as Polars does, has put its own handler before Python's.
    """
    from concurrent.futures import wait

    while not task.done():
        wait([task], HEAR_SECONDS)
    return task.result()


def map_blocking(wanted: Mapping[T, R], start: Callable[[T, int], Future[R]]) -> Iterator[R | ScorelineError]:
    """Yield the results of all pairs or states. start: begins to have one computed in the background."""
    if not isinstance(wanted.pairs, Iterable):
        raise TypeError("the pairs or states of a Client are an iterable; an AsyncClient takes asynchronous ones, too")
    under_way: deque[Future[R]] = deque()
    with wanted.showing() as show:
        for number, pair in enumerate(wanted.pairs):
            under_way.append(start(pair, number))
            while under_way and (len(under_way) >= wanted.concurrency or under_way[0].done()):
                show(found := wanted.returned(partial(outcome, under_way.popleft())))
                yield found
        while under_way:
            show(found := wanted.returned(partial(outcome, under_way.popleft())))
            yield found


async def _asynchronous(pairs: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(pairs, AsyncIterable):
        async for pair in pairs:
            yield pair
    else:
        for pair in pairs:
            yield pair
