"""Jobs to submit, and scores that tell which row they belong to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from checkpoints.card import ModelCard
from jobs.queue.accept import accept
from jobs.queue.claim import claim
from jobs.queue.finish import finish
from jobs.store.database import Database
from jobs.store.records import Claim, Finished, Submission
from scoring.layout import ChunkWork, LabelScores, Rows, Scored

Result = TypeVar("Result")

MODEL = "tiny"
CARD = ModelCard(MODEL, context_length=4096, vocabulary=50_000, tokenizer_fingerprint="f" * 64)
"""What the worker serves that :func:`take` claims for: it can score every :func:`submission`."""
LABELS = (7, 9)


def submission(
    chunks: int = 1, rows: int = 1, row_tokens: int = 4, prefix: Sequence[int] = (1, 2, 3), **given: Any
) -> Submission:
    """A job of ``chunks`` x ``rows`` items. Each row begins with its item's index, so that its score can tell it."""
    prefix_ids = np.array(prefix, np.int32)
    parts = [
        (
            first,
            Rows.pack([[first + n] * row_tokens for n in range(rows)], [len(prefix_ids)] * rows),
        )
        for first in range(0, chunks * rows, rows)
    ]
    values: dict[str, Any] = {
        "model": MODEL,
        "tokenizer_fingerprint": CARD.tokenizer_fingerprint,
        "prefix": prefix_ids,
        "chunks": parts,
        "label_token_ids": LABELS,
        "prompt_tokens": sum(int(part.sequence_lengths.sum()) for _, part in parts),
        "total_items": chunks * rows,
    }
    return Submission(**values | given)


def submit(store: Database, **given: Any) -> str:
    """Accept a job; returns its id."""
    return accept(store, submission(**given)).job_id


def take(store: Database, budget: int = 1_000_000, **given: Any) -> Claim:
    """Claim, and insist on getting something."""
    claimed = claim(store, "worker", CARD, budget, **given)
    assert claimed is not None
    return claimed


def score(work: ChunkWork) -> Scored:
    """Made-up scores: the logit of label m of item i is i + m/4, its log-probability is the negative."""
    first = np.array([work.rows.row(n)[0] for n in range(len(work.rows))], np.float32)
    logits = (first[:, None] + np.arange(len(work.label_token_ids)) / 4).astype(np.float32)
    return Scored(work.id, LabelScores(logits, -logits), cached_tokens=len(work.rows))


def scored(claimed: Claim) -> list[Scored]:
    """Everything of a claim, scored."""
    return [score(chunk) for group in claimed.groups for chunk in group.chunks]


def finish_all(store: Database, claimed: Claim) -> Finished:
    """Score and commit a claim."""
    return finish(store, claimed.batch_id, scored(claimed))


def at_once(threads: int, action: Callable[[int], Result]) -> list[Result]:
    """Run an action in so many threads, let go together. Raises the first error any of them met."""
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
