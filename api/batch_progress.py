"""What streams show of batches: progress and ends, read for all streams together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from api.answers.batches import show_batch, show_counts
from api.answers.presentation import encode
from jobs.file_batches.reading import BatchProgress, batches_of, progress_of_batches
from jobs.store.database import Database


@dataclass(frozen=True, slots=True)
class BatchState:
    """A batch as streams show it."""

    progress: BatchProgress
    shown: bytes  # the progress, encoded
    end: bytes | None  # the batch object, encoded, once the batch has ended

    @property
    def tenant(self) -> str:
        return self.progress.tenant

    @property
    def is_final(self) -> bool:
        return self.end is not None


def read_batch_states(db: Database, batch_ids: Collection[str]) -> dict[str, BatchState]:
    """Return the states of batches, whichever tenants own them. One query, and one more if some of them have ended."""
    found = progress_of_batches(db, batch_ids)
    ended = [batch_id for batch_id, one in found.items() if one.status.ended]
    records = batches_of(db, ended) if ended else {}
    # A batch that is removed between the two counts as missing.
    return {
        batch_id: BatchState(one, _shown(one), encode(show_batch(records[batch_id])) if one.status.ended else None)
        for batch_id, one in found.items()
        if batch_id in records or not one.status.ended
    }


def _shown(progress: BatchProgress) -> bytes:
    return encode(
        {
            "id": progress.id,
            "object": "batch.progress",
            "status": str(progress.status),
            "request_counts": show_counts(progress),
        }
    )
