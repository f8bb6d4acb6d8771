"""Weights in MXFP4: ``quant_method`` ``mxfp4``, the format of gpt-oss's experts.

The numbers have four bits (E2M1), and 32 of them share a power of two (OCP Microscaling Formats, version 1.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from model.architecture.configuration_reader import ConfigurationReader
from model.architecture.stored.encoding import Array, Encoding, Part, Shape, StoredWeight
from model.architecture.stored.tensors import Tensors

_TOGETHER = 32
"""Inputs that have one scale."""

_HALF = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
_NUMBERS = np.concatenate([_HALF, -_HALF])
_OF_BYTES = np.stack(np.broadcast_arrays(_NUMBERS, _NUMBERS[:, None]), axis=-1).reshape(256, 2).view(np.uint64)[:, 0]
"""The two numbers of each byte, that of the low bits first, as one, so that looking it up is fast."""

_SCALES = np.append(np.exp2(np.arange(-127, 128, dtype=np.float32)), np.float32(np.nan))
"""The value of each byte (E8M0): powers of two, and the last one is no number."""


@dataclass(frozen=True, slots=True)
class Mxfp4(Encoding):
    """Numbers of four bits, two in a byte, and for each 32 of them a byte that is the exponent of their scale."""

    @classmethod
    def of(cls, fields: ConfigurationReader) -> Mxfp4:
        """Read a ``quantization_config``. Which modules are quantised is seen from the tensors."""
        return cls()

    def weight(self, name: str, shape: Shape, tensors: Tensors) -> StoredWeight | None:
        outputs, inputs = shape
        blocks, scales, groups = f"{name}_blocks", f"{name}_scales", -(-inputs // _TOGETHER)
        parts = (
            Part(scales, ((outputs, groups),), ("U8",)),
            Part(blocks, ((outputs, groups, _TOGETHER // 2),), ("U8",), by_rows=True),
        )

        def decode(found: Mapping[str, Array], rows: slice) -> Array:
            numbers = _OF_BYTES.take(found[blocks]).view(np.float32).reshape(-1, groups, _TOGETHER)
            numbers *= _SCALES[found[scales][rows]][..., None]
            weights: Array = numbers.reshape(len(numbers), -1)[:, :inputs]
            return weights

        return StoredWeight(parts, decode)
