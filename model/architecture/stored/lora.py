"""A LoRA adapter that is merged into the weights of a checkpoint while they are read (arXiv:2106.09685).

The folder is one that PEFT writes: ``adapter_config.json`` and ``adapter_model.safetensors``. A weight W [out, in]
becomes W + scale * B A, computed in float32; some weights may be replaced as a whole. A field that asks for anything
else is refused by name.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from checkpoints.files import read_object
from model.architecture.configuration_reader import ConfigurationReader, UnsupportedModelError
from model.architecture.stored.encoding import PLAIN_DTYPES, Array, Shape
from model.architecture.stored.fused import Fused, rows_in_all, rows_of
from model.architecture.stored.tensors import Tensor, Tensors, WeightsError, open_files

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_WEIGHT = ".weight"
_EMBEDDING = "model.embed_tokens.weight"

_NOTHING_ELSE: Mapping[str, object] = {
    "peft_type": "LORA",
    "bias": "none",
    "lora_bias": False,
    "trainable_token_indices": None,
    "target_parameters": [],
    "layer_replication": None,
    "alora_invocation_tokens": None,
    "arrow_config": None,
    "monteclora_config": None,
    "kasa_config": None,
    "velora_config": None,
}
"""Fields that change what is computed, and the values with which they change nothing."""

_KEEPS_THE_BASE = (True, False, "gaussian", "eva", "orthogonal")
"""Values of ``init_lora_weights`` with which training begins from the weights of the base. Others change these."""


@dataclass(frozen=True, slots=True)
class _Low:
    """The two factors of a change of low rank."""

    down: str  # the name of A [rank, in]
    up: str  # the name of B [out, rank]
    scale: float


class Adapter:
    """An open adapter."""

    def __init__(self, directory: Path, fields: ConfigurationReader, tensors: Tensors) -> None:
        """Raises UnsupportedModelError for the configuration, and WeightsError for names of tensors."""
        self._directory = directory
        self._tensors = tensors
        self._parts: dict[str, Tensor] = {}  # some rows of these tensors
        self._low: dict[str, _Low] = {}  # by the weight that they change
        self._whole: dict[str, str] = {}  # the weights that are replaced, and by what
        _refuse_what_is_not_implemented(fields)
        unknown = []
        for name in sorted(tensors):
            of_base = name.removeprefix(_PREFIX)
            if of_base == name:
                unknown.append(name)
            elif of_base.endswith(_DOWN):
                module = of_base.removesuffix(_DOWN)
                rank = tensors[name].get_shape()[0]
                up = name.removesuffix(_DOWN) + _UP
                if up not in tensors:
                    unknown.append(name)
                self._low[module + _WEIGHT] = _Low(name, up, _scale(fields, module, rank))
            elif of_base.endswith(_UP):
                if name.removesuffix(_UP) + _DOWN not in tensors:
                    unknown.append(name)
            else:
                self._whole[of_base] = name
        self._refuse(unknown, "not implemented")

    def separate(self, fused: Fused) -> None:
        """Replace what changes a tensor for several projections by what changes each of them. Raises WeightsError.

        A tensor that has the name of one of its projections is the only name of the others.
        """
        nameless = {part for name, parts in fused.items() if name in parts for part in parts if part != name}
        self._refuse([name for name in (*self._low, *self._whole) if name in nameless], "no weights of the model")
        for name, parts in fused.items():
            low, whole = self._low.pop(name, None), self._whole.pop(name, None)
            changed = low.up if low is not None else whole
            if changed is None:
                continue
            if self._tensors[changed].get_shape()[0] != rows_in_all(parts):
                rows = self._tensors[changed].get_shape()[0]
                raise WeightsError(f"the adapter {self._directory} does not fit the model: {changed} has {rows} rows")
            names = {part: f"{changed} of {part}" for part in parts}
            self._parts |= rows_of(self._tensors[changed], {names[part]: rows for part, rows in parts.items()})
            if low is not None:
                self._low |= {part: _Low(low.down, names[part], low.scale) for part in parts}
            else:
                self._whole |= names

    def check(self, shapes: Mapping[str, Shape], *, tied: bool) -> None:
        """Raise WeightsError unless the adapter fits a decoder.

        shapes: of all weights, by HuggingFace's names. tied: whether the embedding is the head, too.
        """
        self._refuse([name for name in (*self._low, *self._whole) if name not in shapes], "no weights of the model")
        faults = []
        for name, low in self._low.items():
            if len(shapes[name]) != 2:
                faults.append(f"{low.down} is of {name}, which is no linear layer")
                continue
            out, width = shapes[name]
            rank = self._tensors[low.down].get_shape()[0]
            faults += self._other_than(low.down, (rank, width)) + self._other_than(low.up, (out, rank))
        for name, whole in self._whole.items():
            faults += self._other_than(whole, shapes[name])
        if tied and _EMBEDDING in self._low.keys() | self._whole.keys():
            faults.append("it changes the embedding, which is the head, too (tie_word_embeddings)")
        if faults:
            raise WeightsError(f"the adapter {self._directory} does not fit the model: {'; '.join(faults)}")

    def merged(self, name: str, rows: slice, weight: Array) -> Array:
        """Return some rows of a weight, changed by the adapter. weight: these rows of the base. Raises WeightsError."""
        if name in self._whole:
            return np.asarray(self._tensor(self._whole[name])[rows])
        low = self._low.get(name)
        if low is None:
            return weight
        change: Array = self._factor(low.up, rows) @ self._factor(low.down)
        change *= np.float32(low.scale)
        change += weight.astype(np.float32)
        return change

    def changed(self) -> set[str]:
        """Return the weights that it changes by factors of low rank."""
        return set(self._low)

    def factors(self, name: str) -> tuple[Array, Array] | None:
        """Return what the adapter adds to a weight; None if it does not change it.

        It is the product of A transposed, [in, rank], and the scaled B transposed, [rank, out], in float32.

        Raises WeightsError.
        """
        low = self._low.get(name)
        if low is None:
            return None
        return self._factor(low.down).T, self._factor(low.up).T * np.float32(low.scale)

    def refuse_whole(self) -> None:
        """Raise WeightsError if the adapter replaces weights as a whole, which have no place beside the base."""
        self._refuse(list(self._whole.values()), "not of low rank, and so can only be merged (SCORELINE_ADAPTERS)")

    def fingerprint(self, base: str) -> str:
        """Return a sha256 over the fingerprint of the base, the scales, and the names and bytes of all tensors."""
        digest = hashlib.sha256(base.encode())
        for name in sorted(self._tensors):
            tensor = np.asarray(self._tensors[name][...])
            digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
            digest.update(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
        digest.update(json.dumps([[name, low.scale] for name, low in self._low.items()]).encode())
        return digest.hexdigest()

    def _factor(self, name: str, rows: slice = slice(None)) -> Array:
        """Return some rows of a factor in float32. Raises WeightsError where one has NaN: all scores would have it."""
        factor = np.asarray(self._tensor(name)[rows]).astype(np.float32)
        if not np.isfinite(factor).all():
            raise WeightsError(f"the adapter {self._directory} has NaN or an infinity in {name}")
        return factor

    def _tensor(self, name: str) -> Tensor:
        return self._parts.get(name) or self._tensors[name]

    def _other_than(self, name: str, shape: Shape) -> list[str]:
        found, dtype = tuple(self._tensor(name).get_shape()), self._tensor(name).get_dtype()
        faults = [] if found == shape else [f"{name} is {list(found)}, and {list(shape)} is needed"]
        return faults if dtype in PLAIN_DTYPES else [*faults, f"{name} has the dtype {dtype}"]

    def _refuse(self, names: list[str], why: str) -> None:
        if names:
            named = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise WeightsError(f"the adapter {self._directory} has tensors that are {why}: {named}")


@contextmanager
def open_adapter(directory: Path) -> Iterator[Adapter]:
    """Open the adapter in a folder.

    Raises :class:`checkpoints.files.CheckpointError`: UnsupportedModelError for the configuration, WeightsError for
    the tensors.
    """
    fields = read_object(directory / CONFIG_FILE)
    if not (directory / WEIGHTS_FILE).is_file():
        raise WeightsError(f"{directory} holds no {WEIGHTS_FILE}")
    with open_files(directory, [directory / WEIGHTS_FILE]) as tensors:
        yield Adapter(directory, ConfigurationReader(fields), tensors)


def _refuse_what_is_not_implemented(fields: ConfigurationReader) -> None:
    for name, value in fields.values.items():
        if name.startswith("use_") and value and name != "use_rslora":
            raise UnsupportedModelError(f"{CONFIG_FILE}: {name} {value!r} is not implemented")
    for name, only in _NOTHING_ELSE.items():
        if name in fields and fields.values[name] != only:
            raise UnsupportedModelError(f"{CONFIG_FILE}: {name} {fields.values[name]!r} is not implemented")
    initial = fields.get("init_lora_weights")
    if initial is not None and initial not in _KEEPS_THE_BASE:
        raise UnsupportedModelError(
            f"{CONFIG_FILE}: init_lora_weights {initial!r} is not implemented, because it changes the base, too"
        )


def _scale(fields: ConfigurationReader, module: str, rank: int) -> float:
    """Return what the product of the factors of a module is multiplied by. Raises UnsupportedModelError."""
    stated = _of_module(fields, "rank_pattern", module, fields.integer("r", 8))
    if stated != rank:
        raise UnsupportedModelError(f"{CONFIG_FILE}: {module} has the rank {stated}, and {rank} in its tensors")
    alpha = float(_of_module(fields, "alpha_pattern", module, fields.number("lora_alpha", 8.0)))
    return alpha / (math.sqrt(rank) if fields.flag("use_rslora", False) else rank)


def _of_module(fields: ConfigurationReader, name: str, module: str, default: float) -> Any:
    """Return the value of the first pattern that matches the end of a module's name, as PEFT finds it."""
    section = fields.section(name)
    for pattern in section.values:
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return section.number(pattern)
        except re.error:
            raise UnsupportedModelError(f"{CONFIG_FILE}: {name} has {pattern!r}, which is no pattern") from None
    return default
