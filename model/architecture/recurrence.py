"""Recurrent layers among those with attention: which layers they are, and the sizes of their heads.

A recurrent layer is a Gated DeltaNet (arXiv:2412.06464) as HuggingFace computes it for Qwen3.5. It keeps one state of
constant size for everything that stands before a token, where attention keeps keys and values of each token.
"""

from __future__ import annotations

from typing import NamedTuple

from model.architecture.configuration_reader import ConfigurationReader, UnsupportedModelError

KINDS = {"full_attention": False, "linear_attention": True}
"""Whether a layer is recurrent, by its name in ``layer_types``."""


class Recurrence(NamedTuple):
    """The recurrent layers of a model. Defaults are HuggingFace's."""

    layers: tuple[bool, ...]  # which layers are recurrent; the last one never is
    key_heads: int = 16
    value_heads: int = 32  # a multiple of the key heads
    key_dim: int = 128  # numbers of a head of queries and keys
    value_dim: int = 128  # numbers of a head of values
    inputs: int = 4  # of the convolution: a token's own and those before it

    @property
    def channels(self) -> int:
        """How many numbers of a token the convolution takes: those of its queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def output(self) -> int:
        """How many numbers of a token come out of the recurrence."""
        return self.value_heads * self.value_dim

    @property
    def state_bytes(self) -> int:
        """Bytes of what all recurrent layers keep of a sequence, in float32."""
        state = self.value_heads * self.key_dim * self.value_dim
        return 4 * sum(self.layers) * (state + (self.inputs - 1) * self.channels)

    @property
    def runs(self) -> tuple[int, ...]:
        """How many recurrent layers come before each layer with attention, behind the one before it."""
        places = [number for number, is_recurrent in enumerate(self.layers) if not is_recurrent]
        return tuple(place - before - 1 for before, place in zip([-1, *places], places, strict=False))

    def share(self, chips: int) -> Recurrence:
        """Return what each of several chips computes: an equal part of the heads, whose number the chips divide."""
        return self._replace(key_heads=self.key_heads // chips, value_heads=self.value_heads // chips)

    def parameters(self, width: int) -> int:
        """Return how many numbers the weights of a layer's recurrence have."""
        projections = width * (self.channels + 2 * self.output + 2 * self.value_heads)
        return projections + self.channels * self.inputs + 2 * self.value_heads + self.value_dim


_FIELDS = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)


def read_recurrence(fields: ConfigurationReader) -> Recurrence:
    """Return the recurrent layers of a family that has some. Raises :class:`UnsupportedModelError`."""
    layers = _layers(fields)
    defaults = list(Recurrence._field_defaults.values())
    least = (1, 1, 1, 1, 2)
    sizes = (fields.integer(*named, least=one) for *named, one in zip(_FIELDS, defaults, least, strict=True))
    found = Recurrence(layers, *sizes)
    if found.value_heads % found.key_heads:
        raise UnsupportedModelError(
            f"linear_num_value_heads {found.value_heads} is no multiple of linear_num_key_heads {found.key_heads}"
        )
    if layers[-1] or not any(layers):
        field = "layer_types" if "layer_types" in fields else "full_attention_interval"
        raise UnsupportedModelError(
            f"{field} must give linear_attention and end with full_attention, as in all published models of the family"
        )
    for name, only in (("attn_output_gate", True), ("output_gate_type", "swish")):
        fields.require(name, only)
    return found


def _layers(fields: ConfigurationReader) -> tuple[bool, ...]:
    count, names = fields.integer("num_hidden_layers"), fields.get("layer_types")
    if names is None:
        each = fields.integer("full_attention_interval", 4)
        return tuple((number + 1) % each != 0 for number in range(count))
    if not isinstance(names, list) or any(name not in KINDS for name in names):
        raise UnsupportedModelError(f"layer_types {names!r} is not implemented, only {' and '.join(KINDS)}")
    if len(names) != count:
        raise UnsupportedModelError(f"layer_types has {len(names)} entries for {count} layers")
    return tuple(KINDS[name] for name in names)
