"""Values that are looked up once for many requests."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator

import pytest

from api.caching import CachedLookup, ThrottledValue


class Source:
    """A source whose values count its look-ups. It answers only while its gate is open."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.now = 0.0

    async def look_up(self, key: str) -> str | None:
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


def test_a_shared_value_is_due_before_it_is_too_old() -> None:
    now = 0.0
    shared = ThrottledValue(lambda: 1, 8.0, clock=lambda: now)
    assert shared.is_due()
    shared.refresh()
    now = 5.9
    assert not shared.is_due()
    now = 6.0
    assert shared.is_due()
    assert shared.fresh() == 1


def test_a_cached_value_is_refreshed_in_the_background_from_half_its_lifetime_on() -> None:
    async def scenario() -> None:
        source = Source()
        cached = CachedLookup(source.look_up, 10.0, source.clock)
        assert await cached.get("a") == "a 1"
        source.now = 4.9
        assert await cached.get("a") == "a 1"
        assert source.asked == 1
        source.gate.clear()
        source.now = 6.0
        assert await cached.get("a") == "a 1", "the refresh delays no caller"
        assert await cached.get("a") == "a 1"
        await settled()
        assert source.asked == 2
        source.gate.set()
        await settled()
        assert await cached.get("a") == "a 2"

    asyncio.run(scenario())


def test_a_cached_value_past_its_lifetime_is_never_returned() -> None:
    async def scenario() -> None:
        source = Source()
        cached = CachedLookup(source.look_up, 10.0, source.clock)
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


def test_concurrent_callers_share_one_look_up_that_a_cancelled_caller_does_not_end() -> None:
    async def scenario() -> None:
        source = Source()
        source.gate.clear()
        cached = CachedLookup(source.look_up, 10.0, source.clock)
        asking = [asyncio.create_task(cached.get("a")) for _ in range(5)]
        await settled()
        asking[0].cancel()
        await settled()
        source.gate.set()
        assert await asyncio.gather(*asking[1:]) == ["a 1"] * 4
        assert source.asked == 1

    asyncio.run(scenario())


def test_a_missing_value_is_looked_up_each_time() -> None:
    async def scenario() -> None:
        source = Source()
        cached = CachedLookup(source.look_up, 10.0, source.clock)
        assert await cached.get("missing") is None
        assert await cached.get("missing") is None
        assert source.asked == 2

    asyncio.run(scenario())


def test_a_value_is_looked_up_once_for_all_and_the_oldest_are_forgotten() -> None:
    async def scenario() -> None:
        source = Source()
        cached = CachedLookup(source.look_up, math.inf, source.clock, most=3)
        assert await asyncio.gather(*[cached.get("a")] * 50) == ["a 1"] * 50
        for key in ("b", "c"):
            await cached.get(key)
        assert await cached.get("a") == "a 1"
        await cached.get("d")
        assert await cached.get("b") == "b 2"
        assert await cached.get("a") == "a 5"

    asyncio.run(scenario())


def test_a_value_that_could_not_be_looked_up_is_looked_up_again() -> None:
    async def scenario() -> None:
        source = Source()
        cached = CachedLookup(source.look_up, math.inf, source.clock)
        source.error = OSError("away")
        with pytest.raises(OSError, match="away"):
            await cached.get("a")
        source.error = None
        assert await cached.get("a") == "a 2"

    asyncio.run(scenario())


def test_a_throttled_value_lives_the_longer_the_longer_its_look_up_takes() -> None:
    now, looks, takes = 0.0, 0, 0.0

    def look_up() -> int:
        nonlocal now, looks
        looks += 1
        now += takes
        return looks

    throttled = ThrottledValue(look_up, 1.0, 10.0, lambda: now)
    assert [throttled.get(), throttled.get()] == [1, 1]
    takes = 0.1
    now = 1.0
    assert throttled.get() == 2
    now += 4.9
    assert throttled.get() == 2
    takes = 60.0
    now += 0.2
    assert throttled.get() == 3
    now += 9.9
    assert throttled.get() == 3
    now += 0.2
    assert throttled.get() == 4


def test_one_thread_looks_up_while_others_get_the_old_value_unless_it_is_too_old() -> None:
    now, looks = 0.0, 0
    looking, go_on = threading.Event(), threading.Event()

    def look_up() -> int:
        nonlocal looks
        looks += 1
        if looks > 1:
            looking.set()
            go_on.wait(20)
        return looks

    throttled = ThrottledValue(look_up, 1.0, 1.0, lambda: now)
    assert throttled.get() == 1
    now = 1.5
    answers: list[int] = []
    first = threading.Thread(target=lambda: answers.append(throttled.get()))
    first.start()
    assert looking.wait(20)
    assert throttled.get() == 1, "another thread is looking it up"
    now = 2.5
    second = threading.Thread(target=lambda: answers.append(throttled.get()))
    second.start()
    go_on.set()
    first.join(20)
    second.join(20)
    assert answers == [2, 2]
    assert looks == 2


def test_a_failed_look_up_of_a_throttled_value_is_repeated() -> None:
    outcomes: Iterator[Exception | int] = iter([TimeoutError(), 7])

    def look_up() -> int:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    throttled = ThrottledValue(look_up, 1.0, 1.0)
    with pytest.raises(TimeoutError):
        throttled.get()
    assert throttled.get() == 7
