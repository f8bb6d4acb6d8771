"""A retention that is made shorter holds for what has ended before, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pytest
from sqlalchemy import select

from jobs.file_batches import removal
from jobs.file_batches.reading import BatchRecord
from jobs.file_batches.tables import file_batches
from jobs.file_batches.writing import end_batch, finalize_batch
from jobs.files.tables import files
from jobs.queue import ending
from jobs.queue.accept import accept
from jobs.queue.claims.claim import claim
from jobs.store.database import Database
from jobs.store.records import Origin
from jobs.store.tables import jobs
from jobs.store.webhook_events import Event, Webhook
from jobs.webhooks.tables import webhook_deliveries
from settings.store import StoreSettings
from tests.jobs.conftest import HandClock, use_clock
from tests.jobs.test_file_batches import again, new_batch, step, write
from tests.jobs.work import CARD, finish_all, keyed, submission

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
