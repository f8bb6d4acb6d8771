"""The workloads that benchmarks measure, and how peers group their items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scoring.layout import ChunkWork, Continuations, GroupWork, Head, Rows, TokenIds
from tools.tpu.workloads import Group, Sequences, Workload, alike


@dataclass(frozen=True, slots=True, eq=False)
class LabelSequences:
    """The random ids of a query, its items, and the labels of each item."""

    query: TokenIds
    items: tuple[TokenIds, ...]
    labels: tuple[tuple[TokenIds, ...], ...]

    def as_rows(self) -> LabelSequences:
        """Return each item once for each of its labels, which so share nothing but the query."""
        items = tuple(item for item, labels in zip(self.items, self.labels, strict=True) for _ in labels)
        return LabelSequences(self.query, items, tuple((label,) for labels in self.labels for label in labels))


@dataclass(frozen=True, slots=True)
class LabelWorkload:
    """A query, and items of one length with labels of one length each, in tokens."""

    query: int
    items: int
    item_tokens: int
    labels: int
    label_tokens: int

    def __str__(self) -> str:
        return f"{self.query} x ({self.items} of {self.item_tokens}, {self.labels} labels of {self.label_tokens})"

    def first(self, items: int) -> LabelWorkload:
        """Return the first items."""
        return replace(self, items=min(items, self.items))

    def with_one_token(self) -> Workload:
        """Return the same items, to be scored with labels of one token."""
        return alike(self.query, self.items, self.item_tokens)

    def sequences(self, vocabulary: int) -> list[LabelSequences]:
        """Return random ids, the same at every call. All items have the same labels."""
        random = np.random.default_rng(0)

        def draw(length: int) -> TokenIds:
            return random.integers(0, vocabulary, length, np.int32)

        query, items = draw(self.query), tuple(draw(self.item_tokens) for _ in range(self.items))
        labels = tuple(draw(self.label_tokens) for _ in range(self.labels))
        return [LabelSequences(query, items, (labels,) * self.items)]

    def work(self, vocabulary: int) -> list[GroupWork]:
        """Return the work for the engine, in one chunk."""
        (group,) = self.sequences(vocabulary)
        rows = Rows.pack(group.items, [self.query] * self.items)
        targets = [label for labels in group.labels for label in labels]
        continuations = Continuations.pack(targets, [self.query + self.item_tokens] * len(targets))
        return [GroupWork("benchmark", group.query, (ChunkWork(0, rows, (), Head.LOGPROBS, continuations),))]


LABEL_WORKLOADS = {
    "short": LabelWorkload(2_000, 500, 20, 4, 5),
    "long": LabelWorkload(2_000, 20, 800, 10, 4),
    "tiny": LabelWorkload(300, 10, 20, 4, 5),
}


def beginning(groups: Sequence[Sequences]) -> list[Sequences]:
    """Return a small part of the first group, to warm up with."""
    first = groups[0]
    return [Sequences(first.query[:64], tuple(item[:8] for item in first.items[:2]))]


def batches(lengths: Sequence[int], most: int, tokens: int, behind: int = 0) -> Iterator[list[int]]:
    """Yield the indices of items that are not empty, the shortest first, in batches of at most ``most`` items.

    In a batch of several items, their number times the sum of ``behind`` and the longest length is at most ``tokens``.
    """
    batch: list[int] = []
    for n in sorted((n for n, length in enumerate(lengths) if length), key=lambda n: lengths[n]):
        if batch and (len(batch) == most or (len(batch) + 1) * (behind + lengths[n]) > tokens):
            yield batch
            batch = []
        batch.append(n)
    if batch:
        yield batch


def _ragged() -> Workload:
    lengths = np.random.default_rng(0).integers(1, 200, 200, endpoint=True)
    return Workload((Group(2_000, tuple(lengths.tolist())),))


WORKLOADS = {
    "target": alike(2_000, 500, 20),
    "300x10x20": alike(300, 10, 20),
    "300x100x20": alike(300, 100, 20),
    "100x10x100": alike(100, 10, 100),
    "8000x100x20": alike(8_000, 100, 20),
    "2000x5000x20": alike(2_000, 5_000, 20),
    "ragged": _ragged(),
    "reranking": Workload((Group(300, (0,)),) * 1_000),
    "few_shot": Workload((Group(1_600, (20,) * 4),) * 20, common=1_500),
}
"""``ragged``: a query of 2,000 tokens, and 200 items of 1 to 200; ``reranking``: 1,000 queries, an empty item each;
``few_shot``: 20 queries that have an instruction and examples in common.
"""
