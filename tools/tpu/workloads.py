"""Workloads: the lengths of queries and items, and the operations that are necessary to score them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from model.architecture.config import DecoderConfig
from scoring.layout import ChunkWork, GroupWork, Head, Rows, TokenIds
from scoring.planning.algorithms import AlgorithmSetting

LABELS = (9454, 2753)
"""``Yes`` and ``No`` in Qwen3's vocabulary; smaller vocabularies take them modulo their size."""


@dataclass(frozen=True, slots=True)
class Group:
    """The lengths of a query and its items. An empty item is scored where the query ends."""

    query: int  # tokens
    items: tuple[int, ...]  # tokens of each

    @property
    def tokens(self) -> int:
        """Tokens of the query, once, and of all items."""
        return self.query + sum(self.items)


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """The random ids of a group."""

    query: TokenIds  # int32 [query]
    items: tuple[TokenIds, ...]  # int32 [length] each


@dataclass(frozen=True, slots=True)
class Flop:
    """Floating-point operations of the layers' weights, of attention, and of the head."""

    linear: float
    attention: float
    head: float

    @property
    def total(self) -> float:
        """The sum."""
        return self.linear + self.attention + self.head

    def __str__(self) -> str:
        parts = {"total": self.total, "linear": self.linear, "attention": self.attention, "head": self.head}
        return ", ".join(f"{name} {flop / 1e12:.3g}" for name, flop in parts.items()) + " TFLOP"


FORMULA = (
    "linear: 2 x weights of the layers x tokens; attention: 4 x head_dim x query heads x layers x visible pairs; "
    "head: 2 x width x vocabulary x items"
)
"""The operations of :meth:`Workload.necessary_flop`. A query's tokens count once, and a token sees itself."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Groups of one request."""

    groups: tuple[Group, ...]
    common: int = 0  # tokens that all queries begin with, such as an instruction and examples

    @property
    def items(self) -> int:
        """Items of all groups."""
        return sum(len(group.items) for group in self.groups)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence: a query and an item of it."""
        return max(group.query + max(group.items, default=0) for group in self.groups)

    @property
    def tokens(self) -> int:
        """Necessary tokens: what queries have in common once, the rest of each, and every item."""
        return self.common + sum(group.tokens - self.common for group in self.groups)

    def __str__(self) -> str:
        kinds = {_in_words(group): 0 for group in self.groups}
        for group in self.groups:
            kinds[_in_words(group)] += 1
        names = [f"{count} times {kind}" if count > 1 else kind for kind, count in kinds.items()]
        return ", ".join(names) + (f", {self.common} in common" if self.common else "")

    def first(self, items: int) -> Workload:
        """Return the first items, and the queries that they need."""
        kept: list[Group] = []
        for group in self.groups:
            if items > 0:
                kept.append(Group(group.query, group.items[:items]))
            items -= len(group.items)
        return Workload(tuple(kept), self.common)

    def sequences(self, vocabulary: int) -> list[Sequences]:
        """Return random ids, the same at every call; all queries differ behind what they have in common."""
        random = np.random.default_rng(0)

        def draw(length: int) -> TokenIds:
            return random.integers(0, vocabulary, length, np.int32)

        common = draw(self.common)
        return [
            Sequences(np.concatenate([common, draw(group.query - self.common)]), tuple(map(draw, group.items)))
            for group in self.groups
        ]

    def work(self, vocabulary: int) -> list[GroupWork]:
        """Return the work for the engine, a chunk for each group."""
        labels = labels_of(vocabulary)
        return [
            GroupWork(
                "benchmark",
                group.query,
                (ChunkWork(n, Rows.pack(group.items, [len(group.query)] * len(group.items)), labels, Head.LOGPROBS),),
            )
            for n, group in enumerate(self.sequences(vocabulary))
        ]

    def necessary_flop(self, config: DecoderConfig) -> Flop:
        """Count the operations of :data:`FORMULA`, without padding and without repeated work."""
        size = config.size
        again = self.common * (self.common + 1) // 2 * (len(self.groups) - 1) if self.common else 0
        pairs = sum(_visible_pairs(group) for group in self.groups) - again
        return Flop(size.linear_flop * self.tokens, size.pair_flop * pairs, size.head_flop * self.items)


def labels_of(vocabulary: int) -> tuple[int, ...]:
    """Return the label ids of a vocabulary."""
    return tuple(label % vocabulary for label in LABELS)


def _visible_pairs(group: Group) -> int:
    """Count the pairs of a token and a visible one: itself, and those before it in the query and in its own item."""
    own = sum(length * (length + 1) // 2 for length in group.items)
    return group.query * (group.query + 1) // 2 + sum(group.items) * group.query + own


def _in_words(group: Group) -> str:
    shortest, longest = min(group.items), max(group.items)
    lengths = f"{longest}" if shortest == longest else f"{shortest} to {longest}"
    return f"{group.query} x ({len(group.items)} of {lengths})"


def alike(query: int, items: int, item_tokens: int) -> Workload:
    """Return one query, and items of one length, in tokens."""
    return Workload((Group(query, (item_tokens,) * items),))


@dataclass(frozen=True, slots=True)
class Measured:
    """A workload, and how the engine is to score it."""

    name: str
    workload: Workload
    algorithm: AlgorithmSetting = "auto"
    settings: Mapping[str, object] = field(default_factory=dict)  # that differ from those of the environment


_TARGET = alike(2_000, 500, 20)
MEASURED = {
    measured.name: measured
    for measured in (
        Measured("target", _TARGET),
        Measured("20_queries", Workload((Group(300, (20,) * 10),) * 20)),
        Measured("steps_of_128_items", _TARGET, settings={"multi_item_extend_batch_size": 128}),
        Measured("steps_of_500_items", _TARGET, settings={"multi_item_extend_batch_size": 500}),
        Measured("packed_segment", _TARGET, "packed", {"multi_item_mask_impl": "segment"}),
        Measured("packed_dense", _TARGET, "packed", {"multi_item_mask_impl": "dense"}),
    )
}
"""What programs are estimated for, by name."""
