"""The background tasks of an API process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from api import background
from api.background import _end, _keep_running
from tests.api.serving import running_api
from tests.api.tiny_model import TinyModel


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


def test_jobs_that_pass_their_deadline_together_end_without_a_pause(
    model: TinyModel, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.store.free_rows.ROWS_PER_STEP", 1)
    monkeypatch.setattr("jobs.queue.sweep.STEPS", 1)
    body: dict[str, Any] = {"query": [1], "items": [[2]], "label_token_ids": [7], "expires_in": 1.0}
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, sweep_seconds=2.0) as (api, _):
        late = [api.submit(**body) for _ in range(10)]
        ended = [api.wait(job["id"])["finished_at"] for job in late]
    assert max(ended) - min(ended) < 8.0, "with a whole pause after each, it would take more than thirteen seconds"
