"""Tensors that hold the kernels of several projections, as the checkpoints of Phi-3 and Phi-4 do."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from model.architecture.stored.tensors import Tensor, Tensors, WeightsError

Arrays = dict[str, npt.NDArray[Any]]

Fused = Mapping[str, Mapping[str, int]]
"""The tensors for several projections, and of each the projections with their rows, in order."""


class RowsOf:
    """Some rows of a tensor, as a tensor."""

    def __init__(self, tensor: Tensor, first: int, last: int) -> None:
        self._tensor = tensor
        self._first, self._last = first, last

    def get_shape(self) -> list[int]:
        return [self._last - self._first, *self._tensor.get_shape()[1:]]

    def get_dtype(self) -> str:
        return self._tensor.get_dtype()

    def __getitem__(self, rows: Any) -> npt.NDArray[Any]:
        start, stop, _ = (slice(None) if rows is ... else rows).indices(self._last - self._first)
        return self._tensor[self._first + start : self._first + stop]


def separated(tensors: Tensors, fused: Fused, width: int) -> Tensors:
    """Return the tensors of a checkpoint with a tensor for each projection, in place of those for several.

    width: the columns of each tensor. Raises :class:`model.architecture.stored.tensors.WeightsError`.
    """
    found, faults = dict(tensors), []
    for name, parts in fused.items():
        faults += [f"unknown: {part}" for part in parts if part in tensors]
        tensor, wanted = found.pop(name, None), [sum(parts.values()), width]
        if tensor is None:
            faults.append(f"missing: {name}")
        elif tensor.get_shape() != wanted:
            faults.append(f"shape of {name}: {tensor.get_shape()} in the file, {wanted} by config.json")
        else:
            found |= rows_of(tensor, parts)
    if faults:
        raise WeightsError("weights do not fit:\n  " + "\n  ".join(faults[:20]))
    return found


def rows_of(tensor: Tensor, parts: Mapping[str, int]) -> dict[str, Tensor]:
    """Return the rows of a tensor that are those of each part. parts: how many rows each has, in order."""
    ends = list(itertools.accumulate(parts.values()))
    return {part: RowsOf(tensor, end - parts[part], end) for part, end in zip(parts, ends, strict=True)}


def joined(arrays: Arrays, fused: Fused) -> Arrays:
    """Return weights by name with one for several projections, in place of one for each."""
    found = dict(arrays)
    for name, parts in fused.items():
        found[name] = np.concatenate([found.pop(part) for part in parts])
    return found
