"""The class Following: however many streams follow something, it is looked at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest

from api.waiting.departure import Departure
from api.waiting.following import Following
from jobs.store.database import StorageUnavailable

NEVER = 3_600.0
"""Seconds between two regular looks, in tests that wait for urgent ones."""


@dataclass(frozen=True)
class Number:
    """A state."""

    value: int
    is_final: bool = False


class Numbers:
    """What is followed, and which keys were looked at together."""

    def __init__(self, **values: int) -> None:
        self.states = {key: Number(value) for key, value in values.items()}
        self.looks: list[list[str]] = []
        self.failure: Exception | None = None

    async def __call__(self, keys: Collection[str]) -> Mapping[str, Number]:
        self.looks.append(sorted(keys))
        if self.failure is not None:
            raise self.failure
        return {key: self.states[key] for key in keys if key in self.states}


def present() -> Departure:
    """A client that stays."""
    return Departure(lambda _: None)


@asynccontextmanager
async def kept(numbers: Numbers, every_seconds: float = NEVER) -> AsyncIterator[Following[Number]]:
    following = Following(numbers, every_seconds)
    task = asyncio.create_task(following.keep())
    try:
        yield following
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_streams_that_come_together_share_one_look() -> None:
    async def follow() -> None:
        numbers = Numbers(a=1, b=2)
        async with kept(numbers) as following:

            async def first(key: str) -> Number | None:
                with following.follow(key) as one:
                    return await one.first(present())

            keys = ["a", "b", "missing"] * 100
            found = await asyncio.gather(*map(first, keys))
            assert found == [Number(1), Number(2), None] * 100
            assert numbers.looks == [["a", "b", "missing"]]

    asyncio.run(follow())


def test_a_change_wakes_all_streams_and_a_look_without_one_wakes_none() -> None:
    async def follow() -> None:
        numbers = Numbers(a=1)
        async with kept(numbers) as following:
            with following.follow("a") as one:
                await one.first(present())
                waiting = [asyncio.create_task(one.change(one.version, NEVER, present())) for _ in range(3)]
                following.look_at("a")
                while len(numbers.looks) < 2:
                    await asyncio.sleep(0)
                assert not any(task.done() for task in waiting)
                numbers.states["a"] = Number(5)
                following.look_at("a")
                await asyncio.gather(*waiting)
                assert one.state == Number(5)

    asyncio.run(follow())


def test_what_is_final_or_not_followed_is_not_looked_at_again() -> None:
    async def follow() -> None:
        numbers = Numbers(a=1, b=1)
        numbers.states["b"] = Number(2, is_final=True)
        async with kept(numbers, every_seconds=0.01) as following:
            with following.follow("b") as final:
                await final.first(present())
                with following.follow("a") as one:
                    await one.first(present())
                    while len(numbers.looks) < 5:
                        await asyncio.sleep(0.001)
                following.look_at("a")
                following.look_at("b")
                looks = len(numbers.looks)
                await asyncio.sleep(0.03)  # three regular looks, if there were any
            assert len(numbers.looks) <= looks + 1
            assert all(keys == ["a"] for keys in numbers.looks[2:])

    asyncio.run(follow())


def test_an_outage_is_told_to_those_that_know_nothing_yet_and_nobody_else() -> None:
    async def follow() -> None:
        numbers = Numbers(a=1)
        async with kept(numbers) as following:
            with following.follow("a") as known:
                await known.first(present())
                numbers.failure = StorageUnavailable("away")
                following.look_at("a")
                with following.follow("b") as unknown, pytest.raises(StorageUnavailable):
                    await unknown.first(present())
                assert await known.first(present()) == Number(1)
                numbers.failure = None
                numbers.states["b"] = Number(7)
                with following.follow("b") as again:
                    assert await again.first(present()) == Number(7)

    asyncio.run(follow())


def test_a_client_that_goes_and_a_process_that_stops_end_a_wait() -> None:
    async def follow() -> None:
        async with kept(Numbers(a=1)) as following:
            with following.follow("a") as one:
                await one.first(present())
                departure = present()
                gone = asyncio.create_task(one.change(one.version, NEVER, departure))
                stays = asyncio.create_task(one.change(one.version, NEVER, present()))
                await asyncio.sleep(0)
                departure.happen()
                await gone
                assert not stays.done()
                following.stop()
                await stays
                assert one.is_stopped
            with following.follow("c") as later:
                assert await later.first(present()) is None

    asyncio.run(follow())
