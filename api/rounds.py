"""Questions that are answered in rounds: one round is under way at a time, and who asks meanwhile shares the next one.

So however many ask, the database is asked by one of them at a time, and no answer is older than its question.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")
T = TypeVar("T")


class _Question(NamedTuple, Generic[Answer]):
    size: int
    answer: asyncio.Future[Answer | None]  # of all who ask the same


class Rounds(Generic[Key, Answer]):
    """Answers questions by their keys. For use within one event loop."""

    def __init__(
        self, find: Callable[[Collection[Key]], Awaitable[Mapping[Key, Answer]]], most: float = math.inf
    ) -> None:
        """find: returns the answers of a round. most: what the sizes of its questions add up to, unless one alone is
        larger."""
        self._find = find
        self._most = most
        self._asked: dict[Key, _Question[Answer]] = {}  # for the next rounds
        self._running: asyncio.Task[None] | None = None

    async def answer(self, key: Key, size: int = 0) -> Answer | None:
        """Return the answer of a round that begins after this question; None if it has none. Raises what it raised."""
        # Others may wait for the same answer, so cancelling one of them must not cancel it.
        return await asyncio.shield(self.ask(key, size))

    def ask(self, key: Key, size: int = 0) -> asyncio.Future[Answer | None]:
        """Have a question answered by a round that begins after this."""
        if key not in self._asked:
            self._asked[key] = _Question(size, asyncio.get_running_loop().create_future())
        if self._running is None:
            # The task begins after all who are woken together with this one, so its first round answers them, too.
            self._running = asyncio.create_task(self._run())
        return self._asked[key].answer

    async def _run(self) -> None:
        try:
            while asked := self._take():
                try:
                    found = await self._find(list(asked))
                except Exception as error:
                    for question in asked.values():
                        question.answer.set_exception(error)
                else:
                    for key, question in asked.items():
                        question.answer.set_result(found.get(key))
        finally:
            self._running = None

    def _take(self) -> dict[Key, _Question[Answer]]:
        """Return the questions of the next round, those that were asked first."""
        taken: dict[Key, _Question[Answer]] = {}
        room = self._most
        for key, question in list(self._asked.items()):
            if taken and question.size > room:
                break
            room -= question.size
            taken[key] = self._asked.pop(key)
        return taken


class SharedCall(Generic[T]):
    """A function without arguments that is called in such rounds. For use within one event loop.

    With ``seconds``, what a call returned or raised is the answer to all questions for so long.
    """

    def __init__(
        self, function: Callable[[], Awaitable[T]], seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._function = function
        self._seconds = seconds
        self._clock = clock
        self._rounds = Rounds[None, T | Exception](self._call)
        self._found: T | Exception | None = None
        self._good_until = -math.inf

    async def result(self) -> T:
        """Return the result of a call that begins after this question, or has just ended. Raises what it raised."""
        found = self._found if self._clock() < self._good_until else await self._rounds.answer(None)
        assert found is not None
        if isinstance(found, Exception):
            raise found
        return found

    async def _call(self, _: Collection[None]) -> Mapping[None, T | Exception]:
        if self._found is None or self._clock() >= self._good_until:
            try:
                self._found = await self._function()
            except Exception as error:
                self._found = error
            self._good_until = self._clock() + self._seconds
        return {None: self._found}
