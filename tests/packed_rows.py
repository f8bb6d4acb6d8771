"""Unpack rows, for comparison with what was packed."""

from __future__ import annotations

import numpy as np

from scoring.layout import Rows, TokenIds


def own_tokens(rows: Rows) -> list[TokenIds]:
    """Return the tokens of each row, without its prefix."""
    return np.split(rows.tokens, np.cumsum(rows.lengths))[: len(rows)]


def whole_sequences(prefix: TokenIds, rows: Rows) -> list[list[int]]:
    """Return the token ids of each sequence, prefix included."""
    return [
        [*prefix[:end].tolist(), *own.tolist()] for end, own in zip(rows.prefix_ends, own_tokens(rows), strict=True)
    ]
