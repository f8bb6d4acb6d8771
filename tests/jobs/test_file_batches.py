"""Steps of batches of files on the store: each is taken once, however many processes take it at the same time."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select, update

from jobs.file_batches import writing
from jobs.file_batches.claiming import claim_batch, read_again, release_batch
from jobs.file_batches.creating import NewBatch, cancel_batch, create_batch
from jobs.file_batches.feeding import NewLine, cancel_jobs, feed, start_batch
from jobs.file_batches.reading import BatchRecord
from jobs.file_batches.removal import sweep_batches
from jobs.file_batches.tables import BatchStatus, batch_lines, file_batches
from jobs.file_batches.writing import Written, end_batch, ended_lines, finalize_batch, is_written, write_lines
from jobs.files.reading import get_file, read_bytes
from jobs.files.receiving import ReceivedFile, accept_file, begin_file, stage_file
from jobs.files.tables import Purpose
from jobs.queue.claims.claim import claim
from jobs.queue.finish import finish
from jobs.store.database import Database
from jobs.store.records import JobStatus, Origin
from jobs.store.tables import jobs
from jobs.tenancy.tenants import DEFAULT_TENANT
from scoring.labels.item_labels import ItemLabels
from scoring.layout import Continuations, LabelScores, ScoredChunk
from scoring.options import Normalization, ScoreOptions, Scoring
from tests.jobs.conftest import HandClock
from tests.jobs.interleaving import once_after
from tests.jobs.work import CARD, MODEL, at_once, finish_all, somebody_waits, submission
from tests.services import wait_until

LINE = b"x\n"
MAX_FILES = 10


def new_batch(store: Database, lines: int = 10, tenant: str = DEFAULT_TENANT) -> BatchRecord:
    """Return a batch of a file with so many lines."""
    file = begin_file(store, tenant, MAX_FILES, None)
    assert isinstance(file, ReceivedFile)
    stage_file(store, file, LINE * lines, lines)
    accept_file(store, file, purpose=Purpose.BATCH, filename="a", expires_in=1e6, body_hash="h")
    wanted = NewBatch(tenant, MODEL, "/v1/score", file.id, "1h", 3_600.0, {}, None, None)
    batch, is_replayed = create_batch(store, wanted, 10)
    assert not is_replayed
    start_batch(store, batch)
    return again(store, batch)


def again(store: Database, batch: BatchRecord) -> BatchRecord:
    found = read_again(store, batch.id)
    assert found is not None
    return found


def step(store: Database, batch: BatchRecord, lines: int = 2, **given: Any) -> Any:
    """Feed the next lines of a batch."""
    number = batch.read_lines
    lines = min(lines, (batch.input_bytes - batch.read_bytes) // len(LINE))
    fed = [
        NewLine(n, (n + 1) * len(LINE), f"r{n}", submission(prefix=(n % 3,), origin=Origin.LINE, tenant=batch.tenant))
        for n in range(number, number + lines)
    ]
    return feed(
        store,
        batch,
        fed,
        read_bytes=batch.read_bytes + lines * len(LINE),
        read_lines=number + lines,
        refuse_repeated=lambda line: b"repeated %d\n" % line.number,
        **given,
    )


def write(store: Database, batch: BatchRecord) -> bool:
    """Write the lines of a batch that can be written. Returns whether this did."""
    lines, _ = ended_lines(store, batch)
    if not lines:
        return False
    output = b"".join(b"%d\n" % line.number for line in lines)
    return write_lines(store, batch, lines[-1].number + 1, Written(output, b"", len(lines), 0, 0, 0, is_late=False))


def rows(store: Database, table: Any) -> int:
    with store.read() as tx:
        return int(tx.scalar(select(func.count()).select_from(table)) or 0)


def test_lines_that_two_processes_have_read_become_jobs_once(store: Database) -> None:
    batch = new_batch(store)
    fed = at_once(4, lambda _: step(store, batch))
    assert sorted(len(one.submissions) for one in fed) == [0, 0, 0, 2]
    assert (rows(store, jobs), rows(store, batch_lines)) == (2, 2)
    assert (again(store, batch).read_lines, again(store, batch).read_bytes) == (2, 4)
    assert step(store, batch).submissions == ()


def test_results_that_two_processes_have_read_are_written_once(store: Database) -> None:
    batch = new_batch(store)
    step(store, batch, 4)
    while (claimed := claim(store, "worker", CARD, 1_000_000)) is not None:
        finish_all(store, claimed)
    batch = again(store, batch)
    assert sorted(at_once(4, lambda _: write(store, batch))) == [False, False, False, True]
    batch = again(store, batch)
    assert (batch.written_lines, batch.completed_lines) == (4, 4)
    assert batch.output_file_id is not None
    assert read_bytes(store, batch.output_file_id, 0, 100) == b"0\n1\n2\n3\n"


def test_a_result_waits_for_those_of_the_lines_before_it(store: Database) -> None:
    batch = new_batch(store)
    step(store, batch, 3)
    with store.write() as tx:
        second = tx.scalar(select(batch_lines.c.job_id).where(batch_lines.c.number == 1))
        tx.execute(update(jobs).where(jobs.c.id == second).values(status=JobStatus.FAILED.value, finished_at=1.0))
    assert ended_lines(store, again(store, batch)) == ([], False)


def test_a_cancelled_batch_takes_no_further_lines(store: Database) -> None:
    batch = new_batch(store)
    step(store, batch)
    batch = again(store, batch)
    cancel_batch(store, DEFAULT_TENANT, batch.id)
    assert step(store, batch).submissions == ()
    batch = again(store, batch)
    assert batch.status is BatchStatus.CANCELLING
    assert len(cancel_jobs(store, batch)) == 2
    assert cancel_jobs(store, batch) == []


def test_who_has_not_heard_of_a_cancellation_writes_none_of_its_lines(store: Database) -> None:
    """It would take the jobs for ones that somebody has cancelled one by one."""
    batch = new_batch(store)
    step(store, batch)
    stale = again(store, batch)
    cancel_batch(store, DEFAULT_TENANT, batch.id)
    cancel_jobs(store, again(store, batch))
    assert len(ended_lines(store, stale)[0]) == 2
    assert not write(store, stale)
    assert write(store, again(store, batch))


def test_a_custom_id_is_taken_once_in_a_file(store: Database) -> None:
    batch = new_batch(store)
    step(store, batch)
    batch = again(store, batch)
    same = [
        NewLine(n, 2 * n + 2, name, submission(origin=Origin.LINE)) for n, name in [(2, "r1"), (3, "new"), (4, "new")]
    ]
    feed(
        store,
        batch,
        same,
        read_bytes=10,
        read_lines=5,
        refuse_repeated=lambda line: b"repeated %d\n" % line.number,
    )
    with store.read() as tx:
        found = tx.execute(
            select(batch_lines.c.number, batch_lines.c.custom_id, batch_lines.c.refusal).order_by(batch_lines.c.number)
        ).all()
    assert [tuple(row) for row in found] == [
        (0, "r0", None),
        (1, "r1", None),
        (2, None, b"repeated 2\n"),
        (3, "new", None),
        (4, None, b"repeated 4\n"),
    ]
    other = new_batch(store)
    step(store, other)
    assert rows(store, batch_lines) == 7


def test_one_process_works_on_a_batch_until_it_is_released_or_falls_silent(
    timed_store: Database, clock: HandClock
) -> None:
    first, second = new_batch(timed_store), new_batch(timed_store)
    taken = [claim_batch(timed_store, [MODEL], 60.0) for _ in range(3)]
    assert [None if one is None else one.id for one in taken] == [first.id, second.id, None]
    release_batch(timed_store, second.id, 5.0)
    assert claim_batch(timed_store, [MODEL], 60.0) is None
    clock.turn(5.0)
    third = claim_batch(timed_store, [MODEL], 60.0)
    assert third is not None
    assert third.id == second.id
    clock.turn(55.0)
    assert (silent := claim_batch(timed_store, [MODEL], 60.0)) is not None
    assert silent.id == first.id


def test_tenants_take_turns_however_many_batches_each_has(timed_store: Database, clock: HandClock) -> None:
    many = [new_batch(timed_store, tenant="many") for _ in range(3)]
    one = new_batch(timed_store, tenant="one")
    assert claim_batch(timed_store, [MODEL], 60.0, but_of={"many", "one"}) is None
    served = []
    for turn in range(8):
        clock.turn(1.0)
        claimed = claim_batch(timed_store, [MODEL], 60.0)
        assert claimed is not None
        served.append(claimed.id)
        if turn == 4:
            end_batch(timed_store, again(timed_store, claimed))
        else:
            release_batch(timed_store, claimed.id, 0.0)
    order = [many[0], one, many[1], one, many[2], one, many[0], one]
    assert served == [batch.id for batch in order]
    release_batch(timed_store, one.id, 60.0)
    clock.turn(1.0)
    assert (others := claim_batch(timed_store, [MODEL], 60.0)) is not None
    assert others.tenant == "many", "a tenant whose batch waits holds up nobody"


@pytest.mark.parametrize("cancelled_when", ["it waits", "it is worked on"])
def test_a_cancellation_begins_at_once(timed_store: Database, clock: HandClock, cancelled_when: str) -> None:
    batch = new_batch(timed_store)
    assert claim_batch(timed_store, [MODEL], 60.0) is not None
    clock.turn(1.0)
    if cancelled_when == "it is worked on":
        cancel_batch(timed_store, DEFAULT_TENANT, batch.id)
    release_batch(timed_store, batch.id, 10.0)
    if cancelled_when == "it waits":
        cancel_batch(timed_store, DEFAULT_TENANT, batch.id)
    assert claim_batch(timed_store, [MODEL], 60.0) is not None


def test_a_batch_of_another_model_is_left_to_its_processes_until_it_expires(
    timed_store: Database, clock: HandClock
) -> None:
    batch = new_batch(timed_store)
    assert claim_batch(timed_store, ["another"], 60.0) is None
    clock.turn(3_600.0)
    late = claim_batch(timed_store, ["another"], 60.0)
    assert late is not None
    assert late.id == batch.id


def test_a_batch_that_waits_for_scores_is_left_alone(store: Database) -> None:
    batch = new_batch(store, 2)
    step(store, batch)
    assert claim_batch(store, [MODEL], 0.0) is None
    claimed = claim(store, "worker", CARD, 1_000_000)
    assert claimed is not None
    finish_all(store, claimed)
    assert claim_batch(store, [MODEL], 0.0) is not None


def test_the_results_of_a_line_are_kept_until_its_batch_had_time_to_write_them(
    timed_store: Database, clock: HandClock
) -> None:
    batch = new_batch(timed_store, 2)
    step(timed_store, batch)
    claimed = claim(timed_store, "worker", CARD, 1_000_000)
    assert claimed is not None
    finish_all(timed_store, claimed)
    with timed_store.read() as tx:
        kept = [row.remove_at - clock.now for row in tx.execute(select(jobs.c.remove_at))]
    assert min(kept) >= timed_store.settings.retention_seconds + 3_599


def test_threads_that_race_for_every_step_write_each_line_once(store: Database) -> None:
    batch = new_batch(store, 60)
    turns = count()
    done = threading.Event()

    def work(_: int) -> None:
        while not done.is_set():
            now = again(store, batch)
            if next(turns) % 3 == 0 and (claimed := claim(store, "worker", CARD, 20)) is not None:
                finish_all(store, claimed)
            if not now.is_read:
                step(store, now, 5)
            write(store, now)
            now = again(store, batch)
            if is_written(store, now):
                finalize_batch(store, now)
                end_batch(store, again(store, now))
            if again(store, batch).status.ended:
                done.set()

    at_once(4, work)
    ended = again(store, batch)
    assert (ended.status, ended.completed_lines, rows(store, jobs)) == (BatchStatus.COMPLETED, 60, 60)
    assert ended.output_file_id is not None
    assert read_bytes(store, ended.output_file_id, 0, 1_000).split() == [b"%d" % n for n in range(60)]
    assert rows(store, file_batches) == 1


def test_the_lines_that_are_written_together_have_a_bounded_number_of_scores(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an item names the same label again and again."""
    monkeypatch.setattr(writing, "VALUES_PER_STEP", 100)
    batch = new_batch(store, 4)
    label_token_ids, item_labels = ItemLabels.collect([[7] * 40])
    job = submission(label_token_ids=label_token_ids, item_labels=item_labels, origin=Origin.LINE)
    lines = [NewLine(n, (n + 1) * len(LINE), f"r{n}", job) for n in range(4)]
    feed(store, batch, lines, read_bytes=batch.input_bytes, read_lines=4, refuse_repeated=lambda line: b"")
    while (claimed := claim(store, "worker", CARD, 1_000_000)) is not None:
        finish_all(store, claimed)
    chosen, may_be_more = ended_lines(store, again(store, batch))
    assert ([line.number for line in chosen], may_be_more) == ([0, 1], True)


def test_the_lines_that_are_written_together_have_a_bounded_number_of_targets(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of labels of several tokens, if an answer needs the score of each token."""
    monkeypatch.setattr(writing, "VALUES_PER_STEP", 100)
    for normalization, written in ((Normalization.TOKENS, [0, 1]), (Normalization.NONE, [0, 1, 2, 3])):
        batch = new_batch(store, 4)
        options = ScoreOptions(scoring=Scoring.SEQUENCE, label_normalization=normalization)
        label = Continuations.pack([[7] * 40], [4])
        job = replace(submission(), label_token_ids=(0,), options=options, origin=Origin.LINE, prompt_tokens=47)
        job = replace(job, chunks=[replace(chunk, continuations=label) for chunk in job.chunks])
        lines = [NewLine(n, (n + 1) * len(LINE), f"r{n}", job) for n in range(4)]
        feed(store, batch, lines, read_bytes=batch.input_bytes, read_lines=4, refuse_repeated=lambda line: b"")
        while (claimed := claim(store, "worker", CARD, 1_000_000)) is not None:
            targets: dict[str, Any] = {"token_logprobs": np.zeros(40, np.float32), "greedy": np.zeros(1, np.bool_)}
            one = np.zeros((1, 1), np.float32)
            found = [
                ScoredChunk(chunk.id, LabelScores(one, one), 0, **(targets if chunk.keep_targets else {}))
                for group in claimed.groups
                for chunk in group.chunks
            ]
            finish(store, claimed.batch_id, found)
        chosen, may_be_more = ended_lines(store, again(store, batch))
        assert ([line.number for line in chosen], may_be_more) == (written, len(written) < 4)


def test_the_file_of_a_batch_that_is_being_created_is_not_removed_with_an_earlier_batch(
    postgres_store: Database,
) -> None:
    earlier = new_batch(postgres_store)
    with postgres_store.write() as tx:
        tx.execute(update(file_batches).values(status=BatchStatus.COMPLETED.value, remove_at=1.0))
    sweep = threading.Thread(target=sweep_batches, args=(postgres_store,))

    def begin_to_sweep() -> None:
        sweep.start()
        wait_until(lambda: somebody_waits(postgres_store), "the sweep to wait for the file", 20)

    once_after(postgres_store, "INSERT INTO file_batches", begin_to_sweep)
    wanted = NewBatch(DEFAULT_TENANT, MODEL, "/v1/score", earlier.input_file_id, "1h", 3_600.0, {}, None, None)
    batch, _ = create_batch(postgres_store, wanted, 10)
    sweep.join()
    assert read_again(postgres_store, earlier.id) is None
    assert get_file(postgres_store, DEFAULT_TENANT, batch.input_file_id).bytes == batch.input_bytes
