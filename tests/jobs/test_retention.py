"""How long what has ended is kept: also if the retention is made shorter afterwards, or something has a key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import pytest
from sqlalchemy import select

from jobs.file_batches import removal
from jobs.file_batches.creating import NewBatch, create_batch
from jobs.file_batches.reading import BatchRecord, list_batches
from jobs.file_batches.removal import delete_batch
from jobs.file_batches.tables import file_batches
from jobs.file_batches.writing import end_batch, finalize_batch
from jobs.files.receiving import EarlierFile, ReceivedFile, accept_file, begin_file, stage_file
from jobs.files.tables import Purpose, files
from jobs.queue import ending
from jobs.queue.accept import accept
from jobs.queue.claims.claim import claim
from jobs.store.database import Database
from jobs.store.records import Idempotency, Origin
from jobs.store.tables import jobs
from jobs.store.webhook_events import Event, Webhook
from jobs.tenancy.tenants import DEFAULT_TENANT
from jobs.webhooks.tables import webhook_deliveries
from settings.store import StoreSettings
from tests.jobs.conftest import HandClock, use_clock
from tests.jobs.test_file_batches import again, new_batch, step, write
from tests.jobs.work import CARD, MODEL, finish_all, keyed, submission

DAY = 86_400.0
HOOK = Webhook("https://hooks.example/x", "hooks.example", (Event.SUCCEEDED,))


@dataclass
class Kept:
    """Until when things are kept."""

    store: Database

    def job(self, job_id: str) -> float:
        with self.store.read() as tx:
            return float(tx.scalar(select(jobs.c.remove_at).where(jobs.c.id == job_id)) or 0.0)

    def delivery(self, job_id: str) -> float:
        with self.store.read() as tx:
            query = select(webhook_deliveries.c.remove_at).where(webhook_deliveries.c.job_id == job_id)
            return float(tx.scalar(query) or 0.0)

    def batch(self, batch_id: str) -> tuple[float, float, float]:
        """Return the ends of a batch, of its output file and of its input file."""
        with self.store.read() as tx:
            batch = tx.execute(select(file_batches).where(file_batches.c.id == batch_id)).one()
            ends = {row.id: row.expires_at for row in tx.execute(select(files))}
            return batch.remove_at, ends[batch.output_file_id], ends[batch.input_file_id]


@contextmanager
def with_retention(url: str, clock: HandClock, days: float) -> Iterator[Database]:
    settings = StoreSettings(database_url=url, retention_seconds=days * DAY, file_retention_seconds=2 * days * DAY)
    with closing(Database.open(settings)) as store:
        use_clock(store, clock)
        yield store


def finish_everything(store: Database) -> None:
    while (claimed := claim(store, "worker", CARD, 1_000_000)) is not None:
        finish_all(store, claimed)


def ended_batch(store: Database) -> BatchRecord:
    batch = new_batch(store, lines=2)
    step(store, batch, 2)
    finish_everything(store)
    write(store, again(store, batch))
    finalize_batch(store, again(store, batch))
    ended = end_batch(store, again(store, batch))
    assert ended is not None
    return ended


def test_what_has_ended_is_removed_sooner_after_the_retention_became_shorter(
    store_url: str, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "SHORTENED_PER_STEP", 1)
    with with_retention(store_url, clock, days=7.0) as store:
        start = clock.now
        plain = accept(store, submission(webhook=HOOK)).job_id
        call = accept(store, submission(origin=Origin.CALL)).job_id
        remembered = accept(store, keyed("again")).job_id
        running = accept(store, submission(prefix=(9, 9, 9))).job_id
        claimed = claim(store, "worker", CARD, 1_000_000)
        assert claimed is not None
        finish_all(store, claimed)
        batch = ended_batch(store)
        kept = Kept(store)
        call_kept, key_kept = kept.job(call), kept.job(remembered)
        assert kept.job(plain) == kept.delivery(plain) == start + 7 * DAY
        assert (ending.shorten_retention(store), removal.shorten_retention(store)) == (0, (0, 0))
    clock.turn(10.0)
    with with_retention(store_url, clock, days=0.5) as store:
        kept = Kept(store)
        assert running
        assert ending.shorten_retention(store) >= 4
        assert removal.shorten_retention(store) == (1, 1)
        assert kept.job(plain) == kept.delivery(plain) == start + 0.5 * DAY
        assert kept.job(call) == call_kept, "calls have a retention of their own"
        assert kept.job(remembered) == start + DAY, "an Idempotency-Key is remembered for a day"
        assert key_kept == start + 7 * DAY
        assert kept.batch(batch.id) == (start + 0.5 * DAY, start + 0.5 * DAY, start + DAY)
        assert (ending.shorten_retention(store), removal.shorten_retention(store)) == (0, (0, 0))


def test_a_longer_retention_changes_nothing_for_what_has_ended(store_url: str, clock: HandClock) -> None:
    with with_retention(store_url, clock, days=1.0) as store:
        job = accept(store, submission()).job_id
        finish_everything(store)
        until = Kept(store).job(job)
    with with_retention(store_url, clock, days=30.0) as store:
        assert ending.shorten_retention(store) == 0
        assert Kept(store).job(job) == until


def a_batch_of(file_id: str) -> NewBatch:
    """Return a batch that is wanted with an Idempotency-Key."""
    key = Idempotency("key", "hash")
    return NewBatch(DEFAULT_TENANT, MODEL, "/v1/score", file_id, "1h", 3_600.0, {}, None, key)


def test_the_key_of_a_deleted_batch_is_free_before_its_rows_are_removed(store: Database) -> None:
    file_id = new_batch(store).input_file_id
    first, _ = create_batch(store, a_batch_of(file_id), 10)
    step(store, first)
    delete_batch(store, DEFAULT_TENANT, first.id, most_steps=0)
    again, is_replayed = create_batch(store, a_batch_of(file_id), 10)
    assert not is_replayed
    assert again.id != first.id


def test_a_batch_is_kept_at_least_until_its_key_expires(store_url: str, clock: HandClock) -> None:
    with with_retention(store_url, clock, days=0.1) as store:
        file_id = new_batch(store).input_file_id
        first, _ = create_batch(store, a_batch_of(file_id), 10)
        assert end_batch(store, first, "its file can't be read") is not None
        assert removal.shorten_retention(store)[0] == 0
        clock.turn(0.9 * DAY)
        removal.sweep_batches(store)
        assert create_batch(store, a_batch_of(file_id), 10)[0].id == first.id
        clock.turn(0.1 * DAY)
        removal.sweep_batches(store)
        assert first.id not in {batch.id for batch in list_batches(store, DEFAULT_TENANT, limit=10)}


def test_the_key_of_a_file_is_free_once_the_file_has_expired_though_a_batch_reads_it(
    timed_store: Database, clock: HandClock
) -> None:
    file = begin_file(timed_store, DEFAULT_TENANT, 10, "key")
    assert isinstance(file, ReceivedFile)
    stage_file(timed_store, file, b"{}\n", 1)
    accept_file(timed_store, file, purpose=Purpose.BATCH, filename="a", expires_in=60.0, body_hash="hash")
    create_batch(timed_store, replace(a_batch_of(file.id), idempotency=None), 10)
    clock.turn(59.0)
    assert begin_file(timed_store, DEFAULT_TENANT, 10, "key") == EarlierFile(file.id, "hash")
    clock.turn(1.0)
    assert isinstance(begin_file(timed_store, DEFAULT_TENANT, 10, "key"), ReceivedFile)
