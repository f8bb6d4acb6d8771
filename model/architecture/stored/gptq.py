"""Weights of GPTQ: ``quant_method`` ``gptq``, of four or eight bits, in groups of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from model.architecture.configuration_reader import ConfigurationReader, UnsupportedModelError
from model.architecture.stored.encoding import PLAIN_DTYPES, Array, Encoding, Part, Shape, StoredWeight
from model.architecture.stored.numbers import groups_of, scaled, unpacked
from model.architecture.stored.tensors import Tensors

_ZEROS_OF = {"gptq": 1, "gptq_v2": 0}
"""What is added to a stored zero point, by the format of the checkpoint."""


@dataclass(frozen=True, slots=True)
class Gptq(Encoding):
    """Numbers in words of 32 bits along the inputs, minus a zero point, times a scale."""

    bits: int
    group: int | None  # inputs of a group; None: all of them
    added_to_zeros: int

    @classmethod
    def of(cls, fields: ConfigurationReader) -> Gptq:
        """Read a ``quantization_config``. Raises UnsupportedModelError."""
        for field, only in (("is_marlin_format", False), ("pack_dtype", "int32"), ("rotation", None)):
            fields.require(field, only)
        overrides = fields.section("dynamic").values
        if any(not str(module).startswith("-") for module in overrides):  # those with a minus are stored plain
            raise UnsupportedModelError(f"{fields.named('dynamic')} is not implemented where modules differ")
        named = "checkpoint_format" if "checkpoint_format" in fields else "format"
        found = fields.get(named) or "gptq"
        if found not in _ZEROS_OF:
            known = ", ".join(_ZEROS_OF)
            raise UnsupportedModelError(f"{fields.named(named)} {found!r} is not implemented, only {known}")
        return cls(bits_of(fields, (4, 8)), group_of(fields), _ZEROS_OF[found])

    def weight(self, name: str, shape: Shape, tensors: Tensors) -> StoredWeight | None:
        module = name.removesuffix("weight")
        words, zeros, scales, order = (module + part for part in ("qweight", "qzeros", "scales", "g_idx"))
        outputs, inputs = shape
        size = self.group or inputs
        groups, in_a_word = -(-inputs // size), 32 // self.bits
        parts = [
            Part(zeros, ((groups, -(-outputs // in_a_word)),), ("I32",)),
            Part(scales, ((groups, outputs),), PLAIN_DTYPES),
            Part(words, ((inputs // in_a_word, outputs),), ("I32",)),
        ]
        if order in tensors:
            parts.append(Part(order, ((inputs,),), ("I32",)))

        def decode(found: Mapping[str, Array], rows: slice) -> Array:
            group = groups_of(inputs, size, found.get(order))
            numbers = unpacked(found[words][:, rows], self.bits, axis=0)
            stored = found[zeros][:, rows.start // in_a_word : -(-rows.stop // in_a_word)]
            subtracted = unpacked(stored, self.bits, axis=1)[:, : numbers.shape[1]] + np.uint8(self.added_to_zeros)
            subtracted &= np.uint8(2**self.bits - 1)
            of_groups = found[scales][:, rows].astype(np.float32)
            return scaled(numbers.T, of_groups.T[:, group], subtracted.T[:, group])

        return StoredWeight(tuple(parts), decode)

    def unused(self, name: str, tensors: Tensors) -> bool:
        """Say so of the biases that older tools wrote for all modules, which are zero."""
        if not name.endswith(".bias") or f"{name.removesuffix('bias')}qweight" not in tensors:
            return False
        return not tensors[name][...].any()


def bits_of(fields: ConfigurationReader, known: tuple[int, ...]) -> int:
    """Return the bits of a number. Raises UnsupportedModelError."""
    bits = fields.integer("bits")
    if bits not in known:
        only = " and ".join(map(str, known))
        raise UnsupportedModelError(f"{fields.named('bits')} {bits} is not implemented, only {only}")
    return bits


def group_of(fields: ConfigurationReader) -> int | None:
    """Return the inputs of a group, or None where all of them are one group. Raises UnsupportedModelError."""
    return None if fields.get("group_size") == -1 else fields.integer("group_size")
