"""Checks what became of jobs, in the store and against scores computed from their tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from sqlalchemy import func, select, update

from jobs.queue.read import get_job, read_scores
from jobs.store.records import JobStatus
from jobs.store.tables import CLAIMED, ChunkState, batches, chunk_scores, chunks, jobs
from tests.workers.conftest import LABELS, Store

TOLERANCE = 1e-6


def expected_logit(sequence: Sequence[int], label: int) -> float:
    """Compute the logit of the tests' engine for a label after a sequence, without that engine."""
    return math.sin(sum(place * token for place, token in enumerate(sequence, start=1)) + label)


def assert_succeeded_once(store: Store, job_id: str, chunk_count: int, token: int = 7) -> None:
    """Assert that each chunk of a job from :meth:`tests.workers.conftest.Store.submit` was scored once, and rightly."""
    job = get_job(store.database, "default", job_id)
    assert job.status is JobStatus.SUCCEEDED
    assert job.scored_items == job.total_items == 2 * chunk_count
    with store.database.read() as connection:
        of_job = chunks.c.job_id == job_id
        states = connection.scalars(select(chunks.c.state).where(of_job)).all()
        assert states == [ChunkState.DONE.value] * chunk_count
        stored = select(func.count()).select_from(chunk_scores).join(chunks, chunks.c.id == chunk_scores.c.chunk_id)
        assert connection.scalar(stored.where(of_job)) == chunk_count
        assert connection.scalar(select(jobs.c.remaining_chunks).where(jobs.c.id == job_id)) == 0
    page = read_scores(store.database, "default", job_id, 0, 2 * chunk_count)
    sequences = [[1, 2, token, n, *ending] for n in range(chunk_count) for ending in ([], [9])]
    expected = [[expected_logit(sequence, label) for label in LABELS] for sequence in sequences]
    np.testing.assert_allclose(page.scores.logits, expected, rtol=0, atol=TOLERANCE)


def suspects(store: Store) -> int:
    """Return the number of chunks that are suspected of poison because they were in a lost batch."""
    with store.database.read() as connection:
        suspect = (chunks.c.failures > 0) | chunks.c.batch_limit.is_not(None)
        return connection.scalar(select(func.count()).select_from(chunks).where(suspect)) or 0


def claimed(store: Store) -> int:
    """Return the number of claimed chunks."""
    with store.database.read() as connection:
        return connection.scalar(select(func.count()).select_from(chunks).where(CLAIMED)) or 0


def batch_count(store: Store) -> int:
    """Return the number of batches in the store, whether or not their leases have run out."""
    with store.database.read() as connection:
        return connection.scalar(select(func.count()).select_from(batches)) or 0


def expire_leases(store: Store) -> None:
    """Let all leases run out now. With this, leases can be long, and no worker is frozen while it renews one."""
    with store.database.write() as connection:
        connection.execute(update(batches).values(lease_until=0.0))
