"""The weights of a checkpoint by HuggingFace's names, whichever way they are stored."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import EllipsisType

import numpy as np
from safetensors import SafetensorError

from model.architecture.stored.encoding import ROWS_TOGETHER, Array, Encoding, Part, Shape, StoredWeight, stored
from model.architecture.stored.fused import Fused, RowNumbers, rows_in_all, weight_of_rows
from model.architecture.stored.tensors import Tensors, WeightsError, stored_bytes

READ_BYTES = 2**24
"""Bytes of a plain tensor that are read at a time, so that a large embedding is not in memory beside its copy."""

DECODED_BYTES = 2**20
"""Bytes of a quantised weight in float32 that are computed at a time."""


class StoredCheckpoint:
    """The tensors of a checkpoint, and the fingerprint of those that were read."""

    def __init__(
        self,
        directory: Path,
        tensors: Tensors,
        encoding: Encoding | None,
        shapes: Mapping[str, Shape],
        fused: Fused,
    ) -> None:
        """shapes: of all weights that the decoder wants, by HuggingFace's names; fused: the quantised weights that hold
        several of these. Nothing is read.
        """
        self._directory = directory
        self._tensors = tensors
        self._encoding = encoding
        self._shapes = shapes
        self._digest = hashlib.sha256()
        of_several = {part: weight for name, parts in fused.items() for part, weight in self._parts_of(name, parts)}
        self._weights = {
            name: of_several.get(name) or stored(name, shape, tensors, encoding) for name, shape in shapes.items()
        }
        self._parts = {part.name: part for weight in self._weights.values() for part in weight.parts}

    @property
    def bytes(self) -> int:
        """Bytes of all tensors that are read."""
        return sum(stored_bytes(self._tensors[part.name]) for weight in self._weights.values() for part in weight.parts)

    @property
    def fingerprint(self) -> str:
        """A sha256 over the names, dtypes, shapes and bytes of what has been read."""
        return self._digest.hexdigest()

    def check(self, ignored: Callable[[str], bool]) -> None:
        """Raise a WeightsError with all faults: tensors that are missing, unknown, or of a wrong shape or dtype.

        ignored: says of a tensor that no weight has, whether it may be there.
        """
        tensors = self._tensors
        faults = [f"missing: {name}" for name in self._parts if name not in tensors]
        faults += [f"unknown: {name}" for name in sorted(tensors) if not (self._uses(name) or ignored(name))]
        faults += [line for part in self._parts.values() if part.name in tensors for line in self._faults(part)]
        if faults:
            shown = faults[:20] + ([f"and {len(faults) - 20} more"] if len(faults) > 20 else [])
            raise WeightsError(f"weights in {self._directory} do not fit:\n  " + "\n  ".join(shown))

    def rows(self, name: str, on_bytes: Callable[[int], None]) -> Iterator[tuple[slice, Array]]:
        """Yield the rows of a weight, a bounded number at a time, behind their range.

        on_bytes: called with the number of bytes that were read.
        """
        weight, shape = self._weights[name], self._shapes[name]
        streamed = [part.name for part in weight.parts if part.by_rows]
        found = {part.name: self._read(part.name, ..., on_bytes) for part in weight.parts if not part.by_rows}
        count = self._rows_at_a_time(name)
        for start in range(0, shape[0], count):
            rows = slice(start, min(start + count, shape[0]))
            yield rows, weight.decode(found | {part: self._read(part, rows, on_bytes) for part in streamed}, rows)

    def _parts_of(self, name: str, parts: Mapping[str, RowNumbers]) -> Iterator[tuple[str, StoredWeight]]:
        """Yield how the weights are stored that a quantised one holds, by their names."""
        shape = rows_in_all(parts), *self._shapes[next(iter(parts))][1:]
        whole = stored(name, shape, self._tensors, self._encoding)
        for part, numbers in parts.items():
            yield part, weight_of_rows(whole, shape[0], numbers)

    def _uses(self, name: str) -> bool:
        return name in self._parts or (self._encoding is not None and self._encoding.unused(name, self._tensors))

    def _faults(self, part: Part) -> Iterator[str]:
        tensor = self._tensors[part.name]
        found, dtype = tuple(tensor.get_shape()), tensor.get_dtype()
        if found not in part.shapes:
            wanted = " or ".join(str(list(shape)) for shape in part.shapes)
            yield f"shape of {part.name}: {list(found)} in the file, {wanted} by config.json"
        if dtype not in part.dtypes:
            yield f"dtype of {part.name}: {dtype} is not one of {', '.join(part.dtypes)}"

    def _rows_at_a_time(self, name: str) -> int:
        shape = self._shapes[name]
        if len(self._weights[name].parts) == 1:
            return max(1, READ_BYTES * shape[0] // max(1, stored_bytes(self._tensors[name])))
        row_bytes = 4 * math.prod(shape[1:])
        return max(1, DECODED_BYTES // row_bytes // ROWS_TOGETHER) * ROWS_TOGETHER

    def _read(self, name: str, rows: slice | EllipsisType, on_bytes: Callable[[int], None]) -> Array:
        """Read some rows of a tensor, or all of it, for the fingerprint, too."""
        tensor = self._tensors[name]
        try:
            part: Array = np.asarray(tensor[rows])
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{name} in {self._directory} can't be read: {error}") from error
        if isinstance(rows, EllipsisType) or rows.start == 0:
            self._digest.update(f"{name} {part.dtype} {tuple(tensor.get_shape())}\n".encode())
        self._digest.update(part.reshape(-1).view(np.uint8).data)
        on_bytes(part.nbytes)
        return part
