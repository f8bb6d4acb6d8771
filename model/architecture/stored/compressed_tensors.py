"""Weights of the library compressed-tensors, which is also ``quant_method``'s name for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from model.architecture.configuration_reader import ConfigurationReader, UnsupportedModelError
from model.architecture.stored.encoding import PLAIN_DTYPES, Array, Encoding, Part, Shape, StoredWeight
from model.architecture.stored.fp8 import ACTIVATION_SCALES, block_of
from model.architecture.stored.numbers import (
    Block,
    Floats,
    block_scales,
    groups_of,
    scaled,
    scaled_weight,
    spread,
    unpacked,
)
from model.architecture.stored.tensors import FLOAT8, Tensors, WeightsError

_UNPACKED = ("naive-quantized", "float-quantized", "int-quantized")
_PACKED = "pack-quantized"
_DENSE = "dense"
_FORMATS = (_DENSE, *_UNPACKED, _PACKED)
_MIXED = "mixed-precision"
_PATTERN = "re:"
_MODULE_CLASS = "Linear"  # of every module whose weight can be quantised


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the weights of some modules are stored: an entry of ``config_groups``."""

    targets: tuple[str, ...]
    packed: bool
    bits: int
    floating: bool
    symmetric: bool
    block: Block | None  # that has one scale; None: as many scales as the strategy says
    by_output: bool  # whether each output has a scale, where there are no blocks

    @classmethod
    def of(cls, fields: ConfigurationReader, form: object) -> Scheme | None:
        """Read an entry of ``config_groups``; None: its weights are stored plain. Raises UnsupportedModelError."""
        used = fields.get("format") or form
        if used not in _FORMATS:
            raise UnsupportedModelError(f"{fields.named('format')} {used!r} is not implemented")
        if "weights" not in fields or used == _DENSE:
            return None
        weights = fields.section("weights")
        kind, bits, packed = weights.get("type") or "int", weights.integer("num_bits", 8), used == _PACKED
        if (kind, bits) not in ([("int", 4), ("int", 8)] if packed else [("int", 8), ("float", 8)]):
            raise UnsupportedModelError(f"{weights.named('num_bits')} {bits} of type {kind!r} is not implemented")
        group = weights.get("group_size")
        strategy = weights.get("strategy") or {None: "tensor", -1: "channel"}.get(group, "group")
        if strategy not in ("tensor", "channel", "group", "block"):
            raise UnsupportedModelError(f"{weights.named('strategy')} {strategy!r} is not implemented")
        block: Block | None = None
        if strategy == "block":
            block = block_of(weights, "block_structure", [])
        elif strategy == "group":
            block = 1, weights.integer("group_size")
        symmetric = weights.flag("symmetric", True)
        return cls(names(fields, "targets"), packed, bits, kind == "float", symmetric, block, strategy == "channel")

    def scale_shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """Return the shapes that the scales of a weight may have."""
        if self.block is not None:
            return (block_scales(shape, self.block),)
        return ((shape[0], 1), (shape[0],)) if self.by_output else ((), (1,), (1, 1))


@dataclass(frozen=True, slots=True)
class CompressedTensors(Encoding):
    """Weights in eight bits, or packed in words of 32 bits."""

    schemes: tuple[Scheme, ...]
    ignore: tuple[str, ...]

    @classmethod
    def of(cls, fields: ConfigurationReader) -> CompressedTensors:
        """Read a ``quantization_config``. Raises UnsupportedModelError."""
        fields.require("kv_cache_scheme", None)
        fields.section("sparsity_config").require("format", _DENSE)
        if fields.section("transform_config").section("config_groups").values:
            raise UnsupportedModelError(f"{fields.named('transform_config')} is not implemented")
        form = fields.get("format") or _DENSE
        if form not in (*_FORMATS, _MIXED):
            raise UnsupportedModelError(f"{fields.named('format')} {form!r} is not implemented")
        groups = fields.section("config_groups")
        found = [Scheme.of(groups.section(name), form) for name in groups.values]
        return cls(tuple(scheme for scheme in found if scheme is not None), names(fields, "ignore"))

    def weight(self, name: str, shape: Shape, tensors: Tensors) -> StoredWeight | None:
        scheme = self._scheme(name.removesuffix(".weight"))
        if scheme is None:
            return None  # and a tensor of another dtype is refused
        zeros = f"{name}_zero_point" if f"{name}_zero_point" in tensors or not scheme.symmetric else None
        if scheme.packed:
            return _packed(name, shape, scheme, zeros, tensors)
        dtype = FLOAT8 if scheme.floating else "I8"
        shapes = scheme.scale_shapes(shape)
        return scaled_weight(name, dtype, shape, f"{name}_scale", shapes, scheme.block or (1, 1), zeros)

    def unused(self, name: str, tensors: Tensors) -> bool:
        return name.endswith(ACTIVATION_SCALES)

    def _scheme(self, module: str) -> Scheme | None:
        """Return the scheme of a module; None: it is stored plain. A module's own name counts before its class."""
        if _is_named(module, self.ignore) or _MODULE_CLASS in self.ignore:
            return None
        by_class = [scheme for scheme in self.schemes if _MODULE_CLASS in scheme.targets]
        by_name = [scheme for scheme in self.schemes if _is_named(module, scheme.targets)]
        return next(iter([*by_name, *by_class]), None)


def names(fields: ConfigurationReader, field: str) -> tuple[str, ...]:
    """Return a field that holds names of modules. Raises UnsupportedModelError."""
    found = fields.get(field) or []
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise UnsupportedModelError(f"{fields.named(field)} must be a list of names, not {found!r}")
    for name in found:
        if name.startswith(_PATTERN) and not _is_pattern(name.removeprefix(_PATTERN)):
            raise UnsupportedModelError(f"{fields.named(field)} {name!r} is no regular expression")
    return tuple(found)


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def _is_named(module: str, names: tuple[str, ...]) -> bool:
    return any(
        re.match(name.removeprefix(_PATTERN), module) if name.startswith(_PATTERN) else name == module for name in names
    )


def _packed(name: str, shape: Shape, scheme: Scheme, zeros: str | None, tensors: Tensors) -> StoredWeight:
    """Return how a weight is stored whose numbers are in words of 32 bits.

    Half of the range is added to the numbers. The file may say the group of each input.
    """
    outputs, inputs = shape
    bits, block = scheme.bits, scheme.block or (1, inputs)
    in_a_word, middle = 32 // bits, 2 ** (bits - 1)
    words, scales, stored_shape, order = (name + part for part in ("_packed", "_scale", "_shape", "_g_idx"))
    parts = [Part(scales, scheme.scale_shapes(shape), PLAIN_DTYPES), Part(stored_shape, ((2,),), ("I64", "I32"))]
    zeros_packed = zeros is not None and zeros in tensors and tensors[zeros].get_dtype() == "I32"
    if zeros is not None:
        of_groups = scheme.scale_shapes(shape)
        packed = tuple((-(-outputs // in_a_word), *of_scales[1:]) for of_scales in of_groups if of_scales)
        parts.append(Part(zeros, packed if zeros_packed else of_groups, ("I32", "I8")))
    if order in tensors:
        parts.append(Part(order, ((inputs,),), ("I32",)))
    parts.append(Part(words, ((outputs, -(-inputs // in_a_word)),), ("I32",), by_rows=True))

    def decode(found: Mapping[str, Array], rows: slice) -> Array:
        if (said := found[stored_shape].tolist()) != list(shape):
            raise WeightsError(f"{stored_shape} is {said}, and the weight's shape is {list(shape)}")
        numbers = unpacked(found[words], bits, axis=1)[:, :inputs]
        subtracted: Array | None = None
        if zeros is not None:
            subtracted = found[zeros]
            if zeros_packed:  # along the outputs, and with half of the range added, as in the numbers
                subtracted = unpacked(subtracted, bits, axis=0)[:outputs].astype(np.int16) - middle
        group = groups_of(inputs, block[1], found[order]) if _is_used(found.get(order)) else None

        def of_each(scales: Array) -> Floats:
            if group is None or scales.ndim < 2 or scales.shape[1] == 1:
                return spread(scales, shape, block, rows)
            return scales[rows].astype(np.float32)[:, group]

        from_zero = np.float32(middle) if subtracted is None else of_each(subtracted) + np.float32(middle)
        return scaled(numbers, of_each(found[scales]), np.asarray(from_zero))

    return StoredWeight(tuple(parts), decode)


def _is_used(order: Array | None) -> bool:
    """Return whether a file says the groups of inputs. Older tools wrote -1 where they have their natural order."""
    return order is not None and bool((order >= 0).all())
