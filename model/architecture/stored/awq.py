"""Weights of AWQ: ``quant_method`` ``awq``, of four bits, in the order that its ``gemm`` kernels read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from model.architecture.configuration_reader import ConfigurationReader, UnsupportedModelError
from model.architecture.stored.encoding import PLAIN_DTYPES, Array, Encoding, Part, Shape, StoredWeight
from model.architecture.stored.gptq import bits_of, group_of
from model.architecture.stored.numbers import groups_of, scaled, unpacked
from model.architecture.stored.tensors import Tensors

_IN_A_WORD = 8


@dataclass(frozen=True, slots=True)
class Awq(Encoding):
    """Numbers in words of 32 bits along the outputs, minus a zero point, times a scale."""

    group: int | None  # inputs of a group; None: all of them

    @classmethod
    def of(cls, fields: ConfigurationReader) -> Awq:
        """Read a ``quantization_config``. Raises UnsupportedModelError."""
        fields.require("zero_point", True)
        if fields.get("backend") == "llm-awq":
            raise UnsupportedModelError(f"{fields.named('backend')} 'llm-awq' is not implemented")
        for order in ("version", "format"):
            if str(fields.get(order) or "gemm").lower() != "gemm":
                raise UnsupportedModelError(
                    f"{fields.named(order)} {fields.get(order)!r} is not implemented, only 'gemm'"
                )
        bits_of(fields, (4,))
        return cls(group_of(fields))

    def weight(self, name: str, shape: Shape, tensors: Tensors) -> StoredWeight | None:
        module = name.removesuffix("weight")
        words, zeros, scales = (module + part for part in ("qweight", "qzeros", "scales"))
        outputs, inputs = shape
        size = self.group or inputs
        groups = -(-inputs // size)
        parts = (
            Part(zeros, ((groups, outputs // _IN_A_WORD),), ("I32",)),
            Part(scales, ((groups, outputs),), PLAIN_DTYPES),
            Part(words, ((inputs, outputs // _IN_A_WORD),), ("I32",)),
        )

        def decode(found: Mapping[str, Array], rows: slice) -> Array:
            group = groups_of(inputs, size)
            numbers, subtracted = _in_order(found[words], rows), _in_order(found[zeros], rows)
            of_groups = found[scales][:, rows].astype(np.float32)
            return scaled(numbers, of_groups[group], subtracted[group]).T

        return StoredWeight(parts, decode)


def _in_order(words: Array, outputs: slice) -> Array:
    """Return the numbers of these outputs, whose range begins and ends between words.

    A word holds four even outputs, and then the four odd ones behind them.
    """
    numbers = unpacked(words[:, outputs.start // _IN_A_WORD : outputs.stop // _IN_A_WORD], 4, axis=1)
    return numbers.reshape(len(words), -1, 2, _IN_A_WORD // 2).swapaxes(2, 3).reshape(numbers.shape)
