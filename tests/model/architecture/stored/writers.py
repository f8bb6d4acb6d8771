"""Quantised checkpoints, written by the public rules of each format, beside the weights that they stand for.

Numbers are packed one by one, and weights follow from the numbers that were packed: nothing here unpacks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from model.architecture.config import DecoderConfig
from tests.model.checkpoints import EVERY, Tensors, tensors, write

Array = np.ndarray
Quantise = Callable[[str, Array], tuple[Tensors, Array]]
"""Takes the name of a module and its weight; returns what is stored and the weight that it stands for."""

FP8_LARGEST = 448.0
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight outputs is in each place of a word of AWQ, the lowest bits first."""


@dataclass(frozen=True, slots=True)
class Case:
    """A quantised checkpoint."""

    config: dict[str, Any]  # ``quantization_config``
    quantise: Quantise
    modules: str = r"model\.layers\..*_proj"  # which modules are quantised, as a regular expression
    model: str = "tied"  # a key of EVERY


def write_quantised(
    directory: Path, case: Case, config: DecoderConfig | None = None, seed: int = 7
) -> tuple[DecoderConfig, Tensors]:
    """Write a checkpoint, and return its configuration and all weights in float32. config: another than the case's."""
    config = config or EVERY[case.model]
    stored, weights = Tensors(), tensors(config, seed)
    for name, weight in weights.items():
        module = name.removesuffix(".weight")
        if re.fullmatch(case.modules, module):
            parts, weights[name] = case.quantise(module, weight)
            stored |= parts
        else:
            stored[name] = weight
    write(directory, config, stored)
    fields = json.loads((directory / "config.json").read_text()) | {"quantization_config": case.config}
    (directory / "config.json").write_text(json.dumps(fields))
    return config, weights


def blocks(weight: Array, block: tuple[int, int]) -> list[tuple[int, int, tuple[slice, slice]]]:
    """The blocks of a weight, by their numbers."""
    rows, columns = (range(-(-size // of_block)) for size, of_block in zip(weight.shape, block, strict=True))
    return [
        (i, j, (slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1])))
        for i in rows
        for j in columns
    ]


def fp8(
    block: tuple[int, int] | None, suffix: str, shape: Callable[[Array], Array] = lambda scales: scales
) -> Quantise:
    """FP8 with a scale for each block; None: for the whole weight. suffix: of the scale's name."""

    def quantise(module: str, weight: Array) -> tuple[Tensors, Array]:
        sizes = (block[0] or 1, block[1] or weight.shape[1]) if block else weight.shape
        found = blocks(weight, sizes)
        scales = np.zeros((found[-1][0] + 1, found[-1][1] + 1), np.float32)
        numbers, meant = np.zeros(weight.shape, ml_dtypes.float8_e4m3fn), np.zeros_like(weight)
        for i, j, part in found:
            scales[i, j] = np.abs(weight[part]).max() / FP8_LARGEST
            numbers[part] = (weight[part] / scales[i, j]).astype(ml_dtypes.float8_e4m3fn)
            meant[part] = numbers[part].astype(np.float32) * scales[i, j]
        return {f"{module}.weight": numbers, f"{module}.{suffix}": shape(scales)}, meant

    return quantise


def mxfp4(module: str, weight: Array) -> tuple[Tensors, Array]:
    """Four bits for each number of all experts, [experts, in, out], and a power of two for 32 of an output."""
    groups = weight.swapaxes(1, 2).reshape(len(weight), weight.shape[2], -1, 32)
    # The largest number of a group is between 4 and 8 times the scale, and the format ends at 6.
    exponents = np.floor(np.log2(np.abs(groups).max(axis=-1))).astype(np.int64) - 2
    numbers = np.ldexp(groups, -exponents[..., None]).astype(ml_dtypes.float4_e2m1fn)
    meant = np.ldexp(numbers.astype(np.float32), exponents[..., None]).reshape(*weight.swapaxes(1, 2).shape)
    bits = np.ascontiguousarray(numbers).view(np.uint8) & 15
    stored = {f"{module}_blocks": bits[..., ::2] | bits[..., 1::2] << 4}
    return stored | {f"{module}_scales": np.ascontiguousarray(exponents + 127).astype(np.uint8)}, np.ascontiguousarray(
        meant.swapaxes(1, 2)
    )


@dataclass(frozen=True, slots=True)
class Numbers:
    """Integers in groups, and what they stand for."""

    levels: Array  # [out, in], from 0 up
    zeros: Array  # [out, groups], from 0 up
    scales: Array  # [out, groups]
    group: Array  # [in]
    weight: Array  # [out, in], float32


def integers(weight: Array, bits: int, size: int, *, symmetric: bool, scale: Any, ordered: bool = False) -> Numbers:
    """Round a weight to integers. size: inputs of a group. ordered: inputs are in groups in an order of their own."""
    outputs, inputs = weight.shape
    group = np.arange(inputs) // size
    if ordered:
        group = np.random.RandomState(inputs).permutation(group)
    groups, top = -(-inputs // size), 2**bits - 1
    levels, meant = np.zeros(weight.shape, np.int64), np.zeros_like(weight)
    zeros, scales = np.zeros((outputs, groups), np.int64), np.zeros((outputs, groups), scale)
    for g in range(groups):
        of_group = group == g
        part = weight[:, of_group]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            scales[:, g] = 2 * np.abs(part).max(1) / top
            zeros[:, g] = 2 ** (bits - 1)
        else:
            scales[:, g] = (high - low) / top
            zeros[:, g] = np.clip(np.round(-low / scales[:, g].astype(np.float32)), 0, top)
        exact = scales[:, g].astype(np.float32)[:, None]
        levels[:, of_group] = np.clip(np.round(part / exact) + zeros[:, g, None], 0, top)
        meant[:, of_group] = (levels[:, of_group] - zeros[:, g, None]).astype(np.float32) * exact
    return Numbers(levels, zeros, scales, group, meant)


def packed(numbers: Array, bits: int, axis: int, order: tuple[int, ...] | None = None) -> Array:
    """Pack numbers along an axis into words of 32 bits, one by one; order: of the numbers in a word."""
    in_a_word = 32 // bits
    rows = numbers if axis == 1 else numbers.T
    words = np.zeros((len(rows), -(-rows.shape[1] // in_a_word)), np.uint32)
    for column in range(rows.shape[1]):
        place = column % in_a_word if order is None else order.index(column % in_a_word)
        words[:, column // in_a_word] |= (rows[:, column] << (bits * place)).astype(np.uint32)
    found = words.view(np.int32)
    return np.ascontiguousarray(found if axis == 1 else found.T)


def awq(size: int | None) -> Quantise:
    def quantise(module: str, weight: Array) -> tuple[Tensors, Array]:
        found = integers(weight, 4, size or weight.shape[1], symmetric=False, scale=np.float16)
        stored = {
            f"{module}.qweight": packed(found.levels.T, 4, 1, AWQ_ORDER),
            f"{module}.qzeros": packed(found.zeros.T, 4, 1, AWQ_ORDER),
            f"{module}.scales": np.ascontiguousarray(found.scales.T),
        }
        return stored, found.weight

    return quantise


def gptq(
    bits: int,
    size: int | None,
    *,
    symmetric: bool,
    subtracted: int = 1,
    ordered: bool = False,
    index: bool = True,
    scale: Any = np.float16,
) -> Quantise:
    """subtracted: from zero points as they are stored. index: whether the group of each input is stored."""

    def quantise(module: str, weight: Array) -> tuple[Tensors, Array]:
        width = size or weight.shape[1]
        found = integers(weight, bits, width, symmetric=symmetric, scale=scale, ordered=ordered)
        stored = {
            f"{module}.qweight": packed(found.levels.T, bits, 0),
            f"{module}.qzeros": packed((found.zeros.T - subtracted) % 2**bits, bits, 1),
            f"{module}.scales": np.ascontiguousarray(found.scales.T),
        }
        if index:
            stored[f"{module}.g_idx"] = found.group.astype(np.int32)
        return stored, found.weight

    return quantise


def eight_bits(size: int | None, *, symmetric: bool, scale: Any = ml_dtypes.bfloat16) -> Quantise:
    """Integers that compressed-tensors does not pack. size: None: a scale for each output."""

    def quantise(module: str, weight: Array) -> tuple[Tensors, Array]:
        found = integers(weight, 8, size or weight.shape[1], symmetric=symmetric, scale=scale)
        stored = {
            f"{module}.weight": (found.levels - 128).astype(np.int8),
            f"{module}.weight_scale": found.scales,
        }
        if not symmetric:
            stored[f"{module}.weight_zero_point"] = (found.zeros - 128).astype(np.int8)
        return stored, found.weight

    return quantise


def packed_bits(
    bits: int, size: int | None, *, symmetric: bool, ordered: bool = False, zeros_packed: bool = True
) -> Quantise:
    """Integers that compressed-tensors packs. size: None: a scale for each output."""

    def quantise(module: str, weight: Array) -> tuple[Tensors, Array]:
        width = size or weight.shape[1]
        found = integers(weight, bits, width, symmetric=symmetric, scale=ml_dtypes.bfloat16, ordered=ordered)
        stored = {
            f"{module}.weight_packed": packed(found.levels, bits, 1),
            f"{module}.weight_scale": found.scales,
            f"{module}.weight_shape": np.array(weight.shape, np.int64),
        }
        if not symmetric:
            unpacked = (found.zeros - 2 ** (bits - 1)).astype(np.int8)
            stored[f"{module}.weight_zero_point"] = packed(found.zeros, bits, 0) if zeros_packed else unpacked
        if ordered:
            stored[f"{module}.weight_g_idx"] = found.group.astype(np.int32)
        return stored, found.weight

    return quantise


def write_adapter(directory: Path, found: Tensors, **fields: Any) -> Path:
    """A folder with a LoRA adapter. fields: of its configuration, besides what PEFT always writes."""
    directory.mkdir()
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "up_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(config | fields))
    save_file(found, directory / "adapter_model.safetensors")
    return directory
