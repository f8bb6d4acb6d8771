"""Labels for each item: whatever the lists are, each item gets the scores of its own labels in its own order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scoring.conversion import label_mass, to_scores
from scoring.labels.item_labels import ItemLabels
from scoring.layout import LabelScores

LISTS = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6), min_size=1, max_size=8)


def scored(labels: tuple[int, ...], items: int) -> LabelScores:
    """Return made-up scores of labels for items, in which every number is another one."""
    logits = np.random.default_rng(0).normal(size=(items, 31)).astype(np.float32)[:, list(labels)]
    return LabelScores(logits, logits - np.float32(4.0))


@given(LISTS)
def test_an_item_has_the_scores_that_it_would_have_alone(lists: list[list[int]]) -> None:
    labels, item_labels = ItemLabels.collect(lists)
    scores = scored(labels, len(lists))
    mass = label_mass(scores, labels, item_labels)
    assert mass is not None
    for softmax in (True, False):
        found = to_scores(item_labels.pick(scores), softmax, temperature=1.5)
        for n, of_item in enumerate(lists):
            columns = [labels.index(label) for label in of_item]
            assert scores.logprobs is not None
            alone = LabelScores(scores.logits[n : n + 1, columns], scores.logprobs[n : n + 1, columns])
            expected = to_scores(alone, softmax, temperature=1.5)
            np.testing.assert_allclose(found[n, : len(of_item)], expected[0], rtol=1e-12)
            alone_mass = label_mass(alone, of_item)
            assert alone_mass is not None
            np.testing.assert_allclose(mass[n], alone_mass[0], rtol=1e-12)


@given(LISTS)
def test_labels_are_collected_once_and_stored_as_they_are(lists: list[list[int]]) -> None:
    labels, item_labels = ItemLabels.collect(lists)
    assert sorted(labels) == sorted({label for of_item in lists for label in of_item})
    read = ItemLabels.from_bytes(item_labels.to_bytes())
    assert _lists(read, labels) == lists
    some = np.arange(len(lists), dtype=np.int64)[::2]
    assert _lists(item_labels.of(some), labels) == lists[::2]


def _lists(item_labels: ItemLabels, labels: tuple[int, ...]) -> list[list[int]]:
    return [[labels[column] for column in row if column >= 0] for row in item_labels.table().tolist()]


def test_no_items_have_no_labels() -> None:
    _, item_labels = ItemLabels.collect([[1, 2], [3]])
    none = item_labels.of(np.zeros(0, np.int64))
    assert (len(none), none.table().shape) == (0, (0, 0))
