"""What a child asks its parent."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from api.callers.rate_limiting import RateLimits
from api.callers.request_counts import OwnCounts
from api.processes.parent_channel import ParentChannel, serve_child
from api.turns import Turns
from jobs.tenancy.tenants import Tenant

ACME = Tenant("acme", requests_per_minute=5)


def test_children_count_together_and_say_that_they_serve() -> None:
    async def run() -> None:
        counts, serving = OwnCounts(), asyncio.Event()
        pairs = [socket.socketpair() for _ in range(2)]
        parents = [asyncio.create_task(serve_child(ours, counts, Turns(), serving)) for ours, _ in pairs]
        one, other = (ParentChannel(theirs) for _, theirs in pairs)
        async with one.open(), other.open():
            limits = [RateLimits(None, "", channel.count) for channel in (one, other)]
            results = [await limits[number % 2].count(ACME) for number in range(7)]
            assert [result.retry_after is None for result in results] == [True] * 5 + [False] * 2
            assert results[3].headers["RateLimit"].startswith('"minute";r=1;t=')
            assert len(await asyncio.gather(*(limits[0].count(Tenant(f"t{n}", 1)) for n in range(50)))) == 50
            assert not serving.is_set()
            one.say_serving()
            await asyncio.wait_for(serving.wait(), 5)
        await asyncio.wait_for(asyncio.gather(*parents), 5)

    asyncio.run(run())


def test_one_request_of_all_children_has_the_turn_and_a_child_that_ends_gives_it_back() -> None:
    async def run() -> None:
        turns, had = Turns(), []
        pairs = [socket.socketpair() for _ in range(3)]
        parents = [asyncio.create_task(serve_child(ours, OwnCounts(), turns, asyncio.Event())) for ours, _ in pairs]
        channels = [ParentChannel(theirs) for _, theirs in pairs]
        ends = [asyncio.Event() for _ in range(5)]

        async def read(number: int, channel: ParentChannel, tenant: str) -> None:
            async with channel.turn(tenant):
                had.append(number)
                await ends[number].wait()

        async def soon(expected: list[int]) -> None:
            async with asyncio.timeout(5):
                while had != expected:
                    await asyncio.sleep(0.001)

        async with channels[1].open(), channels[2].open():
            async with channels[0].open():
                reading = [asyncio.create_task(read(0, channels[0], "acme"))]
                await soon([0])
                for number, tenant in enumerate(("acme", "acme", "umbrella", "acme"), 1):
                    reading.append(asyncio.create_task(read(number, channels[1 + number % 2], tenant)))
                    # The answer to a count comes after the parent has read what was asked before it.
                    await channels[1 + number % 2].count("anybody", None, None)
                assert had == [0]
                reading[2].cancel()
            await soon([0, 1])  # the child has ended, and with it its turn
            ends[1].set()
            await soon([0, 1, 3])
            ends[3].set()
            await soon([0, 1, 3, 4])
            ends[4].set()
            await asyncio.gather(*reading[3:])
        reading[0].cancel()
        await asyncio.wait_for(asyncio.gather(*parents), 5)

    asyncio.run(run())


@pytest.mark.parametrize("parent_is_gone", [False, True])
def test_without_the_parents_answer_a_process_counts_for_itself(parent_is_gone: bool) -> None:
    async def run() -> None:
        silent, theirs = socket.socketpair()
        channel = ParentChannel(theirs)
        async with channel.open():
            if parent_is_gone:
                silent.close()
            limits = RateLimits(None, "", channel.count)
            began = time.monotonic()
            results = [await limits.count(Tenant("acme", requests_per_minute=1)) for _ in range(3)]
            assert time.monotonic() - began < 2
            admitted = [result.retry_after is None for result in results]
            assert admitted[0]
            assert admitted.count(True) <= 2, "one more if a new window begins"
        silent.close()

    asyncio.run(run())
