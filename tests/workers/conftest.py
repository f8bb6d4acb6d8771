"""A store with shorthands, and a scoring loop that runs in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from checkpoints.card import ModelCard
from jobs.queue.accept import accept
from jobs.queue.read import get_job
from jobs.store.database import Database
from jobs.store.provenance import Provenance
from jobs.store.records import JobStatus, Origin, Submission
from scoring.chunk import Chunk
from scoring.layout import Continuations, Rows
from scoring.options import Priority, ScoreOptions, Scoring
from scoring.work import chunk_of
from settings.store import StoreSettings
from telemetry.tracing import Tracer
from tests.databases import store_url  # noqa: F401 (a fixture)
from tests.services import wait_until
from tests.workers.engines import MadeUpEngine
from workers.engine_loop.claimer import LoopTiming
from workers.engine_loop.loop import ScoringLoop
from workers.engine_loop.watchdog import Watchdog

MODEL = "demo"
CARD = ModelCard(MODEL, context_length=64, vocabulary=1000, tokenizer_fingerprint="tokenizer")
"""What the workers of the tests serve, unless told otherwise."""
LABELS = (3, 5)
EAGER = LoopTiming(claim_seconds=4.0, poll_seconds=0.05)
SLEEPY = LoopTiming(claim_seconds=4.0, poll_seconds=600.0)
"""Looks for work only when the bell rings."""


class RecordingBell:
    """Records rings and announcements."""

    def __init__(self) -> None:
        self.rings: list[str] = []
        self.ended: list[str] = []
        self.results: dict[str, str] = {}

    def ring(self, model: str) -> None:
        self.rings.append(model)

    def announce(self, job_ids: Sequence[str], results: Mapping[str, str] | None = None) -> None:
        self.ended.extend(job_ids)
        self.results.update(results or {})

    def close(self) -> None:
        pass


class Store:
    """A database, with shorthands for what tests do with it."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.database = Database.open(StoreSettings(database_url=url, **settings))

    def submit(
        self,
        chunks: int = 1,
        *,
        token: int = 7,
        prefix: Sequence[int] = (1, 2),
        tokenizer: str = CARD.tokenizer_fingerprint,
        priority: Priority = Priority.NORMAL,
        tenant: str = "default",
        items: int = 2,
        notice_key: bytes | None = None,
        origin: Origin = Origin.JOB,
        traceparent: str | None = None,
        likelihood: bool = False,
        model: str = MODEL,
    ) -> str:
        """Accept a job of so many chunks, each with so many items that begin with ``token``, and return its id."""

        def rows(n: int) -> Rows:
            return Rows.pack([[token, n], [token, n, 9]] * (items // 2), [len(prefix)] * items)

        def chunk(n: int) -> Chunk:
            if not likelihood:
                return chunk_of(items * n, rows(n))
            own, nothing = rows(n), Rows.pack([[]] * items, [len(prefix)] * items)
            ones = np.ones(items, np.int32)
            return chunk_of(items * n, nothing, Continuations(own.tokens, own.lengths, own.prefix_ends, ones))

        given = [chunk(n) for n in range(chunks)]
        submission = Submission(
            model=model,
            work_key=tokenizer,
            prefix=Rows.pack([prefix], [0]).tokens,
            chunks=given,
            label_token_ids=(0,) if likelihood else LABELS,
            options=ScoreOptions(scoring=Scoring.LIKELIHOOD) if likelihood else ScoreOptions(),
            prompt_tokens=sum(chunk.prompt_tokens for chunk in given),
            total_items=items * chunks,
            priority=priority,
            tenant=tenant,
            notice_key=notice_key,
            origin=origin,
            traceparent=traceparent,
        )
        return accept(self.database, submission).job_id

    def status(self, job_id: str) -> JobStatus:
        return get_job(self.database, "default", job_id).status

    def scored_items(self, job_id: str) -> int:
        return get_job(self.database, "default", job_id).scored_items

    def wait_for(self, job_id: str, status: JobStatus = JobStatus.SUCCEEDED) -> None:
        wait_until(lambda: self.status(job_id) is status, f"{job_id} is {status}")


class Worker:
    """A scoring loop in a thread, with its engine and its bell in the hands of a test."""

    def __init__(
        self,
        store: Store,
        timing: LoopTiming = EAGER,
        engine: MadeUpEngine | None = None,
        provenance: Provenance | None = None,
        tracer: Tracer | None = None,
        claims_ahead: bool = False,
    ) -> None:
        self.engine = engine or MadeUpEngine()
        self.bell = RecordingBell()
        self.stuck = threading.Event()
        self.watchdog = Watchdog(30.0, self.stuck.set)
        self.failure: BaseException | None = None
        self.loop = ScoringLoop(
            store.database,
            self.bell,
            self.engine,
            self.watchdog,
            timing,
            worker_id="worker",
            card=CARD,
            provenance=provenance,
            tracer=tracer,
            claims_ahead=claims_ahead,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run()
        except Exception as error:
            self.failure = error

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        self.loop.stop()
        self.engine.go_on()
        self._thread.join(30)
        self.watchdog.close()
        assert self.ended(), "the loop did not stop"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:  # noqa: F811 (the fixture)
    """A store, with the shorthands."""
    store = Store(store_url)
    yield store
    store.database.close()


@pytest.fixture
def start_worker() -> Iterator[Callable[..., Worker]]:
    """Start a worker on a store. It is stopped at the end of the test."""
    workers: list[Worker] = []

    def start(
        store: Store, timing: LoopTiming = EAGER, engine: MadeUpEngine | None = None, *, claims_ahead: bool = False
    ) -> Worker:
        workers.append(Worker(store, timing, engine, claims_ahead=claims_ahead))
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop()
