"""Rotary positions (RoFormer, arXiv:2104.09864) and the ways in which checkpoints stretch them to longer contexts.

Frequencies follow from the configuration alone and are computed on the host in float64: a power that is a few units
off in float32 would grow with the position.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checkpoints.files import rope_section
from model.configuration_reader import Fields, UnsupportedModelError

Frequencies = npt.NDArray[np.float64]

DEFAULT_THETA = 10_000.0
"""What HuggingFace takes where a configuration names no base, as the first Llama checkpoints do."""


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by ``factor`` (position interpolation, arXiv:2306.15595)."""

    factor: float
    magnitude = 1.0

    def scaled(self, plain: Frequencies, theta: float) -> Frequencies:
        """All frequencies, slower."""
        return plain / self.factor

    def to_huggingface(self) -> dict[str, object]:
        """As it stands in ``rope_parameters``."""
        return {"rope_type": "linear", "factor": self.factor}


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's: slow frequencies are divided by ``factor``, fast ones kept, those between blended.

    original_context: in tokens, of the training before stretching. A frequency is slow if it turns less than
    ``low`` times over the original context, and fast if it turns more than ``high`` times.
    """

    factor: float
    low: float
    high: float
    original_context: int
    magnitude = 1.0

    def scaled(self, plain: Frequencies, theta: float) -> Frequencies:
        """Each frequency by how often it turns within the original context."""
        turns = self.original_context * plain / (2 * math.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)
        blended: Frequencies = plain * (kept + (1 - kept) / self.factor)
        return blended

    def to_huggingface(self) -> dict[str, object]:
        """As it stands in ``rope_parameters``."""
        return {
            "rope_type": "llama3",
            "factor": self.factor,
            "low_freq_factor": self.low,
            "high_freq_factor": self.high,
            "original_max_position_embeddings": self.original_context,
        }


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv:2309.00071): as Llama 3's, with the blend linear in the dimension, and larger queries and keys.

    fast, slow: turns over the original context at the ends of the blend; whole_dimensions: these ends are rounded
    outwards; magnitude: of the rotated vectors.
    """

    factor: float
    fast: float
    slow: float
    original_context: int
    whole_dimensions: bool
    magnitude: float

    def scaled(self, plain: Frequencies, theta: float) -> Frequencies:
        """Each frequency by its dimension's place between the ends of the blend."""
        size = 2 * len(plain)
        first, last = (self._dimension(turns, size, theta) for turns in (self.fast, self.slow))
        if self.whole_dimensions:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, size - 1)
        width = last - first or 1e-3  # HuggingFace's guard for a blend of no width
        slowed = np.clip((np.arange(len(plain)) - first) / width, 0.0, 1.0)
        blended: Frequencies = plain * (1 - slowed + slowed / self.factor)
        return blended

    def _dimension(self, turns: float, size: int, theta: float) -> float:
        """Which pair of a head of ``size`` dimensions turns so often within the original context."""
        return size * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    def to_huggingface(self) -> dict[str, object]:
        """As it stands in ``rope_parameters``."""
        return {
            "rope_type": "yarn",
            "factor": self.factor,
            "beta_fast": self.fast,
            "beta_slow": self.slow,
            "original_max_position_embeddings": self.original_context,
            "truncate": self.whole_dimensions,
            "attention_factor": self.magnitude,
        }


Scaling = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class Rope:
    """theta: the base of the rotary angles; scaling: how they are stretched, if they are."""

    theta: float
    scaling: Scaling | None = None

    @classmethod
    def from_huggingface(cls, fields: Fields) -> Rope:
        """Read ``rope_parameters`` or its older form, ``rope_scaling`` beside ``rope_theta``.

        Raises :class:`UnsupportedModelError`.
        """
        fields.require("partial_rotary_factor", 1.0)
        rope = fields.section(rope_section(fields.values))
        rope.require("partial_rotary_factor", 1.0)
        theta = rope.number("rope_theta") if "rope_theta" in rope else fields.number("rope_theta", DEFAULT_THETA)
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind == "default":
            return cls(theta)
        if kind not in SCALINGS:
            known = ", ".join(repr(known) for known in ("default", *SCALINGS))
            raise UnsupportedModelError(f"{rope.named('rope_type')} {kind!r} is not implemented, only {known}")
        return cls(theta, SCALINGS[kind](fields, rope))

    def frequencies(self, head_dim: int) -> Frequencies:
        """Radians a position, float64 [head_dim / 2]."""
        plain = self.theta ** -(np.arange(0, head_dim, 2) / head_dim)
        return plain if self.scaling is None else self.scaling.scaled(plain, self.theta)

    @property
    def magnitude(self) -> float:
        """What cosine and sine are multiplied with."""
        return 1.0 if self.scaling is None else self.scaling.magnitude

    def to_huggingface(self) -> dict[str, object]:
        """The value of ``rope_parameters``."""
        scaling = {"rope_type": "default"} if self.scaling is None else self.scaling.to_huggingface()
        return scaling | {"rope_theta": self.theta}


def _linear(fields: Fields, rope: Fields) -> Scaling:
    return LinearScaling(rope.number("factor"))


def _llama3(fields: Fields, rope: Fields) -> Scaling:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if low >= high:
        raise UnsupportedModelError(f"{rope.named('low_freq_factor')} {low:g} is not below high_freq_factor {high:g}")
    return Llama3Scaling(rope.number("factor"), low, high, _original_context(fields, rope))


def _yarn(fields: Fields, rope: Fields) -> Scaling:
    original = _original_context(fields, rope)
    factor = rope.number("factor", fields.integer("max_position_embeddings") / original)
    if "mscale" in rope and "mscale_all_dim" in rope:
        inferred = _magnitude(factor, rope.number("mscale")) / _magnitude(factor, rope.number("mscale_all_dim"))
    else:
        inferred = _magnitude(factor, 1.0)
    return YarnScaling(
        factor=factor,
        fast=rope.number("beta_fast", 32.0),
        slow=rope.number("beta_slow", 1.0),
        original_context=original,
        whole_dimensions=rope.flag("truncate", True),
        magnitude=rope.number("attention_factor", inferred),
    )


def _magnitude(factor: float, scale: float) -> float:
    """YaRN's temperature, section 3.4 of the paper."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _original_context(fields: Fields, rope: Fields) -> int:
    name = "original_max_position_embeddings"
    return fields.integer(name) if name in fields else rope.integer(name, fields.integer("max_position_embeddings"))


SCALINGS: dict[str, Callable[[Fields, Fields], Scaling]] = {"linear": _linear, "llama3": _llama3, "yarn": _yarn}
"""By ``rope_type``; each reads the whole configuration and the section about rotary positions."""
