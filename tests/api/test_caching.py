"""What is looked up for many requests at once."""

from __future__ import annotations

import asyncio

import pytest

from api.caching import Cached


class Source:
    """Answers with how often it was asked, once it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.now = 0.0

    async def look(self, key: str) -> str | None:
        self.asked += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return None if key == "missing" else f"{key} {self.asked}"

    def clock(self) -> float:
        return self.now


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_it_is_looked_up_beside_requests_from_half_its_time_on() -> None:
    async def scenario() -> None:
        source = Source()
        cached = Cached(source.look, 10.0, source.clock)
        assert await cached.get("a") == "a 1"
        source.now = 4.9
        assert await cached.get("a") == "a 1"
        assert source.asked == 1
        source.gate.clear()
        source.now = 6.0
        assert await cached.get("a") == "a 1", "nobody waits for the new look"
        assert await cached.get("a") == "a 1"
        await settled()
        assert source.asked == 2
        source.gate.set()
        await settled()
        assert await cached.get("a") == "a 2"

    asyncio.run(scenario())


def test_nothing_is_told_that_is_older_than_its_time() -> None:
    async def scenario() -> None:
        source = Source()
        cached = Cached(source.look, 10.0, source.clock)
        await cached.get("a")
        source.error = OSError("away")
        source.now = 9.9
        assert await cached.get("a") == "a 1"
        await settled()
        source.now = 10.0
        with pytest.raises(OSError, match="away"):
            await cached.get("a")
        assert cached.last("a") == "a 1"

    asyncio.run(scenario())


def test_many_who_ask_at_once_look_once_and_one_who_leaves_takes_nothing_from_the_others() -> None:
    async def scenario() -> None:
        source = Source()
        source.gate.clear()
        cached = Cached(source.look, 10.0, source.clock)
        asking = [asyncio.create_task(cached.get("a")) for _ in range(5)]
        await settled()
        asking[0].cancel()
        await settled()
        source.gate.set()
        assert await asyncio.gather(*asking[1:]) == ["a 1"] * 4
        assert source.asked == 1

    asyncio.run(scenario())


def test_what_is_not_there_is_looked_for_each_time() -> None:
    async def scenario() -> None:
        source = Source()
        cached = Cached(source.look, 10.0, source.clock)
        assert await cached.get("missing") is None
        assert await cached.get("missing") is None
        assert source.asked == 2

    asyncio.run(scenario())
