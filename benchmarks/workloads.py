"""What is measured: a query and items, by their lengths, and the operations that scoring them takes at least."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from model.config import DecoderConfig
from scoring.layout import ChunkWork, GroupWork, Head, Rows

LABELS = (9454, 2753)
"""``Yes`` and ``No`` in Qwen3's vocabulary; the demonstration's is smaller, and takes them modulo its size."""


@dataclass(frozen=True, slots=True)
class Workload:
    """items of item_tokens behind one query of query tokens."""

    query: int
    items: int
    item_tokens: int

    @property
    def name(self) -> str:
        """As the log and the documents write it."""
        return f"{self.query} x ({self.items} of {self.item_tokens})"

    def with_items(self, items: int) -> Workload:
        """The same with another number of items."""
        return Workload(self.query, items, self.item_tokens)

    def tokens(self, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
        """Random ids: the query's, int32 [query], and the items', int32 [items, item_tokens]."""
        random = np.random.default_rng(0)
        return (
            random.integers(0, vocabulary, self.query, np.int32),
            random.integers(0, vocabulary, (self.items, self.item_tokens), np.int32),
        )

    def work(self, vocabulary: int) -> list[GroupWork]:
        """As the engine takes it."""
        prefix, items = self.tokens(vocabulary)
        rows = Rows.pack(list(items), [self.query] * self.items)
        labels = tuple(label % vocabulary for label in LABELS)
        return [GroupWork("benchmark", prefix, (ChunkWork(0, rows, labels, Head.LOGPROBS),))]

    def necessary_flop(self, config: DecoderConfig) -> float:
        """2 for each weight and token, the query's once; 4 x head_dim for each visible pair and query head; the head
        on every item's last token. No padding, and nothing computed twice.
        """
        projections = 2 * config.width * config.head_dim * (config.query_heads + config.kv_heads)
        weights = config.layers * (projections + 3 * config.width * config.mlp_width)
        tokens = self.query + self.items * self.item_tokens
        own = self.item_tokens * (self.item_tokens + 1) / 2
        pairs = self.query * (self.query + 1) / 2 + self.items * (self.item_tokens * self.query + own)
        attention = 4 * pairs * config.query_heads * config.head_dim * config.layers
        return 2 * weights * tokens + attention + 2 * self.items * config.width * config.vocabulary


WORKLOADS = {
    "target": Workload(2000, 500, 20),
    "300x10x20": Workload(300, 10, 20),
    "300x100x20": Workload(300, 100, 20),
    "100x10x100": Workload(100, 10, 100),
    "8000x100x20": Workload(8000, 100, 20),
}
