"""Tensors that hold the kernels of several projections: those of Phi-3 and 4, Qwen3.5, Qwen3-Next and Granite 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from model.architecture.stored.encoding import ROWS_TOGETHER, Array, Shape, StoredWeight
from model.architecture.stored.tensors import Tensor, Tensors, WeightsError

RowNumbers = npt.NDArray[np.int64]

Fused = Mapping[str, Mapping[str, RowNumbers]]
"""The tensors for several projections, and of each the projections with the numbers of their rows. Each row is one
projection's."""


def one_after_another(parts: Mapping[str, int]) -> dict[str, RowNumbers]:
    """Return the rows of projections that stand one after another. parts: how many rows each has, in order."""
    stops = np.cumsum(list(parts.values()))
    return {name: np.arange(stop - parts[name], stop) for name, stop in zip(parts, stops.tolist(), strict=True)}


class RowsOf:
    """Some rows of a tensor, as a tensor."""

    def __init__(self, tensor: Tensor, rows: RowNumbers) -> None:
        self._tensor = tensor
        self._rows = rows

    def get_shape(self) -> list[int]:
        return [len(self._rows), *self._tensor.get_shape()[1:]]

    def get_dtype(self) -> str:
        return self._tensor.get_dtype()

    def __getitem__(self, rows: Any) -> npt.NDArray[Any]:
        wanted = self._rows[slice(None) if rows is ... else rows]
        if not len(wanted):
            return self._tensor[0:0]
        first, stop = int(wanted.min()), int(wanted.max()) + 1
        found = self._tensor[first:stop]
        return found if np.array_equal(wanted, np.arange(first, stop)) else found[wanted - first]


def separated(tensors: Tensors, fused: Fused, shapes: Mapping[str, Shape]) -> Tensors:
    """Return the tensors of a checkpoint with a tensor for each projection, in place of those for several.

    shapes: of the projections. Raises :class:`model.architecture.stored.tensors.WeightsError`.
    """
    found, faults = dict(tensors), []
    for name, parts in fused.items():
        tensor, wanted = found.pop(name, None), [rows_in_all(parts), *shapes[next(iter(parts))][1:]]
        faults += [f"unknown: {part}" for part in parts if part in found]
        if tensor is None:
            faults.append(f"missing: {name}")
        elif tensor.get_shape() != wanted:
            faults.append(f"shape of {name}: {tensor.get_shape()} in the file, {wanted} by config.json")
        else:
            found |= rows_of(tensor, parts)
    if faults:
        raise WeightsError("weights do not fit:\n  " + "\n  ".join(faults[:20]))
    return found


def rows_in_all(parts: Mapping[str, RowNumbers]) -> int:
    """Return how many rows the tensor of these parts has."""
    return sum(map(len, parts.values()))


def rows_of(tensor: Tensor, parts: Mapping[str, RowNumbers]) -> dict[str, Tensor]:
    """Return the rows of a tensor that are those of each part, by the names of parts."""
    return {part: RowsOf(tensor, rows) for part, rows in parts.items()}


def weight_of_rows(whole: StoredWeight, count: int, numbers: RowNumbers) -> StoredWeight:
    """Return how a weight is stored that is some rows of a quantised one, which has so many rows.

    What the quantised one is computed from is read at once, and for each of its weights again.
    """
    by_rows = {part.name for part in whole.parts if part.by_rows}

    def decode(found: Mapping[str, Array], rows: slice) -> Array:
        wanted = numbers[rows]
        first = int(wanted.min()) // ROWS_TOGETHER * ROWS_TOGETHER
        span = slice(first, min(count, -(-(int(wanted.max()) + 1) // ROWS_TOGETHER) * ROWS_TOGETHER))
        parts = {name: part[span] if name in by_rows else part for name, part in found.items()}
        return whole.decode(parts, span)[wanted - first]

    return StoredWeight(tuple(replace(part, by_rows=False) for part in whole.parts), decode)
