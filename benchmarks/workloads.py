"""The workloads that benchmarks measure, and how peers group their items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from model.compiling.workloads import Group, Sequences, Workload, alike


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
}
"""``ragged``: a query of 2,000 tokens, and 200 items of 1 to 200; ``reranking``: 1,000 queries, an empty item each."""
