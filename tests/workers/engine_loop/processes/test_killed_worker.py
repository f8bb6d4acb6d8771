"""A worker with the real engine is killed (SIGKILL) in the middle of a job: another one gives it the same bits."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from jobs.queue.read import read_scores
from jobs.store.records import JobStatus
from scoring.tokenizing.tokenization import TextTokenizer
from tests.faults.injection.places import FINISH
from tests.faults.injection.points import Point, to_text
from tests.services import wait_until
from tests.workers.conftest import Store
from tests.workers.engine_loop.processes.real_workers import worker

CHUNKS, ITEMS = 6, 20  # and items of a chunk
SECONDS = 240.0
"""Longer than any machine takes to load, compile and score."""


@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS)
def test_likelihoods_have_the_same_bits_although_the_worker_is_killed_in_the_middle(
    sqlite_url: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tokenizer = Store(sqlite_url), TextTokenizer.load(checkpoint).fingerprint
    # A claim is a chunk, so that the engine is killed between chunks of one query.
    settings = {"database_url": sqlite_url, "claim_seconds": 1e-6, "lease_seconds": 3, "sweep_seconds": 0.1}

    def submit() -> str:
        return store.submit(CHUNKS, prefix=range(1, 101), items=ITEMS, tokenizer=tokenizer, likelihood=True)

    def has_succeeded(job_id: str) -> bool:
        return store.status(job_id) is JobStatus.SUCCEEDED

    killed = submit()
    with monkeypatch.context() as patches:
        patches.setenv("FAULT_POINTS", to_text([Point(FINISH, "after", nth=2)]))
        victim = worker(checkpoint, "tests.faults.injection.launcher", "workers.engine_loop", **settings)
        status, log = victim.ended(SECONDS)
    assert status == -signal.SIGKILL, log
    assert 0 < store.scored_items(killed) < CHUNKS * ITEMS
    rescuer = worker(checkpoint, **settings)
    try:
        undisturbed = submit()
        for job_id in (killed, undisturbed):
            wait_until(partial(has_succeeded, job_id), "the job's end", SECONDS)
    finally:
        rescuer.process.kill()
    found = []
    for job_id in (killed, undisturbed):
        page = read_scores(store.database, "default", job_id, 0, CHUNKS * ITEMS)
        assert page.targets is not None
        assert page.scores.logprobs is not None
        assert len(set(page.scores.logprobs.reshape(-1).tolist())) == CHUNKS * 2, "each chunk has two items of its own"
        found.append(
            (page.scores.logprobs.tobytes(), page.targets.token_logprobs.tobytes(), page.targets.greedy.tobytes())
        )
    assert found[0] == found[1]
