"""Items with labels of all lengths, and what NumPy says of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from model.architecture import weights
from model.buckets import Buckets
from model.checks import numpy_decoder
from model.checks.numpy_states import final_states
from model.layerwise.decoder import LayerwiseDecoder
from scoring.layout import ChunkWork, Continuations, GroupWork, Head, ScoredChunk
from scoring.planning import cut as planning
from tests.model.checkpoints import EVERY
from tests.model.engines import PLATFORM
from tests.model.geometries import LONGEST_PREFIX, SHORT_ITEM, STEP, Group, Item, long, tokens

LONGEST_LABEL = 30
CLEAR_LEAD = 1e-3
"""By how much a token's logit must lead for rounding not to decide whether it is the most probable one."""


@dataclass(frozen=True)
class Label:
    """A label's tokens, and how many of the last tokens of its item, or of the query, it does not keep."""

    tokens: tuple[int, ...]
    cut: int = 0


@dataclass(frozen=True)
class Case:
    """A prefix, and items that have the same number of labels each."""

    prefix: tuple[int, ...]
    items: tuple[Item, ...]
    labels: tuple[tuple[Label, ...], ...]  # of each item

    def work(self, owner: str = "case", id: int = 0) -> GroupWork:
        """The case as the engine takes it, in one chunk."""
        rows = Group(self.prefix, self.items).work(owner, id).chunks[0].rows
        flat = [label for labels in self.labels for label in labels]
        kept = [
            max(1, whole - label.cut)
            for whole, labels in zip(rows.sequence_lengths.tolist(), self.labels, strict=True)
            for label in labels
        ]
        continuations = Continuations.pack([label.tokens for label in flat], kept, [3] * len(flat))
        chunk = ChunkWork(id, rows, (), Head.LOGPROBS, continuations)
        return GroupWork(owner, np.array(self.prefix, np.int32), (chunk,))

    def sequences(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """What each continuation keeps of prefix and item, and its targets."""
        (chunk,) = self.work().chunks
        assert chunk.continuations is not None
        stops = np.cumsum(chunk.rows.lengths)
        found = []
        flat = [label for labels in self.labels for label in labels]
        for number, (kept, label) in enumerate(zip(chunk.continuations.kept, flat, strict=True)):
            n = number // chunk.columns
            own = chunk.rows.tokens[stops[n] - chunk.rows.lengths[n] : stops[n]]
            whole = np.concatenate([np.array(self.prefix, np.int32)[: chunk.rows.prefix_ends[n]], own])
            found.append((whole[:kept], np.array(label.tokens, np.int32)))
        return found

    def with_top(self, owner: str = "case", id: int = 0) -> GroupWork:
        """The same, with the most probable token in the place of each target."""
        work = self.work(owner, id)
        return replace(work, chunks=tuple(replace(chunk, top=True) for chunk in work.chunks))

    def first(self, labels: int) -> Case:
        """The first item alone, with its first labels alone."""
        return Case(self.prefix, self.items[:1], (self.labels[0][:labels],))


@dataclass(frozen=True, eq=False)
class Expected:
    """The targets of a case, over the whole vocabulary."""

    logprobs: np.ndarray  # float32 [T]
    lead: np.ndarray  # by how much the target's logit leads those of all other tokens, or trails: float32 [T]
    highest: np.ndarray | None = None  # the log-probability of the most probable token in each place: float32 [T]


class Oracle:
    """A decoder in NumPy, which computes one whole sequence at a time."""

    def __init__(self, directory: Path, name: str) -> None:
        decoder, _ = weights.load(directory, EVERY[name], "float32")
        self._decoder = LayerwiseDecoder(decoder, PLATFORM, Buckets.of(STEP), longest=1)

    def expected(self, case: Case) -> Expected:
        """Log-probabilities of all targets of a case."""
        logprobs, leads, highest = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
        for kept, targets in case.sequences():
            if not len(targets):
                continue
            whole = np.concatenate([kept, targets[:-1]])
            positions = np.arange(len(whole), dtype=np.int32)
            seen = np.tri(len(whole), dtype=np.bool_)
            states = final_states(self._decoder, whole, positions, seen)[-len(targets) :]
            vocabulary = np.arange(self._decoder.config.vocabulary, dtype=np.int32)
            logits = numpy_decoder.label_logits(self._decoder, states, vocabulary)
            at = np.arange(len(targets)), targets
            others = logits.copy()
            others[at] = -np.inf
            leads.append(logits[at] - others.max(axis=1))
            log_sum_exp = numpy_decoder.over_vocabulary(self._decoder, states).log_sum_exp[:, 0]
            logprobs.append(logits[at] - log_sum_exp)
            highest.append(logits.max(axis=1) - log_sum_exp)
        return Expected(*(np.concatenate([np.zeros(0), *values]) for values in (logprobs, leads, highest)))


def assert_scored(found: ScoredChunk, case: Case, expected: Expected, tolerance: float) -> None:
    """Check log-probabilities, sums and greediness."""
    assert found.token_logprobs is not None
    assert found.greedy is not None
    np.testing.assert_allclose(found.token_logprobs, expected.logprobs, rtol=0, atol=tolerance)
    lengths = np.array([len(label.tokens) for labels in case.labels for label in labels])
    stops = np.cumsum(lengths)
    sums = [expected.logprobs[stop - length : stop].sum() / 3 for stop, length in zip(stops, lengths, strict=True)]
    assert found.scores.logprobs is not None
    apart = np.abs(found.scores.logprobs.reshape(-1) - sums)
    assert (apart <= tolerance * np.maximum(lengths, 1)).all()
    for greedy, stop, length in zip(found.greedy, stops, lengths, strict=True):
        leads = expected.lead[stop - length : stop]
        if (np.abs(leads) > CLEAR_LEAD).all():
            assert greedy == (leads > 0).all()


GREEDY = 3
"""Tokens of a reference's greedy labels."""


def reference_case(vocabulary: int, greedy: np.ndarray) -> Case:
    """Labels of many lengths behind no item, a short one and one that is longer than a step, some of them merged.

    greedy: [3, GREEDY], a label of most probable tokens for each item.
    """
    random = np.random.RandomState(3)

    def draw(length: int) -> tuple[int, ...]:
        return tuple(random.randint(0, vocabulary, length).tolist())

    lengths, cuts = (1, 2, 5, 30, 1), (0, 0, 25, 1, 2)
    drawn = [tuple(map(Label, map(draw, lengths), cuts)) for _ in greedy]
    labels = tuple((*drawn[n], Label(tuple(of_item))) for n, of_item in enumerate(greedy.tolist()))
    return Case(draw(70), (Item(()), Item(draw(20), 1), Item(draw(130))), labels)


class Way(Enum):
    """What is computed for labels of several tokens behind an item, where either way is possible."""

    ROW = "row"
    BRANCH = "branch"


@contextmanager
def by(way: Way | None) -> Iterator[None]:
    """Have labels that are behind an item computed in one way; None: as planned."""
    with pytest.MonkeyPatch.context() as patches:
        if way is not None:
            patches.setattr(planning, "_are_branches", lambda _, begins, *__: np.full(len(begins), way is Way.BRANCH))
        yield


def bits(found: ScoredChunk) -> np.ndarray:
    """The bits of all targets."""
    assert found.token_logprobs is not None
    return found.token_logprobs.view(np.int32)


def bits_of_first(found: ScoredChunk, label: Label) -> np.ndarray:
    """The bits of the targets of the first label of the first item."""
    return bits(found)[: len(label.tokens)]


label_tokens = st.one_of(
    st.tuples(tokens),
    st.lists(tokens, min_size=1, max_size=5).map(tuple),
    long(LONGEST_LABEL, STEP, STEP + 2, 2 * STEP + 1),
)
labels = st.builds(Label, label_tokens, st.sampled_from([0, 0, 0, 1, 2, 30]))
own_tokens = st.one_of(
    st.just(()), st.lists(tokens, max_size=SHORT_ITEM).map(tuple), long(20, 33, STEP, STEP + 1, 2 * STEP + 3)
)
items = st.builds(Item, own_tokens, st.sampled_from([0, 0, 1, 2]))
prefixes = st.one_of(
    st.lists(tokens, min_size=1, max_size=LONGEST_PREFIX).map(tuple), long(STEP - 1, STEP, STEP + 1, 2 * STEP + 5)
)


@st.composite
def cases(draw: st.DrawFn, most_items: int = 4, most_labels: int = 5) -> Case:
    """Items of all lengths with labels of all lengths, which may merge with what is before them."""
    rows, columns = draw(st.integers(1, most_items)), draw(st.integers(1, most_labels))
    found = tuple(draw(st.tuples(*[items] * rows)))
    of_items = tuple(tuple(draw(st.tuples(*[labels] * columns))) for _ in found)
    return Case(draw(prefixes), found, of_items)


def likelihood(case: Case) -> Case:
    """The likelihood of the same items: their own tokens are targets behind the query."""
    ends = [max(1, len(case.prefix) - item.short_by) for item in case.items]
    found = tuple(Item((), len(case.prefix) - end) for end in ends)
    return replace(case, items=found, labels=tuple((Label(item.tokens),) for item in case.items))
