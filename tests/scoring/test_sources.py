"""Which items of a chunk are equal, and how scores reach the items that are not computed."""

from __future__ import annotations

import random

import numpy as np
import pytest

from scoring.chunk import computed_part
from scoring.layout import Continuations, Head, LabelScores, Rows
from scoring.sources import Known, Sources, columns_of, contents, equal_items, scores_of

PREFIX = np.arange(10, dtype=np.int32)


def scores(*of_items: float, logprobs: bool = True, top: bool = False) -> LabelScores:
    logits = np.array([[one, one + 0.5] for one in of_items], np.float32)
    return LabelScores(logits, logits - 9 if logprobs else None, logits[:, 0] + 7 if top else None)


@pytest.mark.parametrize("seed", range(20))
def test_items_are_equal_if_all_that_is_computed_is_equal(seed: int) -> None:
    chance = random.Random(seed)
    count, labels = chance.randrange(1, 40), chance.randrange(1, 3)
    rows = [[chance.randrange(3) for _ in range(chance.randrange(3))] for _ in range(count)]
    ends = [chance.choice((9, 10)) for _ in range(count)]
    packed = Rows.pack(rows, ends)
    targets: list[list[int]] = [[]] * (count * labels)
    behind, kept = None, [10] * (count * labels)
    if chance.random() < 0.5:
        targets = [[chance.randrange(2)] * chance.randrange(2) for _ in targets]
        kept = [chance.choice((9, 10)) for _ in targets]
        behind = Continuations.pack(targets, kept)
    keys = [
        (row, end, targets[n * labels : (n + 1) * labels], kept[n * labels : (n + 1) * labels])
        for n, (row, end) in enumerate(zip(rows, ends, strict=True))
    ]
    expected = [keys.index(key) for key in keys]
    found = equal_items(packed, behind)
    assert (list(range(count)) if found is None else found.places.tolist()) == expected
    assert (found is None) == (len(set(expected)) == count)
    own, own_behind = computed_part(packed, behind, found)
    firsts = sorted(set(expected))
    assert len(own) == len(firsts)
    assert own.lengths.tolist() == [len(rows[n]) for n in firsts]
    if own_behind is not None:
        assert [one.tolist() for one in np.split(own_behind.tokens, np.cumsum(own_behind.lengths)[:-1])] == [
            target for n in firsts for target in targets[n * labels : (n + 1) * labels]
        ]
    hashes = contents(PREFIX, packed, behind, (1, 2), Head.LOGITS, top=False)
    assert [hashes.index(one) for one in hashes] == expected


def test_the_hash_of_an_item_depends_on_all_that_is_computed() -> None:
    rows = Rows.pack([[1, 2]], [10])
    behind = Continuations.pack([[3], [4]], [12, 12], [1, 1])
    different = [
        contents(PREFIX, rows, None, (1, 2), Head.LOGITS, top=False),
        contents(PREFIX[:-1], rows, None, (1, 2), Head.LOGITS, top=False),
        contents(PREFIX, Rows.pack([[1, 2]], [9]), None, (1, 2), Head.LOGITS, top=False),
        contents(PREFIX, Rows.pack([[2, 1]], [10]), None, (1, 2), Head.LOGITS, top=False),
        contents(PREFIX, rows, None, (2, 1), Head.LOGITS, top=False),
        contents(PREFIX, rows, None, (1,), Head.LOGITS, top=False),
        contents(PREFIX, rows, None, (1, 2), Head.LOGPROBS, top=False),
        contents(PREFIX, rows, None, (1, 2), Head.LOGITS, top=True),
        contents(PREFIX, rows, behind, (0, 1), Head.LOGPROBS, top=False),
        contents(PREFIX, rows, Continuations.pack([[3], [5]], [12, 12], [1, 1]), (0, 1), Head.LOGPROBS, top=False),
        contents(PREFIX, rows, Continuations.pack([[3], [4]], [12, 11], [1, 1]), (0, 1), Head.LOGPROBS, top=False),
        contents(PREFIX, rows, Continuations.pack([[3], [4]], [12, 12], [1, 2]), (0, 1), Head.LOGPROBS, top=False),
        contents(PREFIX, rows, Continuations.pack([[3, 4], []], [12, 12], [1, 1]), (0, 1), Head.LOGPROBS, top=False),
    ]
    assert len({one for [one] in different}) == len(different)


@pytest.mark.parametrize(("logprobs", "top"), [(False, False), (True, False), (True, True)])
def test_scores_reach_all_items(logprobs: bool, top: bool) -> None:
    known = Known(scores(100, 200, logprobs=logprobs, top=top), -5, ("extend", "serial"))
    sources = Sources(np.array([0, -2, 0, 3, -1, -2, 3], np.int32), known)
    read = Sources.from_bytes(sources.to_bytes())
    assert read.known is not None
    assert (read.known.provenance, read.known.algorithms) == (-5, ("extend", "serial"))
    whole = read.spread(scores(1, 2, logprobs=logprobs, top=top))
    expected = scores(1, 200, 1, 2, 100, 200, 2, logprobs=logprobs, top=top)
    for found, wanted in zip(
        (whole.logits, whole.logprobs, whole.top_logprobs),
        (expected.logits, expected.logprobs, expected.top_logprobs),
        strict=True,
    ):
        assert (found is None) == (wanted is None)
        assert found is None or np.array_equal(found, wanted)  # type: ignore[arg-type]
    assert (read.reused, read.is_known) == (5, False)
    anew = read.without_known()
    assert anew.places.tolist() == [0, 1, 0, 3, 4, 1, 3]
    assert anew.spread(scores(1, 2, 3, 4)).logits[:, 0].tolist() == [1, 2, 1, 3, 4, 2, 3]


def test_a_chunk_whose_scores_are_all_known_needs_none() -> None:
    sources = Sources(np.array([-2, -1, -2], np.int32), Known(scores(1, 2), 3))
    assert sources.is_known
    assert sources.spread(None).logits[:, 0].tolist() == [2, 1, 2]


@pytest.mark.parametrize(("logprobs", "top"), [(False, False), (True, False), (True, True)])
def test_columns_hold_all_scores(logprobs: bool, top: bool) -> None:
    given = scores(1, 2, 3, logprobs=logprobs, top=top)
    read = scores_of(columns_of(given), 2)
    assert np.array_equal(read.logits, given.logits)
    assert (read.logprobs is None, read.top_logprobs is None) == (not logprobs, not top)
    if read.logprobs is not None and given.logprobs is not None:
        assert np.array_equal(read.logprobs, given.logprobs)
    if read.top_logprobs is not None and given.top_logprobs is not None:
        assert np.array_equal(read.top_logprobs, given.top_logprobs)
