"""Lay rows of tokens end to end in one array, and find and cut off their common beginnings with other tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from scoring.layout import TokenIds


def packed(rows: Sequence[Sequence[int]]) -> tuple[TokenIds, TokenIds]:
    """Return all tokens end to end, int32 [T], and the number of tokens of each row, int32 [N]."""
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    return np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum())), lengths


def common_prefixes(tokens: TokenIds, lengths: TokenIds, reference: TokenIds) -> TokenIds:
    """Return how many leading tokens each packed row shares with ``reference``, int32 [N]."""
    starts = np.cumsum(lengths) - lengths
    shared = np.zeros(len(lengths), np.int32)
    if len(lengths) < len(reference):  # few long rows: compare one row at a time, else one token of all rows at a time
        for n, start in enumerate(starts):
            most = min(int(lengths[n]), len(reference))
            differs = tokens[start : start + most] != reference[:most]
            shared[n] = int(np.argmax(differs)) if differs.any() else most
        return shared
    alive = np.arange(len(lengths))  # the rows that have agreed with the reference so far
    for offset, token in enumerate(reference):
        alive = alive[lengths[alive] > offset]
        alive = alive[tokens[starts[alive] + offset] == token]
        if not len(alive):
            break
        shared[alive] += 1
    return shared


def drop_leading(tokens: TokenIds, lengths: TokenIds, count: TokenIds) -> TokenIds:
    """Return the packed rows' tokens without the first ``count[n]`` tokens of row ``n``."""
    starts = np.cumsum(lengths) - lengths
    offsets = np.arange(len(tokens), dtype=np.int64) - np.repeat(starts, lengths)
    return tokens[offsets >= np.repeat(count, lengths)]
