"""What a program must return, and how far its outputs are from that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from jax.typing import ArrayLike
from numpy.random import Generator

from model.checks.numpy_decoder import Floats, ServedDecoder, final_normed
from scoring.layout import TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedOutput:
    """Rows of an output as NumPy computes them."""

    rows: npt.NDArray[Any]  # [n, ...]
    indices: TokenIds | None = None  # which rows of the output they are, int32 [n]; None: the first
    exact: bool = False  # nothing is computed: numbers are only moved
    min_scale: float = 0.0  # errors are relative to this root mean square at least, for rows that may be all near zero
    states_of: ServedDecoder | None = None  # rows are final states behind all layers, compared after the final norm
    shaken: Callable[[], Floats] | None = None
    """Computes the rows with larger rounding errors."""
    of_median: bool = False
    """Whether the median row counts: where rounding errors decide which experts a token passes, a right program may be
    far off in some rows."""

    def error_of(self, output: ArrayLike) -> float:
        """Return the largest error of a row, or that of the median row, relative to the row; infinite where a number
        is not one.
        """
        expected = self.rows.reshape(len(self.rows), -1).astype(np.float32)
        indices = slice(len(expected)) if self.indices is None else self.indices
        given = np.asarray(output)[indices].reshape(expected.shape).astype(np.float32)
        if self.states_of is not None:
            expected, given = (final_normed(self.states_of, states) for states in (expected, given))
        with np.errstate(invalid="ignore"):
            difference = np.where(given == expected, np.float32(0), given - expected)
        finite = np.where(np.isfinite(expected), expected, np.float32(0))
        scale = np.maximum(_root_mean_square(finite), max(self.min_scale, float(np.finfo(np.float32).tiny)))
        errors = _root_mean_square(difference) / scale
        if not np.isfinite(errors).all():
            return np.inf
        return float(np.median(errors) if self.of_median else errors.max())


Case = tuple[tuple[ArrayLike, ...], tuple[ExpectedOutput, ...]]
"""The arguments of a program, and the outputs that it must have."""

D = TypeVar("D", contravariant=True)


class Answering(Protocol[D]):
    """What a program of a decoder is compiled for, as far as its check is concerned."""

    def known_answer(self, decoder: D, random: Generator) -> Case | None:
        """Return what the program is run on, and what it must return; None if only whole prompts can tell."""


def _root_mean_square(rows: Floats) -> Floats:
    found: Floats = np.sqrt(np.mean(rows * rows, axis=1))
    return found
