"""What a format of stored weights is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from model.architecture.stored.tensors import Tensors

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

PLAIN_DTYPES = ("BF16", "F16", "F32")

ROWS_TOGETHER = 8
"""Rows of quantised weights are computed in multiples of this number, since some formats have so many in a word."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stored tensor that a weight is computed from."""

    name: str
    shapes: tuple[Shape, ...]  # that it may have
    dtypes: tuple[str, ...]  # that it may have
    by_rows: bool = False  # its rows are the weight's, so it is never read whole


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """How one weight is stored."""

    parts: tuple[Part, ...]  # at most one of them is read by rows, and that is the last one
    decode: Callable[[Mapping[str, Array], slice], Array]
    """Takes the parts by name and a range of rows; returns these rows of the weight. The range begins and ends at
    multiples of :data:`ROWS_TOGETHER`, or at the end of the weight. Of a part that is read by rows, it gets just these
    rows. Raises :class:`model.architecture.stored.tensors.WeightsError`.
    """


class Encoding(Protocol):
    """A format of weights, as a ``quantization_config`` describes it."""

    def weight(self, name: str, shape: Shape, tensors: Tensors) -> StoredWeight | None:
        """Return how a weight [out, in] is stored, or None for one that should be stored plain.

        name: HuggingFace's, which ends in ``.weight``. No plain tensor has it. Raises
        :class:`model.architecture.stored.tensors.WeightsError`.
        """

    def unused(self, name: str, tensors: Tensors) -> bool:
        """Return whether a tensor that is no part of any weight changes nothing, such as a scale of activations."""
        return False


def stored(name: str, shape: Shape, tensors: Tensors, encoding: Encoding | None) -> StoredWeight:
    """Return how a weight is stored: as it is, unless the format of the checkpoint has it in other numbers."""
    quantised = None
    if encoding is not None and len(shape) == 2 and not is_plain(name, tensors):
        quantised = encoding.weight(name, shape, tensors)
    return quantised or StoredWeight((Part(name, (shape,), PLAIN_DTYPES, by_rows=True),), lambda parts, _: parts[name])


def is_plain(name: str, tensors: Tensors) -> bool:
    """Return whether a tensor of this name is stored in floating point of 16 or 32 bits."""
    return name in tensors and tensors[name].get_dtype() in PLAIN_DTYPES
