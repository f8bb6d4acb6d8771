"""Whoever waits for results while the service is killed gets them once it is there again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from scoreline import AsyncClient, Client, Job, ScoreResult
from scoreline.client.exchange import sending
from tests.scoreline.running import CommandUp
from tests.services import wait_until

LABELS = [1, 2]
PAIRS = 40


@pytest.mark.slow
def test_waiting_following_and_mapping_survive_a_restart_of_the_service(
    restarting: Callable[..., CommandUp], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "LONGEST_PAUSE_SECONDS", 0.5)
    up = restarting()
    half, seen, killed = threading.Event(), threading.Event(), threading.Event()

    def pairs() -> Iterator[tuple[str, list[str]]]:
        """Each has one item more than the one before. Half of them come before the service is killed."""
        for n in range(PAIRS):
            if n == PAIRS // 2:
                half.set()
                assert killed.wait(60)
            yield f"query {n}", [f"item {n} {m}" for m in range(n + 1)]

    def mapped() -> list[ScoreResult]:
        with Client(up.url) as client:
            return list(client.map(pairs(), label_token_ids=LABELS, concurrency=4))

    async def waited(job_id: str) -> Job:
        async with AsyncClient(up.url) as client:
            return await client.wait(job_id)

    def followed(job_id: str) -> list[str]:
        with Client(up.url) as client:
            names = []
            for event in client.events(job_id, scores=True):
                names.append(type(event).__name__)
                seen.set()
            return names

    with Client(up.url) as client, ThreadPoolExecutor() as pool:
        mapping = pool.submit(mapped)
        assert half.wait(60)
        with up.worker_frozen():  # nothing of the job is scored before the service is killed
            job = client.submit("a", ["b", "c"], label_token_ids=[1])
            waiting = pool.submit(client.wait, job)
            awaiting = pool.submit(asyncio.run, waited(job.id))
            following = pool.submit(followed, job.id)
            assert seen.wait(20)
            up.process.kill()
            up.process.wait()
            wait_until(lambda: not up.children(), "its processes are gone")
        assert not waiting.done()
        killed.set()
        restarting()
        assert waiting.result(60).status == awaiting.result(60).status == "succeeded"
        names = following.result(60)
        assert names.count("JobScores") == names.count("JobEnd") == 1
        assert [len(result.scores) for result in mapping.result(60)] == list(range(1, PAIRS + 1))
