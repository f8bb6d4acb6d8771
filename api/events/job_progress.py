"""What streams show of jobs: progress and ends, read for all streams together, and parts of their scores."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from api.answers.presentation import encode_page, show_job
from api.events.shown_state import ShownState, shown_states
from jobs.queue.read import Progress, get_job, jobs_of, most_items, progress_of, scores_of
from jobs.store.database import Database
from jobs.store.records import ScorePage

PART_ITEMS, PART_VALUES = 1_000, 2_048
"""The most items, and the most numbers unless one item alone has more, that one event holds: about 64 KB. A client that
does not read has one event waiting in memory."""

MAX_PARTS = 32
"""How many parts are kept for streams that come to them a little later."""

JobState = ShownState[Progress]


def read_states(db: Database, job_ids: Collection[str]) -> dict[str, JobState]:
    """Return the states of jobs, whichever tenants own them. One query, and one more if some of them have ended."""
    found = progress_of(db, job_ids)
    return shown_states(found, lambda ended: jobs_of(db, ended), _show_progress, show_job)


def _show_progress(progress: Progress) -> dict[str, object]:
    return {
        "id": progress.id,
        "object": "scoring.job.progress",
        "status": str(progress.status),
        "progress": {"total_items": progress.total_items, "scored_items": progress.scored_items},
    }


@dataclass(frozen=True, slots=True)
class ScorePart:
    """Scores of consecutive items."""

    data: bytes | None  # encoded; None if there are none
    next_item: int  # the item that the next part begins with
    is_last: bool  # whether nothing comes behind it for now


def read_part(db: Database, tenant: str, job_id: str, offset: int) -> ScorePart:
    """Return scores from an item on, in the order of the items.

    While a job runs, a part ends before the first item that is not scored, so that nothing is missed: that item comes
    with a later part. Of a job that has ended, such items are left out. Raises RequestError JOB_NOT_FOUND,
    StorageUnavailable.
    """
    job = get_job(db, tenant, job_id)
    labels = len(job.label_token_ids)
    if job.item_labels is not None:
        # An item may have the same label many times.
        labels = max(labels, int(job.item_labels.counts.max(initial=0)))
    limit = max(1, min(PART_ITEMS, PART_VALUES // (job.options.numbers_shown * max(1, labels))))
    whole = scores_of(db, job, offset, most_items(job, limit))
    page = _with_few_tokens(whole)
    if len(page.indices) < len(whole.indices):
        limit = int(page.indices[-1]) + 1 - offset
    if job.status.ended:
        next_item = min(offset + limit, job.total_items)
    else:
        page = _without_what_comes_behind_a_gap(page, offset)
        next_item = offset + len(page.indices)
    data = encode_page(page) if len(page.indices) else None
    return ScorePart(data, next_item, is_last=next_item < offset + limit or next_item == job.total_items)


def _without_what_comes_behind_a_gap(page: ScorePage, offset: int) -> ScorePage:
    expected = np.arange(offset, offset + len(page.indices))
    gaps = np.flatnonzero(page.indices != expected)
    return page.first(int(gaps[0])) if len(gaps) else page


def _with_few_tokens(page: ScorePage) -> ScorePage:
    """Return the first items of a page whose tokens, if they are shown, are few enough for a part; at least one."""
    shown = page.job.options.return_token_logprobs + page.job.options.return_tokens
    if not shown or page.continuations is None:
        return page
    values = shown * np.cumsum(page.continuations.lengths, dtype=np.int64)
    return page.first(max(1, int(np.searchsorted(values, PART_VALUES, side="right"))))
