"""Tenants take turns at the process that reads long bodies."""

from __future__ import annotations

import asyncio

from api.text_process.turns import Turns


def test_a_tenant_with_many_long_bodies_waits_for_each_other_tenant_between_them() -> None:
    async def order() -> list[str]:
        turns, taken = Turns(), list[str]()

        async def work(tenant: str) -> None:
            async with turns.turn(tenant):
                taken.append(tenant)
                await asyncio.sleep(0)

        await asyncio.gather(*map(work, ["a", "a", "a", "a", "b", "b", "c"]))
        return taken

    assert "".join(asyncio.run(order())) == "aabcaba"


def test_a_turn_is_passed_on_by_those_who_gave_up() -> None:
    async def taken_after_giving_up() -> bool:
        turns = Turns()

        async def work() -> None:
            async with turns.turn("a"):
                pass

        async with turns.turn("a"):
            waiting = [asyncio.create_task(work()) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
        # The turn is the second one's now, which gives up before it begins.
        waiting[1].cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError, asyncio.CancelledError, type(None)]
        async with asyncio.timeout(10), turns.turn("b"):
            return True

    assert asyncio.run(taken_after_giving_up())
