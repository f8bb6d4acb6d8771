"""Scores are encoded in slices, and the bytes are those of one piece."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from pydantic_core import to_json

from api.answers import presentation
from api.answers.presentation import ScoredJob, encode_job, encode_lines, encode_page, encode_scoring
from jobs.store.records import JobRecord, JobStatus, Origin, ScorePage
from scoring.conversion import to_scores
from scoring.layout import Head, LabelScores
from scoring.options import Priority, ScoreOptions


def page_of(items: int, labels: int, *, has_more: bool = False, **options: Any) -> ScorePage:
    """Return a page of made-up scores, one of them minus infinity."""
    rng = np.random.default_rng(items)
    logits = rng.normal(size=(items, labels)).astype(np.float32)
    logprobs = (logits - np.float32(9)).astype(np.float32)
    logprobs[:1, :1] = -np.inf
    job = JobRecord(
        id="job_1",
        tenant="acme",
        model='a "quoted" name',
        status=JobStatus.SUCCEEDED,
        origin=Origin.JOB,
        priority=Priority.NORMAL,
        total_items=items,
        scored_items=items,
        prompt_tokens=items,
        cached_tokens=0,
        created_at=1.0,
        started_at=1.0,
        finished_at=2.5,
        expires_at=None,
        options=ScoreOptions(**options),
        label_token_ids=tuple(range(labels)),
        metadata={"é": "ü"},
        warnings=("a warning",),
        error=None,
        webhook=None,
    )
    scores = LabelScores(logits, logprobs if job.options.head is Head.LOGPROBS else None)
    return ScorePage(job, np.arange(items), scores, items if has_more else None)


def rows_in_one_piece(page: ScorePage) -> dict[str, list[Any]]:
    options = page.job.options
    rows = {"scores": to_scores(page.scores, options.apply_softmax).tolist()}
    if options.return_logprobs:
        assert page.scores.logprobs is not None
        rows["logprobs"] = page.scores.logprobs.tolist()
    if options.return_logits:
        rows["logits"] = page.scores.logits.tolist()
    if page.scores.logprobs is not None:
        rows["label_mass"] = np.exp(page.scores.logprobs.astype(np.float64)).sum(axis=1).tolist()
    return rows


def encode_in_one_piece(value: object) -> bytes:
    return to_json(value, inf_nan_mode="null")


ALL = {"return_logprobs": True, "return_logits": True}


@pytest.mark.parametrize(
    "page",
    [
        page_of(0, 2),
        page_of(1, 1),
        page_of(3, 2, apply_softmax=True, has_more=True),
        page_of(7, 5, **ALL),
        page_of(20, 3, return_logits=True),
    ],
    ids=["no items", "one item", "three items", "all values", "logits"],
)
def test_scores_encoded_in_slices_have_the_bytes_of_one_piece(page: ScorePage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presentation, "SLICE_VALUES", 12)
    rows = rows_in_one_piece(page)
    items = [{"index": n, **{name: of[n] for name, of in rows.items()}} for n in range(len(page.indices))]
    assert encode_lines(page) == b"".join(encode_in_one_piece(item) + b"\n" for item in items)
    what_follows = {"has_more": page.has_more, "next_offset": page.next_offset}
    assert encode_page(page) == encode_in_one_piece({"object": "list", "data": items, **what_follows})
    encoded = encode_scoring(ScoredJob.read(page))
    scoring = json.loads(encoded)
    scoring |= rows
    assert encoded == encode_in_one_piece(scoring)
    assert encode_job(page) == encode_in_one_piece(presentation.show_job(page.job) | {"result": scoring})
    assert list(scoring) == ["id", "object", "model", "created", *rows, "usage", "warnings"]


def test_no_call_encodes_more_than_a_slice_of_a_large_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call into the encoder can't be interrupted, and a page may hold 768,000 numbers."""
    encoded: list[int] = []

    def counting(value: Any, **options: Any) -> bytes:
        encoded.append(numbers_in(value))
        return to_json(value, **options)

    def numbers_in(value: object) -> int:
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return isinstance(value, int | float) if parts is None else sum(map(numbers_in, parts))

    monkeypatch.setattr(presentation, "to_json", counting)
    page = page_of(200, 256, **ALL)
    for encode in (encode_page, encode_lines, lambda page: encode_scoring(ScoredJob.read(page)), encode_job):
        encoded.clear()
        assert len(encode(page)) > 1_000_000
        assert max(encoded) <= 2**15 + 128
        assert sum(encoded) >= 3 * 200 * 256
