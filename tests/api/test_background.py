"""The background tasks of an API process."""

from __future__ import annotations

import asyncio

import pytest

from api import background
from api.background import _end, _keep_running


def test_a_task_that_survives_a_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "CANCEL_AGAIN_SECONDS", 0.01)
    survived: list[str] = []

    async def swallow() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            survived.append("swallowing")
            await asyncio.Event().wait()

    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as cancelled:
            if "failing" in survived:
                raise
            survived.append("failing")
            raise ConnectionError("closing failed") from cancelled

    async def main() -> None:
        starts = {"swallowing": swallow, "failing": fail}
        tasks = [asyncio.create_task(_keep_running(name, start), name=name) for name, start in starts.items()]
        await asyncio.sleep(0)  # now both wait
        async with asyncio.timeout(10):
            await _end(tasks)
        assert all(task.cancelled() for task in tasks)

    asyncio.run(main())
    assert sorted(survived) == ["failing", "swallowing"]
