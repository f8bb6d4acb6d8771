"""Weights in FP8: ``quant_method`` ``fp8``, with a scale for each block, each output, or the whole weight.

NVIDIA's Model Optimizer calls it ``modelopt``, and says the rest in ``quant_algo``.
"""

from __future__ import annotations

from dataclasses import dataclass

from model.architecture.configuration_reader import ConfigurationReader, UnsupportedModelError
from model.architecture.stored.encoding import Encoding, Shape, StoredWeight
from model.architecture.stored.numbers import Block, block_scales, scaled_weight
from model.architecture.stored.tensors import FLOAT8, Tensors

ACTIVATION_SCALES = (".input_scale", ".activation_scale", ".output_scale", ".input_zero_point")
"""With these, other engines quantise activations. Here activations are not quantised."""

_CACHE_SCALES = (".k_scale", ".v_scale")
"""With these, other engines quantise the keys and values of prefixes, which are not quantised here either."""

_DEFAULT_BLOCK = [128, 128]

_OPTIMIZED = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN")
"""The values of ``quant_algo`` that are read: with a scale for the whole weight, and for each output."""


@dataclass(frozen=True, slots=True)
class Fp8(Encoding):
    """Numbers of eight bits (E4M3), each multiplied with a scale.

    HuggingFace's own checkpoints call the scale ``weight_scale_inv``; those of AutoFP8 and FBGEMM, ``weight_scale``.
    """

    block: Block  # that has one scale, where the file has scales of blocks

    @classmethod
    def of(cls, fields: ConfigurationReader) -> Fp8:
        """Read a ``quantization_config``. Raises UnsupportedModelError."""
        for field, only in (("fmt", "e4m3"), ("kv_cache_scheme", None), ("modules_to_convert", None)):
            fields.require(field, only)
        return cls(block_of(fields, "weight_block_size", _DEFAULT_BLOCK))

    @classmethod
    def of_model_optimizer(cls, fields: ConfigurationReader) -> Fp8:
        """Read a ``quantization_config`` of the Model Optimizer. Raises UnsupportedModelError."""
        found = fields.get("quant_algo")
        if str(found).upper() not in _OPTIMIZED:
            only = " and ".join(_OPTIMIZED)
            raise UnsupportedModelError(f"{fields.named('quant_algo')} {found!r} is not implemented, only {only}")
        return cls((_DEFAULT_BLOCK[0], _DEFAULT_BLOCK[1]))

    def weight(self, name: str, shape: Shape, tensors: Tensors) -> StoredWeight | None:
        scale = f"{name}_scale" if f"{name}_scale" in tensors else f"{name}_scale_inv"
        outputs = shape[0]
        shapes = (), (1,), (1, 1), (outputs,), (outputs, 1), block_scales(shape, self.block)
        return scaled_weight(name, FLOAT8, shape, scale, shapes, self.block)

    def unused(self, name: str, tensors: Tensors) -> bool:
        return name.endswith((*ACTIVATION_SCALES, *_CACHE_SCALES))


def block_of(fields: ConfigurationReader, name: str, default: list[int]) -> Block:
    """Return a field that holds the outputs and inputs of a block. Raises UnsupportedModelError."""
    block = fields.get(name) or default
    if not isinstance(block, list) or len(block) != 2 or any(type(size) is not int or size < 1 for size in block):
        raise UnsupportedModelError(f"{fields.named(name)} must be two integers from 1 up, not {block!r}")
    return block[0], block[1]
