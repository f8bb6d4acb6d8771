"""Tensors that hold the kernels of several projections, as the checkpoints of Phi-3 and Phi-4 do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from model.architecture.stored.tensors import Tensor, Tensors

Arrays = dict[str, npt.NDArray[Any]]

Fused = Mapping[str, Mapping[str, int]]
"""The tensors for several projections, and of each the projections with their rows, in order."""


class _Rows:
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


def separated(tensors: Tensors, fused: Fused) -> Tensors:
    """Return the tensors of a checkpoint with a tensor for each projection, in place of those for several.

    A tensor of another size stays as it is, and is an unknown one.
    """
    found = dict(tensors)
    for name, parts in fused.items():
        if name in tensors and tensors[name].get_shape()[0] == sum(parts.values()):
            tensor, first = found.pop(name), 0
            for part, rows in parts.items():
                found[part] = _Rows(tensor, first, first + rows)
                first += rows
    return found


def joined(arrays: Arrays, fused: Fused) -> Arrays:
    """Return weights by name with one for several projections, in place of one for each."""
    found = dict(arrays)
    for name, parts in fused.items():
        found[name] = np.concatenate([found.pop(part) for part in parts])
    return found
