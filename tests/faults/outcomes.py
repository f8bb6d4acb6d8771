"""What must have become of a job, looked up in the store and computed from its tokens."""

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
    """What a made-up engine says of a label after a sequence, computed apart from it."""
    return math.sin(sum(place * token for place, token in enumerate(sequence, start=1)) + label)


def assert_succeeded_once(store: Store, job_id: str, chunk_count: int, token: int = 7) -> None:
    """A job of :meth:`tests.workers.conftest.Store.submit`: every chunk counts once, and its scores are right."""
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


def blames(store: Store) -> int:
    """Chunks that are held to be suspect, for having been in a batch that was lost."""
    with store.database.read() as connection:
        suspect = (chunks.c.failures > 0) | chunks.c.batch_limit.is_not(None)
        return connection.scalar(select(func.count()).select_from(chunks).where(suspect)) or 0


def claimed(store: Store) -> int:
    """Chunks that are in somebody's hands."""
    with store.database.read() as connection:
        return connection.scalar(select(func.count()).select_from(chunks).where(CLAIMED)) or 0


def leases(store: Store) -> int:
    """Batches on record, whether or not their leases have run out."""
    with store.database.read() as connection:
        return connection.scalar(select(func.count()).select_from(batches)) or 0


def expire_leases(store: Store) -> None:
    """Have all leases run out now. They may so be long, and a worker is not frozen just as it renews one."""
    with store.database.write() as connection:
        connection.execute(update(batches).values(lease_until=0.0))
