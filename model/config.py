"""The shape of a decoder, read from a HuggingFace ``config.json``.

What the decoder does not implement is refused here by the field's name, since a checkpoint that loads but computes
something else is worse than one that does not load. A family is a function in :data:`FAMILIES`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class UnsupportedModelError(Exception):
    """A checkpoint that this decoder does not implement. The message names the field."""


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes of a decoder-only model with grouped-query attention and a gated MLP.

    vocabulary: width of the logits, padding rows included; width: of the residual stream; mlp_width: of the gated MLP;
    context: longest sequence in tokens; tied: the head is the embedding, transposed.
    """

    vocabulary: int
    width: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    context: int
    rope_theta: float
    norm_epsilon: float
    tied: bool

    def __post_init__(self) -> None:
        if self.query_heads % self.kv_heads:
            raise UnsupportedModelError(
                f"num_attention_heads {self.query_heads} is no multiple of num_key_value_heads {self.kv_heads}"
            )
        if self.head_dim % 2:
            raise UnsupportedModelError(f"head_dim {self.head_dim} is odd; rotary positions need pairs")

    @classmethod
    def from_directory(cls, directory: Path) -> DecoderConfig:
        """Read ``config.json``. Raises :class:`UnsupportedModelError`, also where it is missing or broken."""
        path = directory / "config.json"
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UnsupportedModelError(f"{path} can't be read: {error}") from error
        if not isinstance(fields, dict):
            raise UnsupportedModelError(f"{path} is not a JSON object")
        return cls.from_huggingface(fields)

    @classmethod
    def from_huggingface(cls, fields: Mapping[str, Any]) -> DecoderConfig:
        """The same from the fields of a ``config.json``."""
        model_type = fields.get("model_type")
        if model_type not in FAMILIES:
            raise UnsupportedModelError(f"model_type {model_type!r} is not implemented; known: {', '.join(FAMILIES)}")
        try:
            return FAMILIES[model_type](fields)
        except KeyError as missing:
            raise UnsupportedModelError(f"config.json lacks {missing}") from missing

    def to_huggingface(self) -> dict[str, object]:
        """The fields of a Qwen3 ``config.json`` that HuggingFace loads as the same model."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.query_heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.mlp_width,
            "max_position_embeddings": self.context,
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "rms_norm_eps": self.norm_epsilon,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "attention_bias": False,
            "use_sliding_window": False,
        }


def _qwen3(fields: Mapping[str, Any]) -> DecoderConfig:
    _require(fields, "architectures", ["Qwen3ForCausalLM"], ["Qwen3ForCausalLM"])
    _require(fields, "hidden_act", "silu", "silu")
    _require(fields, "attention_bias", False, False)
    _require(fields, "use_sliding_window", False, False)
    _require(fields, "quantization_config", None, None)
    layer_types = fields.get("layer_types") or []
    if set(layer_types) - {"full_attention"}:
        raise UnsupportedModelError(f"layer_types {sorted(set(layer_types))} is not implemented, only full_attention")
    return DecoderConfig(
        vocabulary=_positive(fields, "vocab_size"),
        width=_positive(fields, "hidden_size"),
        layers=_positive(fields, "num_hidden_layers"),
        query_heads=_positive(fields, "num_attention_heads"),
        kv_heads=_positive(fields, "num_key_value_heads"),
        head_dim=_positive(fields, "head_dim") if "head_dim" in fields else QWEN3_HEAD_DIM,
        mlp_width=_positive(fields, "intermediate_size"),
        context=_positive(fields, "max_position_embeddings"),
        rope_theta=_rope_theta(fields),
        norm_epsilon=float(fields["rms_norm_eps"]),
        tied=bool(fields.get("tie_word_embeddings", False)),
    )


QWEN3_HEAD_DIM = 128
"""What HuggingFace's Qwen3 takes where ``head_dim`` is left out; not ``hidden_size / num_attention_heads``."""

FAMILIES: dict[str, Callable[[Mapping[str, Any]], DecoderConfig]] = {"qwen3": _qwen3}
"""By ``model_type``."""


def _rope_theta(fields: Mapping[str, Any]) -> float:
    """The rotary base. HuggingFace moved it into ``rope_parameters``; older files have it at the top."""
    for name in ("rope_parameters", "rope_scaling"):
        scaling = fields.get(name) or {}
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind != "default":
            raise UnsupportedModelError(f"{name}: rope_type {kind!r} is not implemented, only 'default'")
        if scaling.get("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedModelError(f"{name}: partial_rotary_factor is not implemented")
    parameters = fields.get("rope_parameters") or {}
    return float(parameters["rope_theta"] if "rope_theta" in parameters else fields["rope_theta"])


def _require(fields: Mapping[str, Any], name: str, only: object, default: object) -> None:
    value = fields.get(name, default)
    if value != only:
        raise UnsupportedModelError(f"{name} {value!r} is not implemented, only {only!r}")


def _positive(fields: Mapping[str, Any], name: str) -> int:
    value = fields[name]
    if type(value) is not int or value <= 0:
        raise UnsupportedModelError(f"{name} must be a positive integer, not {value!r}")
    return value
