"""The vocabulary's most probable tokens are kept where a job asks for them, and come back wherever its scores do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from jobs.queue.finish import finish
from jobs.queue.read import read_scores, results_of
from jobs.store.database import Database
from jobs.store.identifiers import new_notice_key
from jobs.store.records import Claim, JobStatus, Origin
from jobs.store.signed_result import verified_result
from jobs.store.tables import chunk_scores, jobs
from scoring.layout import ScoredChunk, TopTokens
from scoring.options import ScoreOptions
from tests.jobs.queue.test_continuations import LIKELIHOOD, accepted, likelihood
from tests.jobs.queue.test_continuations import score as score_targets
from tests.jobs.work import LABELS, scored, submit, take

KEY = new_notice_key()
OPTIONS = (ScoreOptions(top=True), ScoreOptions(top=True, apply_softmax=True))


def with_top(claimed: Claim) -> list[ScoredChunk]:
    """Made-up scores of labels. The most probable token of an item has the negative half of its label's logit."""
    assert all(chunk.top for group in claimed.groups for chunk in group.chunks)
    half = np.float32(2)
    return [
        replace(one, scores=replace(one.scores, top_logprobs=-one.scores.logits[:, 0] / half))
        for one in scored(claimed)
    ]


def with_top_targets(claimed: Claim) -> list[ScoredChunk]:
    """Made-up scores of targets. The most probable token has the id that follows, and half the log-probability."""
    work = {chunk.id: chunk for group in claimed.groups for chunk in group.chunks}
    found = []
    for one in score_targets(claimed):
        chunk = work[one.id]
        assert chunk.top
        assert chunk.continuations is not None
        assert one.token_logprobs is not None
        found.append(replace(one, top=TopTokens(chunk.continuations.tokens + 1, one.token_logprobs / np.float32(2))))
    return found


def call(store: Database, **given: Any) -> str:
    return submit(store, origin=Origin.CALL, notice_key=KEY, **given)


@pytest.mark.parametrize("options", OPTIONS)
def test_those_of_labels_come_back_in_pages_batches_and_notices(store: Database, options: ScoreOptions) -> None:
    job_id = call(store, chunks=3, rows=2, options=options)
    claimed = take(store)
    finished = finish(store, claimed.batch_id, with_top(claimed), durable=claimed.durable)
    expected = read_scores(store, "default", job_id, 0, 6).scores.logits[:, 0] / -2
    assert len(set(expected.tolist())) == 6
    for offset, limit in ((0, 6), (1, 1), (1, 4), (5, 3)):
        page = read_scores(store, "default", job_id, offset, limit)
        assert page.scores.top_logprobs is not None
        assert page.scores.top_logprobs.tobytes() == expected[offset : offset + limit].tobytes()
        first = page.first(1).scores.top_logprobs
        assert first is not None
        assert first.tolist() == [expected[offset]]
    _, whole = results_of(store, [job_id])[job_id]
    assert whole is not None
    assert whole.scores.top_logprobs is not None
    assert whole.scores.top_logprobs.tobytes() == expected.tobytes()
    opened = partial(verified_result, finished.results[job_id], KEY, items=6, labels=len(LABELS), head=options.head)
    noticed = opened(top=True)
    assert noticed is not None
    assert noticed.scores.top_logprobs is not None
    assert noticed.scores.top_logprobs.tobytes() == expected.tobytes()
    assert noticed.scores.logits.tobytes() == whole.scores.logits.tobytes()
    assert opened() is None


def test_those_of_targets_come_back_in_pages_and_notices(store: Database) -> None:
    options = replace(LIKELIHOOD, top=True)
    job_id = accepted(store, likelihood(6, options=options, origin=Origin.CALL, notice_key=KEY))
    claimed = take(store)
    finished = finish(store, claimed.batch_id, with_top_targets(claimed), durable=claimed.durable)
    for offset, limit, targets in ((0, 6, [2, 2, 4, 4, 4, 4]), (3, 2, [4, 4, 4, 4]), (2, 1, [2, 2]), (5, 1, [])):
        top = read_scores(store, "default", job_id, offset, limit).targets
        assert top is not None
        assert top.top is not None
        assert top.top.ids.tolist() == [target + 1 for target in targets]
        assert top.top.logprobs.tolist() == [-target / 16 for target in targets]
        assert top.token_logprobs.tolist() == [-target / 8 for target in targets]
    noticed = verified_result(finished.results[job_id], KEY, items=6, labels=1, head=options.head, targets=6, top=True)
    assert noticed is not None
    assert noticed.targets is not None
    assert noticed.targets.top is not None
    assert noticed.targets.top.ids.tolist() == [3, 3, 5, 5, 5, 5]
    assert noticed.targets.top.logprobs.tolist() == [-2 / 16] * 2 + [-4 / 16] * 4
    assert noticed.targets.greedy.tolist() == [True, True, False, True, False, True]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_worker_of_the_previous_version_keeps_none_and_loses_nothing_else(
    store: Database, options: ScoreOptions
) -> None:
    """It does not know the option. One label is the case in which what is missing is as long as what is there."""
    for given in ("logits and log-probabilities", "only logits"):
        job_id = call(store, rows=2, options=options, label_token_ids=(7,))
        claimed = take(store)
        done = scored(claimed)
        if given == "only logits":
            done = [replace(one, scores=replace(one.scores, logprobs=None)) for one in done]
        finished = finish(store, claimed.batch_id, done, durable=claimed.durable)
        page = read_scores(store, "default", job_id, 0, 9)
        assert (page.job.status, len(page.indices), page.scores.top_logprobs) == (JobStatus.SUCCEEDED, 2, None)
        text = finished.results[job_id]
        assert verified_result(text, KEY, items=2, labels=1, head=options.head, top=True) is None, given
    targets = accepted(store, likelihood(options=replace(LIKELIHOOD, top=True)))
    claimed = take(store)
    finish(store, claimed.batch_id, score_targets(claimed))
    found = read_scores(store, "default", targets, 0, 4).targets
    assert found is not None
    assert (found.top, found.token_logprobs.tolist()) == (None, [-2 / 8] * 2)


def test_their_bytes_count_and_a_job_without_them_stores_none(store: Database) -> None:
    plain, more = submit(store, rows=3), submit(store, rows=3, options=OPTIONS[0])
    with store.read() as tx:
        sizes = [tx.scalar(select(jobs.c.stored_bytes).where(jobs.c.id == job_id)) for job_id in (plain, more)]
    assert sizes[0] is not None
    assert sizes[1] == sizes[0] + 3 * 4
    claimed = take(store)
    parts = {chunk.id: chunk.top for group in claimed.groups for chunk in group.chunks}
    done = [
        one if not parts[one.id] else replace(one, scores=replace(one.scores, top_logprobs=np.zeros(3, np.float32)))
        for one in scored(claimed)
    ]
    finish(store, claimed.batch_id, done)
    with store.read() as tx:
        assert tx.scalar(select(func.count(chunk_scores.c.targets)).select_from(chunk_scores)) == 1
    assert read_scores(store, "default", plain, 0, 3).scores.top_logprobs is None
