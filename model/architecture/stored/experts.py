"""Tensors that hold a projection of all experts of a layer.

In checkpoints of gpt-oss, ``gate_up_proj`` has the numbers of gate and up projection in turn, and no kernel is
transposed: [experts, in, 2 x out]. In MXFP4, blocks and scales of numbers have the shape of transposed ones:
[experts, 2 x out, …]. In those of Qwen3.5, it has first the gate and then the up projection, [experts, 2 x out, in].
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model.architecture.experts import EXPERTS
from model.architecture.stored.tensors import Tensor, Tensors, WeightsError

_OF_ALL = re.compile(rf"(model\..*\.{EXPERTS}\.)(gate_up_proj|down_proj)(_bias|_blocks|_scales|)")
_OF_ONE = re.compile(rf"(.*\.{EXPERTS}\.)(\d+)\.(\w+)(\.\w+)")
_PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""The projections that a tensor holds."""
_ENDS = {"": ".weight", "_bias": ".bias", "_blocks": ".weight_blocks", "_scales": ".weight_scales"}
"""How the names of single experts' tensors end. Decoder and formats of weights know no other names."""
_OF_KIND = {end: kind for kind, end in _ENDS.items()}
_JOINED = {part: joined for joined, parts in _PARTS.items() for part in parts}


class Together(NamedTuple):
    """How a tensor holds the kernels of all experts."""

    in_turn: bool  # whether the outputs of its projections stand in turn, or those of one behind all of another
    transposed: bool  # whether it is [experts, in, out]


IN_TURN, ONE_AFTER_ANOTHER = Together(True, True), Together(False, False)


class OfExpert:
    """The numbers of one expert, and of one of the projections of a tensor, as a tensor [out, …]."""

    def __init__(self, tensor: Tensor, expert: int, part: int, parts: int, together: Together) -> None:
        self._tensor = tensor
        self._expert = expert
        self._part = part
        self._parts = parts
        self._in_turn, self._transposed = together

    def get_shape(self) -> list[int]:
        _, *own = self._tensor.get_shape()
        first, *rest = own[::-1] if self._transposed else own
        return [first // self._parts, *rest]

    def get_dtype(self) -> str:
        return self._tensor.get_dtype()

    def __getitem__(self, rows: Any) -> npt.NDArray[Any]:
        count = self.get_shape()[0]
        first, last, _ = (slice(None) if rows is ... else rows).indices(count)
        outputs, own = slice(first * self._parts, last * self._parts), slice(self._part, None, self._parts)
        if not self._in_turn:
            outputs, own = slice(self._part * count + first, self._part * count + last), slice(None)
        expert = slice(self._expert, self._expert + 1)
        if self._transposed:
            found = self._tensor[expert, :, outputs][0, :, own].T
        else:
            found = self._tensor[expert, outputs][0, own]
        return np.ascontiguousarray(found)


def are_together(tensors: Tensors) -> bool:
    """Return whether tensors of a checkpoint hold a projection of all experts of a layer."""
    return any(_OF_ALL.fullmatch(name) for name in tensors)


def experts_apart(tensors: Tensors, wanted: Iterable[str], together: Together, *, quantised: bool) -> Tensors:
    """Return the tensors of a checkpoint with those of single experts in place of those of all of a layer.

    wanted: the names of the decoder's tensors, of which those of single experts count; together: of kernels; quantised:
    whether blocks may be in the place of kernels. Raises :class:`model.architecture.stored.tensors.WeightsError` if
    one is missing.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match, shape = _OF_ALL.fullmatch(name), tensor.get_shape()
        parts = () if match is None else _PARTS[match[2]]
        is_kernel = match is not None and match[3] == ""
        own_layout = together if is_kernel else together._replace(transposed=False)
        outputs = 2 if own_layout.transposed else 1
        if match is None or len(shape) <= max(outputs, 1 + is_kernel) or shape[outputs] % len(parts):
            found[name] = tensor
            continue
        for expert in range(shape[0]):
            for number, part in enumerate(parts):
                own = OfExpert(tensor, expert, number, len(parts), own_layout)
                found[f"{match[1]}{expert}.{part}{_ENDS[match[3]]}"] = own
    of_experts = [name for name in wanted if _OF_ONE.fullmatch(name)]
    if quantised:
        of_experts = [f"{name}_blocks" if f"{name}_blocks" in found else name for name in of_experts]
    if missing := dict.fromkeys(_in_file(name) for name in of_experts if name not in found):
        raise WeightsError("weights do not fit:\n  " + "\n  ".join(f"missing: {name}" for name in list(missing)[:20]))
    return found


def _in_file(name: str) -> str:
    """Return the name of the tensor that holds that of a single expert."""
    match = _OF_ONE.fullmatch(name)
    return name if match is None else f"{match[1]}{_JOINED[match[3]]}{_OF_KIND[match[4]]}"
