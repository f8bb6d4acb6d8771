"""What the cases of known answers are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from model.architecture.config import DecoderConfig
from model.checks.numpy_decoder import Floats, Mask, ReferenceAttention, ServedDecoder, attend
from scoring.layout import TokenIds

DISTINCT_ROWS = 17
"""Rows of a product that differ. They repeat in turn, so NumPy computes few, and all rows of a program are checked."""
MAX_QUERIES = 256  # queries of an attention program that are checked, evenly spaced: all of a step of the usual size
MAX_BLOCKS = 3  # blocks of a random prefix, and blocks of a pool that are compared after one was stored
HEAD_STATES = 5  # distinct rows of heads, whose vocabulary may be large
QUERY_SCALE = 2.0
"""Scale of random queries, so that a few keys matter more than others, and a wrong set of visible keys shows."""


def normal(random: Generator, *shape: int) -> Floats:
    return random.standard_normal(shape, np.float32)


def in_turn(rows: int, distinct: int = DISTINCT_ROWS) -> TokenIds:
    """Return which of the distinct rows each row repeats."""
    return np.arange(rows, dtype=np.int32) % distinct


def drawn_rows(config: DecoderConfig) -> int:
    """Return how many rows are drawn, of which those are taken whose experts are chosen most clearly."""
    return DISTINCT_ROWS if config.mixture is None else 4 * DISTINCT_ROWS


def evenly_spaced(rows: int) -> TokenIds:
    """Return which rows are checked: the first one, the last one, and some between."""
    return np.unique(np.linspace(0, rows - 1, min(rows, MAX_QUERIES)).astype(np.int32))


def pool_dtype(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the array as a pool holds it: see :func:`model.layers.linear.to_pool_dtype`."""
    return array.view(dtype)


def head_states(width: int) -> Floats:
    """Return the final states of all heads' cases, the same so that NumPy computes the whole vocabulary once."""
    return normal(np.random.default_rng(0), HEAD_STATES, width)


def random_queries(random: Generator, decoder: ServedDecoder, rows: int) -> npt.NDArray[Any]:
    """Return queries [rows, H, D] in the weights' dtype. Where scores have a cap, many would be over it."""
    config = decoder.config
    scale = max(QUERY_SCALE, config.caps.scores or 0.0)
    return (scale * normal(random, rows, config.query_heads, config.head_dim)).astype(decoder.dtype)


def random_key_values(
    random: Generator, decoder: ServedDecoder, tokens: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return keys and values, [tokens, K, D] each, in the weights' dtype."""
    shape = tokens, decoder.config.kv_heads, decoder.config.head_dim
    return normal(random, *shape).astype(decoder.dtype), normal(random, *shape).astype(decoder.dtype)


def attended(
    decoder: ServedDecoder,
    queries: npt.NDArray[Any],
    keys: npt.NDArray[Any],
    values: npt.NDArray[Any],
    visible: Mask,
) -> ReferenceAttention:
    """Return NumPy's attention of arrays in the weights' dtype; visible: which keys each query sees, [Q, S]."""
    one, two, three = (part.astype(np.float32) for part in (queries, keys, values))
    return attend(one, two, three, visible, decoder.dtype, decoder.config.caps.scores)
