"""From stored numbers to weights: unpacking, groups, scales and zero points."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import numpy.typing as npt

from model.architecture.stored.encoding import PLAIN_DTYPES, Array, Part, Shape, StoredWeight
from model.architecture.stored.tensors import WeightsError

Floats = npt.NDArray[np.float32]
_FLOAT8 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
"""The value of each byte. Looking it up is several times as fast as converting it."""

Block = tuple[int, int]
"""Outputs and inputs that have one scale."""


def unpacked(words: Array, bits: int, axis: int) -> npt.NDArray[np.uint8]:
    """Return the unsigned numbers of so many bits that stand in words of 32 bits, the lowest bits first.

    bits: 4 or 8. axis: the axis along which neighbouring numbers are in one word, 0 or 1.
    """
    stored = np.ascontiguousarray(words if axis else words.T).view(np.uint8)
    if bits == 4:
        stored = np.stack([stored & 15, stored >> 4], axis=-1).reshape(len(stored), -1)
    return stored if axis else stored.T


def groups_of(inputs: int, size: int, order: Array | None = None) -> npt.NDArray[np.intp]:
    """Return the group that each input has its scale from.

    size: inputs of one group. order: the group of each input, where the file has it. Raises WeightsError.
    """
    if order is None:
        return np.arange(inputs) // size
    if order.min() < 0 or order.max() >= -(-inputs // size):
        raise WeightsError(f"an input belongs to group {order.max()} or {order.min()}, which does not exist")
    return order.astype(np.intp)


def scaled(numbers: Array, scales: Floats, zeros: Array | None = None) -> Floats:
    """Return ``(numbers - zeros) * scales``, computed in float32. All have shapes that NumPy broadcasts."""
    is_float8 = numbers.dtype == ml_dtypes.float8_e4m3fn
    found = _FLOAT8.take(numbers.view(np.uint8)) if is_float8 else numbers.astype(np.float32)
    if zeros is not None:
        found -= zeros.astype(np.float32)
    found *= scales
    return found


def block_scales(shape: Shape, block: Block) -> Shape:
    """Return the shape of the scales of all blocks of a weight. The last blocks may be smaller."""
    return -(-shape[0] // block[0]), -(-shape[1] // block[1])


def scaled_weight(
    name: str,
    dtype: str,
    shape: Shape,
    scale: str,
    shapes: tuple[Shape, ...],
    block: Block = (1, 1),
    zeros: str | None = None,
) -> StoredWeight:
    """Return how a weight is stored whose numbers have the weight's shape.

    The shape of the scales, of which the file has one of ``shapes``, says what each of them is for: for the whole
    weight, for an output, or for a block. The tensor named by ``zeros``, of the same shape, holds what is subtracted
    from the numbers.
    """

    def decode(parts: Mapping[str, Array], rows: slice) -> Array:
        subtracted = None if zeros is None else spread(parts[zeros], shape, block, rows)
        return scaled(parts[name], spread(parts[scale], shape, block, rows), subtracted)

    found = [Part(scale, shapes, PLAIN_DTYPES)]
    if zeros is not None:
        found.append(Part(zeros, shapes, ("I8",)))
    return StoredWeight((*found, Part(name, (shape,), (dtype,), by_rows=True)), decode)


def spread(scales: Array, shape: Shape, block: Block, rows: slice) -> Floats:
    """Return what is for each number of these rows, in a shape that NumPy broadcasts."""
    table = scales.reshape(-1, 1) if scales.ndim < 2 else scales
    if table.shape[0] > 1:
        outputs = np.arange(rows.start, rows.stop)
        table = table[outputs if table.shape[0] == shape[0] else outputs // block[0]]
    table = table.astype(np.float32)  # before it has a value for each number
    return table if table.shape[1] == 1 else table[:, groups_of(shape[1], block[1])]
