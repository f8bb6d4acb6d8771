"""Jobs to submit, and made-up scores that identify their rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import func, select, text

from checkpoints.card import ModelCard
from jobs.queue.accept import Outcome, accept
from jobs.queue.claims.claim import claim
from jobs.queue.finish import finish
from jobs.store.database import Database
from jobs.store.records import Accepted, Claim, Finished, Idempotency, Submission
from jobs.store.tables import WAITING, chunks
from scoring.layout import ChunkWork, LabelScores, Rows, ScoredChunk
from scoring.work import chunk_of
from tests.packed_rows import own_tokens

Result = TypeVar("Result")

MODEL = "tiny"
CARD = ModelCard(MODEL, context_length=4096, vocabulary=50_000, tokenizer_fingerprint="f" * 64)
"""The model that :func:`take` claims for. It can score every :func:`submission`."""
LABELS = (7, 9)


def submission(
    chunks: int = 1, rows: int = 1, row_tokens: int = 4, prefix: Sequence[int] = (1, 2, 3), **given: Any
) -> Submission:
    """Return a job of ``chunks`` x ``rows`` items. Each row begins with its item index, so that its score shows it."""
    prefix_ids = np.array(prefix, np.int32)
    parts = [
        chunk_of(first, Rows.pack([[first + n] * row_tokens for n in range(rows)], [len(prefix_ids)] * rows))
        for first in range(0, chunks * rows, rows)
    ]
    values: dict[str, Any] = {
        "model": MODEL,
        "work_key": CARD.work_key,
        "prefix": prefix_ids,
        "chunks": parts,
        "label_token_ids": LABELS,
        "prompt_tokens": sum(int(part.rows.sequence_lengths.sum()) for part in parts),
        "total_items": chunks * rows,
    }
    return Submission(**values | given)


def submit(store: Database, **given: Any) -> str:
    """Accept a job. Return its id."""
    return accept(store, submission(**given)).job_id


def keyed(key: str, body_hash: str = "hash", **given: Any) -> Submission:
    """Return a job with an Idempotency-Key."""
    return submission(idempotency=Idempotency(key, body_hash), **given)


def accepted(outcome: Outcome) -> str:
    """Return the id of a job that was accepted now."""
    assert isinstance(outcome, Accepted)
    assert not outcome.replayed
    return outcome.job_id


def take(store: Database, budget: int = 1_000_000, **given: Any) -> Claim:
    """Claim, and assert that there was work."""
    claimed = claim(store, "worker", CARD, budget, **given)
    assert claimed is not None
    return claimed


def prefixes_of(claimed: Claim) -> list[list[int]]:
    """Return the prefix of each group of a claim."""
    return [group.prefix.tolist() for group in claimed.groups]


def waiting_chunks(store: Database) -> int:
    """Return how many chunks wait."""
    with store.read() as tx:
        return int(tx.scalar(select(func.count()).select_from(chunks).where(WAITING)))


def somebody_waits(store: Database) -> bool:
    """Return whether a session of this database of PostgreSQL waits for a lock."""
    query = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with store.read() as tx:
        return tx.scalar(text(query)) is not None


def score(work: ChunkWork) -> ScoredChunk:
    """Make up scores: the logit of label m of item i is i + m/4, its log-probability is the negative."""
    first = np.array([own[0] for own in own_tokens(work.rows)], np.float32)
    logits = (first[:, None] + np.arange(len(work.label_token_ids)) / 4).astype(np.float32)
    return ScoredChunk(work.id, LabelScores(logits, -logits), cached_tokens=len(work.rows))


def scored(claimed: Claim) -> list[ScoredChunk]:
    """Score all chunks of a claim."""
    return [claimed.whole(score(chunk)) for group in claimed.groups for chunk in group.chunks]


def finish_all(store: Database, claimed: Claim) -> Finished:
    """Score and commit a claim."""
    return finish(store, claimed.batch_id, scored(claimed), durable=claimed.durable)


def at_once(threads: int, action: Callable[[int], Result]) -> list[Result]:
    """Run an action in several threads that start together. Raise the first error of any of them."""
    gate = threading.Barrier(threads)
    results: list[Result] = []
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            gate.wait()
            results.append(action(number))
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]
    return results
