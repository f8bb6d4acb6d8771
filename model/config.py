"""The shape of a decoder, read from a HuggingFace ``config.json``.

What the decoder does not implement is refused here by the field's name, since a checkpoint that loads but computes
something else is worse than one that does not load. A family is an entry of :data:`FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoints.files import context_length, read_config
from model.configuration_reader import Fields, UnsupportedModelError
from model.rope import Rope
from scoring.planning.estimates import ModelSize


@dataclass(frozen=True, slots=True)
class Family:
    """What sets a family of decoders apart from the others, as HuggingFace implements it.

    architecture: the class that computes next-token logits; head_norms: queries and keys are normed head by head;
    always_biased: queries, keys and values have biases whatever the configuration says; bias_fields: which fields may
    switch on biases; head_dim, kv_heads: what they are where the configuration leaves them out (None: width / query
    heads, and as many as query heads); window_switch: the sliding window counts only where ``use_sliding_window`` says
    so.
    """

    architecture: str
    head_norms: bool = False
    always_biased: bool = False
    bias_fields: frozenset[str] = frozenset()
    head_dim: int | None = None
    kv_heads: int | None = None
    window_switch: bool = False


FAMILIES = {
    "llama": Family("LlamaForCausalLM", bias_fields=frozenset({"attention_bias", "mlp_bias"})),
    "mistral": Family("MistralForCausalLM", kv_heads=8),
    "qwen2": Family("Qwen2ForCausalLM", always_biased=True, window_switch=True),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        head_norms=True,
        bias_fields=frozenset({"attention_bias"}),
        head_dim=128,
        window_switch=True,
    ),
}
"""By ``model_type``."""


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes of a decoder-only model with grouped-query attention and a gated MLP.

    vocabulary: width of the logits, padding rows included; width: of the residual stream; mlp_width: of the gated MLP;
    context: longest sequence in tokens; tied: the head is the embedding, transposed; family: a key of
    :data:`FAMILIES`; attention_bias: all four projections of attention have biases; mlp_bias: those of the MLP have.
    """

    vocabulary: int
    width: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    context: int
    rope: Rope
    norm_epsilon: float
    tied: bool
    family: str = "qwen3"
    attention_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        if self.query_heads % self.kv_heads:
            raise UnsupportedModelError(
                f"num_attention_heads {self.query_heads} is no multiple of num_key_value_heads {self.kv_heads}"
            )
        if self.head_dim % 2:
            raise UnsupportedModelError(f"head_dim {self.head_dim} is odd; rotary positions need pairs")

    @property
    def head_norms(self) -> bool:
        """Whether queries and keys are normed, head by head."""
        return FAMILIES[self.family].head_norms

    @property
    def qkv_bias(self) -> bool:
        """Whether the projections to queries, keys and values have biases."""
        return self.attention_bias or FAMILIES[self.family].always_biased

    @classmethod
    def from_directory(cls, directory: Path) -> DecoderConfig:
        """Read ``config.json``. Raises :class:`checkpoints.files.ModelFilesError`; see :meth:`from_huggingface`."""
        return cls.from_huggingface(read_config(directory))

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> DecoderConfig:
        """The same from the fields of a ``config.json``. Raises :class:`UnsupportedModelError` by a field's name."""
        fields = Fields(config)
        name = fields.get("model_type")
        if name not in FAMILIES:
            raise UnsupportedModelError(f"model_type {name!r} is not implemented; known: {', '.join(FAMILIES)}")
        family = FAMILIES[name]
        _refuse_what_is_not_implemented(fields, family)
        width, query_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
        kv_heads = fields.integer("num_key_value_heads", family.kv_heads or query_heads)
        if "head_dim" not in fields and family.head_dim is None and width % query_heads:
            raise UnsupportedModelError(f"hidden_size {width} is no multiple of num_attention_heads {query_heads}")
        return cls(
            vocabulary=fields.integer("vocab_size"),
            width=width,
            layers=fields.integer("num_hidden_layers"),
            query_heads=query_heads,
            kv_heads=kv_heads,
            head_dim=fields.integer("head_dim", family.head_dim or width // query_heads),
            mlp_width=fields.integer("intermediate_size"),
            context=context_length(config),
            rope=Rope.from_huggingface(fields),
            norm_epsilon=fields.number("rms_norm_eps"),
            tied=fields.flag("tie_word_embeddings", False),
            family=name,
            attention_bias="attention_bias" in family.bias_fields and fields.flag("attention_bias", False),
            mlp_bias="mlp_bias" in family.bias_fields and fields.flag("mlp_bias", False),
        )

    @property
    def size(self) -> ModelSize:
        """What it costs: 2 operations for each weight of a layer and token, or of the head and row; 4 x head_dim for
        each pair of a query and a key that it sees, and query head.
        """
        projections = 2 * self.width * self.head_dim * (self.query_heads + self.kv_heads)
        return ModelSize(
            layers=self.layers,
            linear_flop=2 * self.layers * (projections + 3 * self.width * self.mlp_width),
            pair_flop=4 * self.layers * self.query_heads * self.head_dim,
            head_flop=2 * self.width * self.vocabulary,
        )

    def to_huggingface(self) -> dict[str, object]:
        """The fields of a ``config.json`` that HuggingFace loads as the same model."""
        family = FAMILIES[self.family]
        biases = {"attention_bias": self.attention_bias, "mlp_bias": self.mlp_bias}
        return {
            "architectures": [family.architecture],
            "model_type": self.family,
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.query_heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.mlp_width,
            "max_position_embeddings": self.context,
            "rope_theta": self.rope.theta,
            "rope_parameters": self.rope.to_huggingface(),
            "rms_norm_eps": self.norm_epsilon,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            **{field: biases[field] for field in sorted(family.bias_fields)},
            **({"use_sliding_window": False} if family.window_switch else {"sliding_window": None}),
        }


def _refuse_what_is_not_implemented(fields: Fields, family: Family) -> None:
    fields.require("architectures", [family.architecture])
    fields.require("hidden_act", "silu")
    for bias in ("attention_bias", "mlp_bias"):
        if bias not in family.bias_fields and not family.always_biased:
            fields.require(bias, False)
    if "quantization_config" in fields:
        method = fields.section("quantization_config").get("quant_method")
        raise UnsupportedModelError(f"quantization_config: weights quantised by {method!r} are not implemented")
    layer_types = fields.get("layer_types") or []
    if not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types):
        raise UnsupportedModelError(f"layer_types {layer_types!r} is not implemented, only full_attention")
    if (window := _window_in_use(fields, family)) is not None:
        raise UnsupportedModelError(f"sliding_window {window} is in use, which is not implemented")


def _window_in_use(fields: Fields, family: Family) -> int | None:
    """The sliding window, if any layer has one and any sequence is longer than it. Defaults are HuggingFace's."""
    if family.window_switch:
        if not fields.flag("use_sliding_window", False):
            return None
        # The layers before this one have no window.
        if fields.integer("max_window_layers", 28, least=0) >= fields.integer("num_hidden_layers"):
            return None
    if "sliding_window" in fields.values and "sliding_window" not in fields:
        return None
    window = fields.integer("sliding_window", 4096)
    return window if window < context_length(fields.values) else None
