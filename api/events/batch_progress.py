"""What streams show of batches: progress and ends, read for all streams together."""

from __future__ import annotations

from collections.abc import Collection

from api.answers.batches import show_batch, show_counts
from api.events.shown_state import ShownState, shown_states
from jobs.file_batches.reading import BatchProgress, batches_of, progress_of_batches
from jobs.store.database import Database

BatchState = ShownState[BatchProgress]


def read_batch_states(db: Database, batch_ids: Collection[str]) -> dict[str, BatchState]:
    """Return the states of batches, whichever tenants own them. One query, and one more if some of them have ended."""
    found = progress_of_batches(db, batch_ids)
    return shown_states(found, lambda ended: batches_of(db, ended), _show_progress, show_batch)


def _show_progress(progress: BatchProgress) -> dict[str, object]:
    return {
        "id": progress.id,
        "object": "batch.progress",
        "status": str(progress.status),
        "request_counts": show_counts(progress),
    }
