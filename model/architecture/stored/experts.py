"""Tensors that hold a projection of all experts of a layer, as the checkpoints of gpt-oss do.

``gate_up_proj`` has the numbers of gate and up projection in turn, and no kernel is transposed: [experts, in, 2 x out].
In MXFP4, blocks and scales of numbers have the shape of transposed ones: [experts, 2 x out, …].
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from model.architecture.experts import EXPERTS
from model.architecture.stored.fused import Arrays
from model.architecture.stored.tensors import Tensor, Tensors

_OF_ALL = re.compile(rf"(.*\.{EXPERTS}\.)(gate_up_proj|down_proj)(_bias|_blocks|_scales|)")
_OF_ONE = re.compile(rf"(.*\.{EXPERTS}\.)(\d+)\.(\w+)\.(weight|bias)")
_PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""The projections whose outputs stand in turn in a tensor."""
_ENDS = {"": ".weight", "_bias": ".bias", "_blocks": ".weight_blocks", "_scales": ".weight_scales"}
"""How the names of single experts' tensors end. Decoder and formats of weights know no other names."""


class OfExpert:
    """The numbers of one expert, and of one of the projections that stand in turn, as a tensor [out, …]."""

    def __init__(self, tensor: Tensor, expert: int, part: int, parts: int, *, transposed: bool) -> None:
        self._tensor = tensor
        self._expert = expert
        self._part = part
        self._parts = parts
        self._transposed = transposed

    def get_shape(self) -> list[int]:
        _, *own = self._tensor.get_shape()
        first, *rest = own[::-1] if self._transposed else own
        return [first // self._parts, *rest]

    def get_dtype(self) -> str:
        return self._tensor.get_dtype()

    def __getitem__(self, rows: Any) -> npt.NDArray[Any]:
        first, last, _ = (slice(None) if rows is ... else rows).indices(self.get_shape()[0])
        outputs, expert = slice(first * self._parts, last * self._parts), slice(self._expert, self._expert + 1)
        if self._transposed:
            found = self._tensor[expert, :, outputs][0, :, self._part :: self._parts].T
        else:
            found = self._tensor[expert, outputs][0, self._part :: self._parts]
        return np.ascontiguousarray(found)


def experts_apart(tensors: Tensors) -> Tensors:
    """Return the tensors of a checkpoint with those of single experts in place of those of all of a layer."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match, shape = _OF_ALL.fullmatch(name), tensor.get_shape()
        if match is None or len(shape) < 2:
            found[name] = tensor
            continue
        layer, joined, kind = match.groups()
        parts = _PARTS[joined]
        for expert in range(shape[0]):
            for number, part in enumerate(parts):
                own = OfExpert(tensor, expert, number, len(parts), transposed=kind == "" and len(shape) == 3)
                found[f"{layer}{expert}.{part}{_ENDS[kind]}"] = own
    return found


def experts_together(arrays: Arrays) -> Arrays:
    """Return weights by name with those of all experts in place of those of single ones."""
    found: Arrays = {}
    of_experts: dict[tuple[str, str, str], dict[int, npt.NDArray[Any]]] = {}
    for name, array in arrays.items():
        match = _OF_ONE.fullmatch(name)
        if match is None:
            found[name] = array
            continue
        layer, expert, projection, kind = match.groups()
        of_experts.setdefault((layer, projection, kind), {})[int(expert)] = array
    stacked = {key: np.stack([one[expert] for expert in sorted(one)]) for key, one in of_experts.items()}
    for joined, parts in _PARTS.items():
        for layer, projection, kind in list(stacked):
            if projection != parts[0]:
                continue
            in_turn = np.stack([stacked[layer, part, kind] for part in parts], axis=2)  # [experts, out, parts, …]
            outputs = in_turn.reshape(len(in_turn), -1, *in_turn.shape[3:])
            if kind == "weight":
                found[f"{layer}{joined}"] = np.ascontiguousarray(outputs.swapaxes(1, 2))
            else:
                found[f"{layer}{joined}_bias"] = outputs
    return found
