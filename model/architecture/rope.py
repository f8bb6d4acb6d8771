"""Rotary positions (RoFormer, arXiv:2104.09864), and how checkpoints scale them to longer contexts.

Frequencies follow from the configuration alone. They are computed on the host in float64, because the rounding error of
a float32 power would grow with the position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checkpoints.files import rope_field
from model.architecture.configuration_reader import ConfigurationReader, UnsupportedModelError

Frequencies = npt.NDArray[np.float64]

DEFAULT_THETA = 10_000.0
"""HuggingFace's default for configurations without a base, such as those of the first Llama checkpoints."""


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Divides positions by ``factor`` (position interpolation, arXiv:2306.15595)."""

    factor: float
    magnitude = 1.0

    def scaled(self, plain: Frequencies, theta: float) -> Frequencies:
        """Return all frequencies divided by the factor."""
        return plain / self.factor


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's scaling: slow frequencies are divided by ``factor``, fast ones kept, those between interpolated."""

    factor: float
    low: float  # a frequency is slow if it makes fewer turns than this over the original context
    high: float  # a frequency is fast if it makes more turns than this over the original context
    original_context: int  # tokens, of the training before the extension
    magnitude = 1.0

    def scaled(self, plain: Frequencies, theta: float) -> Frequencies:
        """Return each frequency scaled by the number of turns it makes over the original context."""
        turns = self.original_context * plain / (2 * math.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)
        blended: Frequencies = plain * (kept + (1 - kept) / self.factor)
        return blended


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv:2309.00071): like Llama 3's, but linear in the dimension, and with larger queries and keys."""

    factor: float
    fast: float  # turns over the original context where the interpolation begins
    slow: float  # turns over the original context where it ends
    original_context: int  # tokens
    whole_dimensions: bool  # both ends are rounded outwards to whole dimensions
    magnitude: float  # factor of the rotated vectors

    def scaled(self, plain: Frequencies, theta: float) -> Frequencies:
        """Return each frequency scaled by its dimension's place between the ends of the interpolation."""
        size = 2 * len(plain)
        first, last = (self._dimension(turns, size, theta) for turns in (self.fast, self.slow))
        if self.whole_dimensions:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, size - 1)
        width = last - first or 1e-3  # HuggingFace's guard against a width of zero
        slowed = np.clip((np.arange(len(plain)) - first) / width, 0.0, 1.0)
        blended: Frequencies = plain * (1 - slowed + slowed / self.factor)
        return blended

    def _dimension(self, turns: float, size: int, theta: float) -> float:
        """Return the pair of a head of ``size`` dimensions that makes so many turns over the original context."""
        return size * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))


@dataclass(frozen=True, slots=True)
class LongScaling:
    """LongRoPE (arXiv:2402.13753): each frequency is divided by a factor of its own.

    The factors are those of sequences within the original context, which is as much as is served: with the factors of
    longer ones, the first tokens of a sequence would depend on how long it becomes.
    """

    factors: tuple[float, ...]  # of each pair that is rotated
    original_context: int  # tokens
    magnitude: float  # factor of the rotated vectors

    def scaled(self, plain: Frequencies, theta: float) -> Frequencies:
        """Return each frequency divided by its factor."""
        return plain / np.array(self.factors, np.float64)


@dataclass(frozen=True, slots=True)
class Still:
    """No positions at all (arXiv:2305.19466): nothing is rotated."""

    magnitude = 1.0

    def scaled(self, plain: Frequencies, theta: float) -> Frequencies:
        """Return no frequency."""
        return np.zeros_like(plain)


Scaling = LinearScaling | Llama3Scaling | YarnScaling | LongScaling | Still


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotary positions of a model."""

    theta: float  # the base of the frequencies
    scaling: Scaling | None = None
    turned: float = 1.0  # the share of each head that is rotated: its first numbers

    @classmethod
    def from_huggingface(
        cls, fields: ConfigurationReader, scalings: Collection[str], turned: float | None = None
    ) -> Rope:
        """Read ``rope_parameters``, or its older form, ``rope_scaling`` beside ``rope_theta``.

        scalings: how positions of the family may be stretched, of SCALINGS. turned: the share of a head that is rotated
        unless the configuration names another; None: it must be whole. Raises :class:`UnsupportedModelError`.
        """
        theta, section = fields.number("rope_theta", DEFAULT_THETA), fields.section(rope_field(fields.values))
        for kind in (name for name, value in section.values.items() if isinstance(value, Mapping)):
            raise UnsupportedModelError(f"{section.named(kind)} is not implemented: all layers have the same positions")
        return cls._of_section(fields, section, theta, scalings, turned)

    @classmethod
    def of_kinds(
        cls,
        fields: ConfigurationReader,
        kinds: Sequence[str],
        bases: tuple[float, float],
        scalings: Collection[str],
    ) -> list[Rope]:
        """Read the positions of full layers and of those with a window.

        They stand in ``rope_parameters`` by the kinds of layers. In the older form, ``rope_theta`` and ``rope_scaling``
        are of full layers alone. bases: HuggingFace's defaults. Raises :class:`UnsupportedModelError`.
        """
        full, local = fields.number("rope_theta", bases[0]), fields.number("rope_local_base_freq", bases[1])
        new, older = fields.section("rope_parameters"), fields.section("rope_scaling")
        if new.values and not any(kind in new for kind in kinds):
            raise UnsupportedModelError(f"rope_parameters must have a section {' or '.join(kinds)}")
        of_full = ConfigurationReader({**new.section(kinds[0]).values, **older.values}, rope_field(fields.values))
        sections = (of_full, full), (new.section(kinds[1]), local)
        return [cls._of_section(fields, section, theta, scalings) for section, theta in sections]

    @classmethod
    def _of_section(
        cls,
        fields: ConfigurationReader,
        rope: ConfigurationReader,
        theta: float,
        scalings: Collection[str],
        turned: float | None = None,
    ) -> Rope:
        """Read a section about rotary positions. theta: the base where it names none."""
        share = _share(fields, rope, turned)
        theta = rope.number("rope_theta", theta)
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind == "default":
            return cls(theta, turned=share)
        if kind not in scalings:
            known = ", ".join(repr(known) for known in ("default", *scalings))
            raise UnsupportedModelError(f"{rope.named('rope_type')} {kind!r} is not implemented, only {known}")
        return cls(theta, SCALINGS[kind](fields, rope), share)

    def frequencies(self, head_dim: int) -> Frequencies:
        """Return the radians per position of each pair that is rotated, float64 [:meth:`pairs`]."""
        size = 2 * self.pairs(head_dim)
        plain = self.theta ** -(np.arange(0, size, 2) / size)
        return plain if self.scaling is None else self.scaling.scaled(plain, self.theta)

    def pairs(self, head_dim: int) -> int:
        """Return how many pairs of a head's numbers are rotated."""
        return int(head_dim * self.turned) // 2

    @property
    def magnitude(self) -> float:
        """The factor of cosines and sines."""
        return 1.0 if self.scaling is None else self.scaling.magnitude


def _share(fields: ConfigurationReader, rope: ConfigurationReader, turned: float | None) -> float:
    """Return the share of a head that is rotated. turned: see :meth:`Rope.from_huggingface`."""
    name = "partial_rotary_factor"
    if turned is None:
        fields.require(name, 1.0)
        rope.require(name, 1.0)
        return 1.0
    share = rope.number(name, fields.number(name, turned))
    if share > 1:
        raise UnsupportedModelError(f"{rope.named(name)} {share:g} is more than the whole of a head")
    return share


def _linear(fields: ConfigurationReader, rope: ConfigurationReader) -> Scaling:
    return LinearScaling(rope.number("factor"))


def _llama3(fields: ConfigurationReader, rope: ConfigurationReader) -> Scaling:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if low >= high:
        raise UnsupportedModelError(f"{rope.named('low_freq_factor')} {low:g} is not below high_freq_factor {high:g}")
    return Llama3Scaling(rope.number("factor"), low, high, _original_context(fields, rope))


def _yarn(fields: ConfigurationReader, rope: ConfigurationReader) -> Scaling:
    if "attn_factor" in rope:
        raise UnsupportedModelError(
            f"{rope.named('attn_factor')} {rope.get('attn_factor')!r} is a factor that HuggingFace ignores and other "
            "engines use: write the one that is meant as attention_factor, and take this one out"
        )
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


def _long(fields: ConfigurationReader, rope: ConfigurationReader) -> Scaling:
    original = _original_context(fields, rope)
    factor = rope.number("factor", fields.integer("max_position_embeddings") / original)
    inferred = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return LongScaling(rope.numbers("short_factor"), original, rope.number("attention_factor", inferred))


def _magnitude(factor: float, scale: float) -> float:
    """Return YaRN's temperature, section 3.4 of the paper."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _original_context(fields: ConfigurationReader, rope: ConfigurationReader) -> int:
    name = "original_max_position_embeddings"
    return fields.integer(name) if name in fields else rope.integer(name, fields.integer("max_position_embeddings"))


SCALINGS: dict[str, Callable[[ConfigurationReader, ConfigurationReader], Scaling]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _long,
}
"""Readers by ``rope_type``, called with the whole configuration and its section about rotary positions."""
