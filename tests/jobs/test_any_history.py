"""Random histories of submissions, claims, losses and ends, compared with a model of the expected states."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import jobs.queue.claims.claim_choice
from jobs.invariants import CHECKS, everything, find_violations, run
from jobs.queue.accept import accept, accept_group
from jobs.queue.claims.claim import claim
from jobs.queue.ending import cancel, delete
from jobs.queue.finish import finish
from jobs.queue.lease import abandon, release, renew
from jobs.queue.read import get_job, read_scores, statuses
from jobs.queue.sweep import sweep
from jobs.queue.upload import Upload, accept_upload, begin_upload, stage
from jobs.store.database import Database
from jobs.store.records import Accepted, Claim, JobStatus
from jobs.store.webhook_events import Webhook
from scoring.error_codes import RequestError
from scoring.layout import ChunkWork
from settings.store import StoreSettings
from tests.jobs.conftest import HandClock, use_clock
from tests.jobs.work import CARD, score, submission, waiting_chunks
from tests.services import PostgresServer

LEASE = 60.0
SILENCE = 45.0
"""After which an upload counts as abandoned."""
MAX_ATTEMPTS = 2
HISTORIES = int(os.environ.get("HISTORIES", "12"))
"""That are made up; ``make faults`` asks for many more."""
pytestmark = pytest.mark.timeout(300 + 2 * HISTORIES)
WEBHOOK = Webhook("https://hooks.example.com/", "hooks.example.com")
"""Of every job: an invariant says that each end is told."""
OVERDUE = {"lease_long_over", "deadline_long_over"}
"""Rules that only a sweep keeps."""


@dataclass
class Job:
    """What the model knows of a job. Its prefix is its number, by which a claim's groups are told apart."""

    id: str
    chunks: int
    deadline: float | None
    status: JobStatus = JobStatus.QUEUED
    done: set[int] = field(default_factory=set)
    failures: dict[int, int] = field(default_factory=dict)
    upload: Upload | None = None
    heard_at: float = 0.0
    gone: bool = False

    @property
    def ended(self) -> bool:
        return self.status.ended


@dataclass
class Batch:
    claim: Claim
    until: float
    held: list[tuple[Job, int, ChunkWork]]
    lost: bool = False

    def open(self) -> list[tuple[Job, int, ChunkWork]]:
        """What a finish would count."""
        return [part for part in self.held if not (self.lost or part[0].ended or part[1] in part[0].done)]


class History(RuleBasedStateMachine):
    """One store, with a clock that the rules advance."""

    new_store: Callable[[], str]

    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock()
        given = StoreSettings(
            database_url=type(self).new_store(),
            lease_seconds=LEASE,
            max_attempts=MAX_ATTEMPTS,
            upload_timeout_seconds=SILENCE,
        )
        self.store = Database.open(given)
        use_clock(self.store, self.clock)
        self.jobs: list[Job] = []
        self.taken: list[Batch] = []

    batches = Bundle("batches")

    @rule(
        sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4),
        expires_in=st.sampled_from([None, None, 100.0]),
        bad=st.sampled_from([False, False, True]),
    )
    def submit(self, sizes: list[int], expires_in: float | None, bad: bool) -> None:
        """Submit a group. With a job in it that the database refuses, all others are submitted one by one."""
        first = len(self.jobs)
        group = [
            submission(chunks=chunks, prefix=(first + place,), expires_in=expires_in, webhook=WEBHOOK)
            for place, chunks in enumerate(sizes)
        ]
        outcomes = accept_group(self.store, [*group, submission(model=None)] if bad else group)[: len(group)]
        deadline = None if expires_in is None else self.clock.now + expires_in
        for shape, chunks, outcome in zip(group, sizes, outcomes, strict=True):
            assert (outcome is None) == bad
            accepted = accept(self.store, shape) if outcome is None else outcome
            assert isinstance(accepted, Accepted)
            status = JobStatus.QUEUED if chunks else JobStatus.SUCCEEDED
            self.jobs.append(Job(accepted.job_id, chunks, deadline, status))

    @rule(expires_in=st.sampled_from([None, 40.0]))
    def begin_upload(self, expires_in: float | None) -> None:
        wanted = submission(chunks=0, prefix=(len(self.jobs),), expires_in=expires_in, webhook=WEBHOOK)
        upload = begin_upload(self.store, wanted, None)
        assert isinstance(upload, Upload)
        now = self.clock.now
        deadline = None if expires_in is None else now + expires_in
        self.jobs.append(Job(upload.job_id, 0, deadline, JobStatus.RECEIVING, upload=upload, heard_at=now))

    @precondition(lambda self: any(job.upload for job in self.jobs))
    @rule(chunks=st.integers(0, 3), whole=st.booleans(), data=st.data())
    def go_on_with_upload(self, chunks: int, whole: bool, data: Any) -> None:
        job = data.draw(st.sampled_from([job for job in self.jobs if job.upload]))
        parts = submission(chunks=job.chunks + chunks, prefix=(self.jobs.index(job),)).chunks[job.chunks :]
        if job.status is not JobStatus.RECEIVING:
            with pytest.raises(RequestError):
                stage(self.store, job.upload, parts)
            return
        stage(self.store, job.upload, parts)
        job.chunks += chunks
        job.heard_at = self.clock.now
        if whole:
            accept_upload(self.store, job.upload, "hash")
            job.status = JobStatus.QUEUED if job.chunks else JobStatus.SUCCEEDED

    @rule(target=batches, budget=st.sampled_from([1, 20, 1_000]))
    def claim(self, budget: int) -> Batch | None:
        return self.take(budget)

    def take(self, budget: int) -> Batch | None:
        claimed = claim(self.store, "worker", CARD, budget)
        waiting = self.waiting()
        assert (claimed is None) == (not waiting)
        if claimed is None:
            return None
        held = []
        for group in claimed.groups:
            job = self.jobs[int(group.prefix[0])]
            for work in group.chunks:
                number = int(work.rows.tokens[0])
                assert (job, number) in waiting
                held.append((job, number, work))
            job.status = JobStatus.RUNNING
        batch = Batch(claimed, self.clock.now + LEASE, held)
        self.taken.append(batch)
        return batch

    def waiting(self) -> list[tuple[Job, int]]:
        held = {(job.id, number) for batch in self.taken for job, number, _ in batch.open()}
        return [
            (job, number)
            for job in self.jobs
            if not job.ended and job.status is not JobStatus.RECEIVING
            for number in range(job.chunks)
            if number not in job.done and (job.id, number) not in held
        ]

    def there(self) -> list[Job]:
        """The jobs that readers see."""
        return [job for job in self.jobs if not job.gone]

    @rule(batch=batches, data=st.data())
    def finish(self, batch: Batch | None, data: Any) -> None:
        if batch is None:
            return
        chosen = [part for part in batch.held if data.draw(st.booleans())]
        counted = [part for part in chosen if part in batch.open()]
        finished = finish(self.store, batch.claim.batch_id, [score(work) for _, _, work in chosen])
        assert finished.fenced == len(chosen) - len(counted)
        ends = []
        for job, number, _ in counted:
            job.done.add(number)
            if len(job.done) == job.chunks:
                job.status = JobStatus.SUCCEEDED
                ends.append(job.id)
        assert sorted(finished.job_ids) == sorted(ends)

    @precondition(lambda self: any(batch.lost for batch in self.taken))
    @rule(data=st.data())
    def finish_too_late(self, data: Any) -> None:
        batch = data.draw(st.sampled_from([batch for batch in self.taken if batch.lost]))
        work = [score(work) for _, _, work in batch.held]
        assert finish(self.store, batch.claim.batch_id, work).fenced == len(work)

    @rule(batch=batches)
    def renew(self, batch: Batch | None) -> None:
        if batch is not None:
            # A batch of which nothing is left may be forgotten at any time.
            if renew(self.store, batch.claim.batch_id):
                assert not batch.lost
                batch.until = self.clock.now + LEASE
            else:
                assert not batch.open()

    @rule(batch=batches)
    def release(self, batch: Batch | None) -> None:
        if batch is not None:
            assert release(self.store, batch.claim.batch_id).waiting == len(batch.open())
            batch.lost = True

    @rule(batch=batches)
    def abandon(self, batch: Batch | None) -> None:
        if batch is not None:
            failed = abandon(self.store, batch.claim.batch_id, "the engine failed").job_ids
            assert list(failed) == self.lose(batch)

    def lose(self, batch: Batch) -> list[str]:
        """Give a batch up in the model; the ids of jobs that fail with it."""
        unfinished = batch.open()
        batch.lost = True
        if len(unfinished) != 1:
            return []
        job, number, _ = unfinished[0]
        job.failures[number] = job.failures.get(number, 0) + 1
        if job.failures[number] < MAX_ATTEMPTS:
            return []
        job.status = JobStatus.FAILED
        return [job.id]

    @rule(seconds=st.sampled_from([1.0, 30.0, 61.0]))
    def turn_the_clock(self, seconds: float) -> None:
        self.clock.turn(seconds)

    @rule(target=batches)
    def replace_all_workers(self) -> Batch | None:
        self.clock.turn(LEASE + 1)
        self.sweep()
        return self.take(1_000)

    @rule()
    def sweep(self) -> None:
        ends = []
        for batch in self.taken:
            if batch.until < self.clock.now:
                ends += self.lose(batch)
        for job in self.jobs:
            if not job.ended and job.deadline is not None and job.deadline <= self.clock.now:
                job.status = JobStatus.EXPIRED
                ends.append(job.id)
            if job.status is JobStatus.RECEIVING and job.heard_at <= self.clock.now - SILENCE:
                job.status, job.gone = JobStatus.CANCELLED, True
                ends.append(job.id)
        assert sorted(sweep(self.store).job_ids) == sorted(ends)
        assert find_violations(self.store, full=False) == []
        self.the_rules_hold(OVERDUE)

    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        if there := self.there():
            job = data.draw(st.sampled_from(there))
            if not job.ended:
                job.status = JobStatus.CANCELLED
            assert cancel(self.store, "default", job.id).status is job.status

    @invariant()
    def the_store_agrees_with_the_model(self) -> None:
        found = statuses(self.store, [job.id for job in self.jobs])
        assert found == {job.id: job.status for job in self.there()}
        assert waiting_chunks(self.store) == len(self.waiting())
        for job in self.there():
            assert get_job(self.store, "default", job.id).scored_items == len(job.done)

    @rule()
    def look_for_what_must_not_be(self) -> None:
        """Not after every step: it takes longer than all steps together."""
        self.the_rules_hold({check.name for check in CHECKS} - OVERDUE)

    def the_rules_hold(self, names: Collection[str]) -> None:
        extent = everything()
        broken = [run(self.store, check, extent) for check in CHECKS if check.name in names]
        assert not any(broken), broken

    def teardown(self) -> None:
        """Whatever happened: what is left can be finished, scores are each item's own, and all of it can be deleted."""
        self.clock.turn(LEASE + 1)
        self.sweep()
        while (batch := self.take(1_000)) is not None:
            finish(self.store, batch.claim.batch_id, [score(work) for _, _, work in batch.held])
            for job, number, _ in batch.held:
                job.done.add(number)
                job.status = JobStatus.SUCCEEDED if len(job.done) == job.chunks else job.status
        self.look_for_what_must_not_be()
        for job in self.there():
            page = read_scores(self.store, "default", job.id, 0, 1_000)
            assert job.ended
            assert page.job.status is job.status
            assert page.indices.tolist() == page.scores.logits[:, 0].tolist() == sorted(job.done)
            delete(self.store, "default", job.id)
        self.store.close()


def test_any_history_ends_as_the_model_says(
    sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def new_store() -> str:
        path = tmp_path / f"{uuid4().hex}.db"
        shutil.copy(sqlite_template, path)
        return f"sqlite:///{path}"

    monkeypatch.setattr(History, "new_store", new_store, raising=False)
    monkeypatch.setattr(jobs.queue.claims.claim_choice, "FEW_CHUNKS", 6)  # so that both short and long backlogs occur
    run_state_machine_as_test(History, settings=settings(max_examples=HISTORIES, stateful_step_count=30))


def test_any_history_ends_as_the_model_says_on_postgresql(
    postgres: PostgresServer, postgres_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer of them: each has a database made for it."""
    made: list[str] = []

    def new_store() -> str:
        made.append(postgres.create_database(postgres_template))
        return postgres.url(made[-1])

    monkeypatch.setattr(History, "new_store", new_store, raising=False)
    monkeypatch.setattr(jobs.queue.claims.claim_choice, "FEW_CHUNKS", 6)  # so that both short and long backlogs occur
    try:
        fewer = settings(max_examples=max(1, HISTORIES // 6), stateful_step_count=30)
        run_state_machine_as_test(History, settings=fewer)
    finally:
        for name in made:
            postgres.drop_database(name)
