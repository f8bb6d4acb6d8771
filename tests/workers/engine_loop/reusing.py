"""Jobs, and workers with an engine of their own, for tests of scores that are used again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sqlalchemy import func, select

from jobs.queue.accept import accept
from jobs.queue.read import read_scores
from jobs.queue.worker_registry import register, unregister
from jobs.store.database import Database
from jobs.store.records import JobStatus, Submission, WorkerRecord
from jobs.store.tables import kept_scores
from scoring.chunk import Chunk
from scoring.layout import ChunkWork, Continuations, Head, LabelScores, Rows, ScoredChunk
from scoring.sources import equal_items
from scoring.work import work_of_rows
from tests.provenances import SOME
from tests.workers.conftest import CARD, EAGER, LABELS, RecordingBell, Store
from tests.workers.engines import MadeUpEngine, made_up_chunk
from workers.engine_loop.loop import ScoringLoop
from workers.engine_loop.watchdog import Watchdog

PREFIX = (11, 12, 13)
EXACT = replace(SOME, configuration="rules")
Items = Sequence[Sequence[int]]


class Engine(MadeUpEngine):
    """An engine whose scores depend on its revision, and that counts the items that it computes."""

    def __init__(self, revision: int) -> None:
        super().__init__()
        self.revision = revision
        self.items = 0

    def score(self, groups: Any, on_step: Any, on_phase: Any = None) -> Iterator[ScoredChunk]:
        for group in groups:
            for chunk in group.chunks:
                self.items += len(chunk.rows)
                yield of_revision(made_up_chunk(group.prefix, chunk), self.revision)
                on_step()


def of_revision(scored: ScoredChunk, revision: int) -> ScoredChunk:
    """Return other scores for another revision, with the algorithm of a real engine."""
    logits, logprobs = scored.scores.logits + revision, scored.scores.logprobs
    assert logprobs is not None
    return replace(scored, scores=LabelScores(logits, logprobs - revision), algorithms=("serial",))


class Worker:
    """A registered worker that works when it is told to."""

    def __init__(self, database: Database, revision: int = 0, *, is_exact: bool = True) -> None:
        self.provenance = replace(EXACT, weights_fingerprint=str(revision))
        own = self.provenance.id if is_exact else None
        self.id = f"worker-{revision}-{is_exact}"
        self.database = database
        self.engine = Engine(revision)
        register(database, WorkerRecord(self.id, CARD, str(revision), "none", "float32", provenance_id=own))
        self.watchdog = Watchdog(600.0, lambda: None)
        self.loop = ScoringLoop(
            database,
            RecordingBell(),
            self.engine,
            self.watchdog,
            EAGER,
            worker_id=self.id,
            card=CARD,
            provenance=self.provenance,
            provenance_id=own,
        )

    def work(self) -> int:
        """Score all that waits. Return how many items were computed."""
        before = self.engine.items
        while self.loop.turn():
            pass
        return self.engine.items - before

    def leave(self) -> None:
        unregister(self.database, self.id)
        self.loop.close()
        self.watchdog.close()


def chunk(first: int, items: Items, continuations: Continuations | None = None, *, once: bool = True) -> Chunk:
    """Return items as a request has them: equal ones are computed once."""
    rows = Rows.pack(items, [len(PREFIX)] * len(items))
    made = Chunk(first, rows, continuations, work=0, sources=equal_items(rows, continuations) if once else None)
    return replace(made, work=work_of_rows(*made.computed, len(PREFIX)))


def job(items: Items, size: int = 4, **given: Any) -> Submission:
    """Return a job of items in chunks of a size."""
    chunks = [chunk(first, items[first : first + size]) for first in range(0, len(items), size)]
    values: dict[str, Any] = {
        "model": CARD.name,
        "work_key": CARD.work_key,
        "prefix": np.array(PREFIX, np.int32),
        "chunks": chunks,
        "label_token_ids": LABELS,
        "prompt_tokens": sum(one.prompt_tokens for one in chunks),
        "total_items": len(items),
    }
    return Submission(**values | given)


def submit(store: Store, items: Items, **given: Any) -> str:
    return accept(store.database, job(items, **given)).job_id


def logits(store: Store, job_id: str, tenant: str = "default") -> list[list[float]]:
    """Return the logits of a job that has succeeded, and see that its log-probabilities belong to them."""
    page = read_scores(store.database, tenant, job_id, 0, 1_000_000)
    assert page.job.status is JobStatus.SUCCEEDED
    assert len(page.indices) == page.job.total_items
    found: list[list[float]] = page.scores.logits.tolist()
    return found


def expected(items: Items, revision: int = 0, labels: tuple[int, ...] = LABELS) -> list[list[float]]:
    work = ChunkWork(0, Rows.pack(items, [len(PREFIX)] * len(items)), labels, Head.LOGPROBS)
    found: list[list[float]] = of_revision(
        made_up_chunk(np.array(PREFIX, np.int32), work), revision
    ).scores.logits.tolist()
    return found


def kept(store: Store, tenant: str | None = None) -> int:
    """Return how many scores are kept, of one tenant or all."""
    which = [] if tenant is None else [kept_scores.c.tenant == tenant]
    with store.database.read() as tx:
        return int(tx.scalar(select(func.count()).select_from(kept_scores).where(*which)) or 0)


def numbered(first: int, count: int) -> list[list[int]]:
    return [[n, n + 1] for n in range(first, first + count)]
