"""Chunks with continuations: claimed whole, but not by an older worker, and read as they were scored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from jobs.queue.accept import accept
from jobs.queue.claims.claim import claim
from jobs.queue.finish import finish
from jobs.queue.read import get_job, read_scores
from jobs.queue.upload import Upload, accept_upload, begin_upload, release_chunks, stage
from jobs.store.database import Database
from jobs.store.records import Claim, JobStatus, Origin, Submission
from jobs.store.signed_result import verified_result
from jobs.store.tables import chunk_scores, chunks
from scoring.chunk import Chunk
from scoring.layout import Continuations, Head, LabelScores, Rows, ScoredChunk
from scoring.options import Normalization, ScoreOptions, Scoring
from scoring.work import chunk_of
from tests.jobs.work import CARD, submission, submit, take

KEY = b"k" * 16
LIKELIHOOD = ScoreOptions(scoring=Scoring.LIKELIHOOD, return_token_logprobs=True)
SEQUENCES = ScoreOptions(scoring=Scoring.SEQUENCE)


def of_likelihood(first: int) -> Chunk:
    """Return a chunk of two items: one of as many tokens as its index, and one without any."""
    rows = Rows.pack([[], []], [3, 3])
    return chunk_of(first, rows, Continuations.pack([[first] * first, []], [3, 3]))


def likelihood(items: int = 4, **given: Any) -> Submission:
    parts = [of_likelihood(first) for first in range(0, items, 2)]
    job = replace(submission(), chunks=parts, total_items=items, label_token_ids=(0,), options=LIKELIHOOD)
    return replace(job, **{"prompt_tokens": sum(part.prompt_tokens for part in parts)} | given)


def score(claimed: Claim) -> list[ScoredChunk]:
    """Make up scores: target t of an item has the log-probability minus t / 8, and items without targets are greedy."""
    found = []
    for group in claimed.groups:
        for chunk in group.chunks:
            assert chunk.continuations is not None
            logprobs = -(chunk.continuations.tokens / 8).astype(np.float32)
            ends = np.cumsum(chunk.continuations.lengths)
            sums = np.array([part.sum() for part in np.split(logprobs, ends)[: len(ends)]], np.float32)
            values = sums.reshape(len(chunk.rows), chunk.columns)
            targets = (
                {"token_logprobs": logprobs, "greedy": chunk.continuations.lengths == 0} if chunk.keep_targets else {}
            )
            found.append(ScoredChunk(chunk.id, LabelScores(values, values), cached_tokens=0, **targets))
    return found


def accepted(store: Database, job: Submission) -> str:
    return accept(store, job).job_id


def test_a_claim_has_what_was_accepted(store: Database) -> None:
    accepted(store, likelihood())
    [group] = take(store).groups
    assert [chunk.rows.to_bytes() for chunk in group.chunks] == [of_likelihood(n).rows.to_bytes() for n in (0, 2)]
    for chunk, first in zip(group.chunks, (0, 2), strict=True):
        wanted = of_likelihood(first).continuations
        assert wanted is not None
        assert chunk.continuations is not None
        assert chunk.continuations.to_bytes() == wanted.to_bytes()
        assert (chunk.label_token_ids, chunk.head, chunk.columns, chunk.keep_targets) == ((), Head.LOGPROBS, 1, True)


@pytest.mark.parametrize(
    ("options", "kept"),
    [(SEQUENCES, False), (replace(SEQUENCES, label_normalization=Normalization.TOKENS), True), (LIKELIHOOD, True)],
)
def test_scores_of_single_targets_are_kept_where_an_answer_needs_them(
    store: Database, options: ScoreOptions, kept: bool
) -> None:
    job_id = accepted(store, likelihood(options=options))
    claimed = take(store)
    finish(store, claimed.batch_id, score(claimed))
    page = read_scores(store, "default", job_id, 0, 4)
    with store.read() as tx:
        stored = tx.scalar(select(func.count(chunk_scores.c.targets)).select_from(chunk_scores))
    assert (stored, page.targets is not None, page.continuations is not None) == (2 if kept else 0, kept, kept)


def test_a_chunk_says_what_its_worker_must_serve(store: Database) -> None:
    chunk = chunk_of(0, Rows.pack([[5] * 7], [3]), Continuations.pack([[6], [9] * 20], [10, 10]))
    accepted(store, likelihood(2, chunks=[chunk], total_items=1, options=SEQUENCES, label_token_ids=(0, 1)))
    assert claim(store, "worker", replace(CARD, context_length=29), 10**6) is None
    assert claim(store, "worker", replace(CARD, vocabulary=9), 10**6) is None
    assert claim(store, "worker", replace(CARD, context_length=30, vocabulary=10), 10**6) is not None
    with store.read() as tx:
        assert tx.scalar(select(chunks.c.token_count)) == chunk.work


def test_a_worker_of_the_version_before_finds_such_chunks_too_long_and_no_others(store: Database) -> None:
    """It claims chunks whose longest sequence fits its context."""
    accepted(store, likelihood())
    submit(store)
    with store.read() as tx:
        fitting = select(chunks.c.job_id).where(chunks.c.longest_sequence <= CARD.context_length)
        assert len(tx.scalars(fitting).all()) == 1
        assert tx.scalar(select(func.count()).select_from(chunks)) == 3


def test_pages_have_the_targets_of_their_items(store: Database) -> None:
    job_id = accepted(store, likelihood(8))
    claimed = take(store)
    finish(store, claimed.batch_id, score(claimed))
    lengths = [n if n % 2 == 0 else 0 for n in range(8)]
    for offset, limit in ((0, 8), (0, 1), (3, 2), (2, 5), (7, 3)):
        page = read_scores(store, "default", job_id, offset, limit)
        inside = list(range(8))[offset : offset + limit]
        assert page.continuations is not None
        assert page.targets is not None
        assert page.continuations.lengths.tolist() == [lengths[n] for n in inside]
        assert page.continuations.tokens.tolist() == [n for n in inside for _ in range(lengths[n])]
        assert page.targets.token_logprobs.tolist() == [-n / 8 for n in inside for _ in range(lengths[n])]
        assert page.targets.greedy.tolist() == [lengths[n] == 0 for n in inside]
        first = page.first(1)
        assert first.continuations is not None
        assert first.continuations.lengths.tolist() == [lengths[n] for n in inside[:1]]


def test_a_notice_brings_them_to_the_request(store: Database) -> None:
    job = likelihood(origin=Origin.CALL, notice_key=KEY)
    job_id = accepted(store, job)
    claimed = take(store)
    finished = finish(store, claimed.batch_id, score(claimed), durable=claimed.durable)
    text = finished.results[job_id]
    found = verified_result(text, KEY, items=4, labels=1, head=Head.LOGPROBS, targets=2)
    assert found is not None
    assert found.targets is not None
    assert found.targets.token_logprobs.tolist() == [-2 / 8] * 2
    assert found.targets.greedy.tolist() == [True, True, False, True]
    assert found.scores.logits.tolist() == [[0], [0], [-4 / 8], [0]]
    for wrong in (None, 1, 3, 10**6):
        assert verified_result(text, KEY, items=4, labels=1, head=Head.LOGPROBS, targets=wrong) is None


def test_an_upload_has_them_too(store: Database) -> None:
    empty = likelihood(0, total_items=0)
    upload = begin_upload(store, empty, None)
    assert isinstance(upload, Upload)
    stage(store, upload, [of_likelihood(0), of_likelihood(2)])
    accept_upload(store, upload, "hash")
    release_chunks(store, upload.job_id)
    assert get_job(store, "default", upload.job_id).prompt_tokens == likelihood().prompt_tokens
    claimed = take(store)
    finish(store, claimed.batch_id, score(claimed))
    assert get_job(store, "default", upload.job_id).status is JobStatus.SUCCEEDED
    assert len(read_scores(store, "default", upload.job_id, 0, 9).indices) == 4
