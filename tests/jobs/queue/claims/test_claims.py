"""Which chunks a worker may claim: what it can score, and how much at a time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import delete

import jobs.queue.claims.claim_choice
from checkpoints.card import ModelCard
from jobs.queue.accept import accept
from jobs.queue.claims.claim import claim
from jobs.queue.claims.claim_choice import FEW_CHUNKS
from jobs.queue.read import get_job, has_waiting
from jobs.store.database import Database
from jobs.store.records import JobStatus
from jobs.store.tables import flows
from scoring.layout import Head, Rows
from scoring.options import Priority, ScoreOptions
from scoring.planning.folds import work
from scoring.work import chunk_of, work_of_prefix
from tests.databases import quick_on
from tests.jobs.work import CARD, at_once, finish_all, prefixes_of, submission, submit, take


def test_a_claim_keeps_to_its_budget_but_takes_one_chunk_whatever_its_size(store: Database) -> None:
    submit(store, chunks=1, rows=10, row_tokens=97)  # 1,000 tokens, with the 3 of the prefix of each row
    submit(store, chunks=6, rows=1, row_tokens=5)  # 8 tokens each
    assert len(take(store, budget=44).chunk_ids) == 1
    assert len(take(store, budget=44).chunk_ids) == 5
    assert len(take(store, budget=44).chunk_ids) == 1


@pytest.mark.parametrize("priority", [Priority.NORMAL, Priority.INTERACTIVE])
def test_a_claim_counts_a_prefix_once_for_all_chunks_of_its_group(store: Database, priority: Priority) -> None:
    chunk, prefix = round(work(1_000.0, 10.0)), work_of_prefix(1_000)
    assert (chunk, prefix) == (13, 1_130)
    for first in (1, 2, 3):
        submit(store, chunks=5, row_tokens=10, prefix=(first, *range(999)), priority=priority)
    claimed = take(store, budget=2 * prefix + 10 * chunk)
    assert [len(group.chunks) for group in claimed.groups] == [5, 5]
    claimed = take(store, budget=prefix + 4 * chunk - 1)
    assert [len(group.chunks) for group in claimed.groups] == [3]


def test_only_the_first_group_of_a_claim_is_split(store: Database) -> None:
    """The rest of a split group computes its query again, if the worker no longer caches it."""
    chunk, prefix = round(work(1_000.0, 10.0)), work_of_prefix(1_000)
    for first in (1, 2):
        submit(store, chunks=5, row_tokens=10, prefix=(first, *range(999)))
    claimed = take(store, budget=2 * prefix + 10 * chunk - 1)
    assert [len(group.chunks) for group in claimed.groups] == [5]


def test_a_claim_keeps_to_its_number_of_chunks(store: Database) -> None:
    submit(store, chunks=6)
    submit(store, prefix=(9,))
    assert [len(take(store, max_chunks=5).chunk_ids) for _ in range(2)] == [5, 2]


@pytest.mark.parametrize("waiting", [1, 2, FEW_CHUNKS - 1, FEW_CHUNKS, FEW_CHUNKS + 20])
def test_a_claim_says_whether_it_left_work_behind(store: Database, waiting: int) -> None:
    submit(store, chunks=waiting)
    taken = 0
    while taken < waiting:
        taken += len((claimed := take(store, max_chunks=max(1, waiting - taken - 2))).chunk_ids)
        assert claimed.work_left == has_waiting(store, CARD) == (taken < waiting)


@pytest.mark.parametrize(("waiting", "work_left"), [(FEW_CHUNKS - 1, False), (FEW_CHUNKS, True), (200, True)])
def test_a_claim_of_all_work_may_say_that_some_is_left_only_if_it_was_large(
    store: Database, waiting: int, work_left: bool
) -> None:
    """It reads a long backlog up to its budget, and does not know what comes after that."""
    submit(store, chunks=waiting)
    claimed = take(store)
    assert (len(claimed.chunk_ids), claimed.work_left) == (waiting, work_left)


def test_work_of_the_other_class_is_left_behind_but_not_work_for_other_workers(store: Database) -> None:
    submit(store, work_key="another")
    submit(store, model="another")
    submit(store, priority=Priority.INTERACTIVE)
    submit(store)
    assert take(store).work_left
    assert not take(store).work_left


def test_work_in_a_closed_flow_is_left_behind_in_a_long_backlog(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a claim serves only the closed flow of the most urgent work."""
    monkeypatch.setattr(jobs.queue.claims.claim_choice, "FEW_CHUNKS", 2)
    submit(store, tenant="one")
    submit(store, tenant="two")
    with store.write() as tx:
        tx.execute(delete(flows))
    assert take(store).work_left
    assert len(take(store).chunk_ids) == 1


def test_a_worker_gets_its_own_models_work_only(store: Database) -> None:
    submit(store, model="other")
    assert claim(store, "worker", CARD, 100) is None


@pytest.mark.parametrize(
    "other",
    [
        replace(CARD, tokenizer_fingerprint="0" * 64),
        replace(CARD, context_length=6),
        replace(CARD, vocabulary=60),
    ],
    ids=["another tokenizer", "a shorter context", "a smaller vocabulary"],
)
def test_work_that_a_worker_would_score_wrongly_waits_for_another(store: Database, other: ModelCard) -> None:
    """The other worker serves a model of the same name, and has work of its own behind this work."""
    job_id = submit(store, row_tokens=4, prefix=(1, 2, 60))  # 7 tokens
    assert not has_waiting(store, other)
    assert claim(store, "other", other, 1_000) is None
    fitting = submit(store, row_tokens=1, work_key=other.work_key)
    claimed = claim(store, "other", other, 1_000)
    assert claimed is not None
    assert prefixes_of(claimed) == [[1, 2, 3]]
    finish_all(store, claimed)
    assert get_job(store, "default", fitting).status is JobStatus.SUCCEEDED
    assert get_job(store, "default", job_id).status is JobStatus.QUEUED
    assert not has_waiting(store, other)
    assert prefixes_of(take(store)) == [[1, 2, 60]]


@pytest.mark.parametrize("place", ["prefix", "row", "label"])
def test_a_token_beyond_the_vocabulary_of_a_worker_is_noticed_wherever_it_is(store: Database, place: str) -> None:
    card = replace(CARD, vocabulary=60)
    chunks = [chunk_of(0, Rows.pack([[60 if place == "row" else 5]], [2]))]
    prefix = np.array([1, 60 if place == "prefix" else 2], np.int32)
    accept(
        store,
        replace(
            submission(), prefix=prefix, chunks=chunks, label_token_ids=(60 if place == "label" else 7,), total_items=1
        ),
    )
    assert claim(store, "worker", card, 1_000) is None
    assert claim(store, "worker", replace(card, vocabulary=61), 1_000) is not None


@quick_on("sqlite")
def test_workers_of_several_kinds_share_a_backlog_and_each_gets_what_it_can_score(store: Database) -> None:
    """They claim at once, also from the same groups, until no chunk waits that any of them can score."""
    cards = [
        replace(CARD, tokenizer_fingerprint=tokenizer * 64, context_length=context)
        for tokenizer in "ab"
        for context in (5, 10)
    ]
    chance = random.Random(11)
    wanted: dict[str, tuple[str, int]] = {}
    for _ in range(200):
        tokenizer, row_tokens = chance.choice("abc"), chance.choice([1, 4, 20])
        prefix = (1, chance.randrange(4), 3)
        job_id = submit(store, prefix=prefix, row_tokens=row_tokens, work_key=tokenizer * 64)
        wanted[job_id] = (tokenizer, len(prefix) + row_tokens)

    def work(number: int) -> list[tuple[str, int]]:
        card = cards[number % len(cards)]
        mine: list[tuple[str, int]] = []
        while has_waiting(store, card):
            claimed = claim(store, f"worker {number}", card, budget_tokens=40)
            for group in claimed.groups if claimed else ():
                _, fingerprint = group.owner.split(":")
                assert fingerprint == card.tokenizer_fingerprint
                lengths = [int(length) for chunk in group.chunks for length in chunk.rows.sequence_lengths]
                assert max(lengths) <= card.context_length
                mine += [(fingerprint[0], length) for length in lengths]
            if claimed:
                finish_all(store, claimed)
        return mine

    scored = [one for many in at_once(8, work) for one in many]
    possible = [(tokenizer, length) for tokenizer, length in wanted.values() if tokenizer != "c" and length <= 10]
    assert Counter(scored) == Counter(possible)
    for job_id, kind in wanted.items():
        expected = JobStatus.SUCCEEDED if kind in possible else JobStatus.QUEUED
        assert get_job(store, "default", job_id).status is expected


def test_chunks_of_one_group_keep_their_own_labels_and_heads(store: Database) -> None:
    submit(store)
    submit(store, label_token_ids=(1, 2, 3), options=ScoreOptions(apply_softmax=True))
    [group] = take(store).groups
    assert [(chunk.label_token_ids, chunk.head) for chunk in group.chunks] == [
        ((7, 9), Head.LOGPROBS),
        ((1, 2, 3), Head.LOGITS),
    ]


@quick_on("sqlite")
def test_submissions_of_thousands_of_chunks_keep_inputs_and_chunks_together(store: Database) -> None:
    job = submission(chunks=2_500, row_tokens=1)
    accept(store, job)
    seen = 0
    while claimed := claim(store, "worker", CARD, 10_000_000):
        first_items = [int(chunk.rows.tokens[0]) for group in claimed.groups for chunk in group.chunks]
        assert first_items == list(range(seen, seen + len(first_items)))
        seen += len(first_items)
    assert seen == 2_500
