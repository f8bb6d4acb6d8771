"""``map``: many pairs under way at a time, whose results come in the order of the pairs."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scoreline.client.errors import ScorelineError
from scoreline.client.exchange.bodies import check_is_list
from scoreline.client.exchange.flow import Flow
from scoreline.client.exchange.sending import Service
from scoreline.client.operations.pairs import MapProgress, Pair, PairOptions, Tally, check_options, pair_key, score_pair
from scoreline.client.progress import shown
from scoreline.client.results import ScoreResult

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future


@dataclass(frozen=True, slots=True)
class Mapping:
    """What ``map`` was asked to do. It is checked before the first pair is read."""

    pairs: Iterable[Pair] | AsyncIterable[Pair]
    options: PairOptions
    concurrency: int
    errors: str  # "raise" or "yield"
    timeout: float | None
    idempotency_key: str | None
    progress: Callable[[MapProgress], object] | None
    bar: bool

    def __post_init__(self) -> None:
        check_options(self.options)
        check_is_list(self.pairs, "gives no pairs of a query and its items")
        if self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {self.concurrency}")
        if self.errors not in ("raise", "yield"):
            raise ValueError(f"errors must be 'raise' or 'yield', not {self.errors!r}")

    def flow(self, service: Service, pair: Pair, number: int) -> Flow[ScoreResult]:
        """Return what is done with a pair."""
        query, items = pair
        key = pair_key(self.idempotency_key, number)
        return score_pair(service, query, items, key, self.timeout, self.options)

    def returned(self, result: Callable[[], ScoreResult]) -> ScoreResult | ScorelineError:
        """Return a result, or the error in its place. Raises it if that is wanted."""
        try:
            return result()
        except ScorelineError as error:
            if self.errors == "raise":
                raise
            return error

    def showing(self) -> AbstractContextManager[Callable[[ScoreResult | ScorelineError], object]]:
        """Return what to call with everything that is returned."""
        return _Showing(self)


class _Showing:
    def __init__(self, wanted: Mapping) -> None:
        self._tally = Tally(len(wanted.pairs) if isinstance(wanted.pairs, Sized) else None)
        self._shown = shown(wanted.progress, "pairs" if wanted.bar else None)

    def __enter__(self) -> Callable[[ScoreResult | ScorelineError], object]:
        show = self._shown.__enter__()
        return lambda found: show(self._tally.add(found)) if show is not None else None

    def __exit__(self, *why: Any) -> None:
        self._shown.__exit__(*why)


async def map_async(
    wanted: Mapping, start: Callable[[Pair, int], Coroutine[Any, Any, ScoreResult]]
) -> AsyncIterator[ScoreResult | ScorelineError]:
    """Yield the results of all pairs. start: returns the coroutine that scores a pair."""
    import asyncio  # Whoever imports a client for one call need not wait for it.

    under_way: deque[asyncio.Task[ScoreResult]] = deque()
    try:
        with wanted.showing() as show:
            number = 0
            async for pair in _asynchronous(wanted.pairs):
                under_way.append(asyncio.create_task(start(pair, number)))
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


def map_blocking(
    wanted: Mapping, start: Callable[[Pair, int], Future[ScoreResult]]
) -> Iterator[ScoreResult | ScorelineError]:
    """Yield the results of all pairs. start: begins to score a pair in the background."""
    if not isinstance(wanted.pairs, Iterable):
        raise TypeError("the pairs of a Client are an iterable; an AsyncClient takes asynchronous ones, too")
    under_way: deque[Future[ScoreResult]] = deque()
    with wanted.showing() as show:
        for number, pair in enumerate(wanted.pairs):
            under_way.append(start(pair, number))
            while under_way and (len(under_way) >= wanted.concurrency or under_way[0].done()):
                show(found := wanted.returned(under_way.popleft().result))
                yield found
        while under_way:
            show(found := wanted.returned(under_way.popleft().result))
            yield found


async def _asynchronous(pairs: Iterable[Pair] | AsyncIterable[Pair]) -> AsyncIterator[Pair]:
    if isinstance(pairs, AsyncIterable):
        async for pair in pairs:
            yield pair
    else:
        for pair in pairs:
            yield pair
