"""The configuration of a decoder, read from a HuggingFace ``config.json``.

Fields that ask for anything the decoder does not implement are refused by name: a checkpoint that loads but computes
wrong scores is worse than one that does not load. A new family is an entry of :data:`FAMILIES`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from checkpoints.classification import SUFFIX
from checkpoints.files import context_length, read_classes, read_config
from model.architecture.configuration_reader import ConfigurationReader, UnsupportedModelError
from model.architecture.rope import Rope
from model.architecture.stored.reading import encoding_of
from scoring.planning.estimates import ModelSize


class QKNorm(StrEnum):
    """What of queries and keys is normed together."""

    NONE = ""
    HEAD = "head"  # each head by itself
    ALL_HEADS = "all heads"


@dataclass(frozen=True, slots=True)
class Family:
    """How HuggingFace implements a family of decoders."""

    architecture: str  # the class that computes next-token logits
    qk_norm: QKNorm = QKNorm.NONE
    norms_after: bool = False  # attention and MLP are normed behind their projections, and not before
    is_fused: bool = False  # queries, keys and values are one tensor of a checkpoint, and so are gate and up
    has_multipliers: bool = False  # embeddings, scores, what layers add, and logits have factors: see Multipliers
    has_classes: bool = True  # HuggingFace has a class of it with a head for classes
    stretches: bool = True  # positions may be stretched, as the configuration says
    always_biased: bool = False  # queries, keys and values have biases whatever the configuration says
    bias_fields: frozenset[str] = frozenset()  # the fields that may switch on biases
    head_dim: int | None = None  # default; None: width / query heads
    kv_heads: int | None = None  # default; None: the number of query heads
    default_window: int | None = None  # the sliding window of configurations that leave it out; None: no window
    window_switch: bool = False  # the sliding window is in use only with ``use_sliding_window``


FAMILIES = {
    "granite": Family(
        "GraniteForCausalLM",
        bias_fields=frozenset({"attention_bias", "mlp_bias"}),
        has_multipliers=True,
        has_classes=False,
    ),
    "llama": Family("LlamaForCausalLM", bias_fields=frozenset({"attention_bias", "mlp_bias"})),
    "mistral": Family("MistralForCausalLM", kv_heads=8, default_window=4096),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        qk_norm=QKNorm.ALL_HEADS,
        norms_after=True,
        bias_fields=frozenset({"attention_bias"}),
    ),
    "phi3": Family("Phi3ForCausalLM", is_fused=True, stretches=False),
    "qwen2": Family("Qwen2ForCausalLM", always_biased=True, default_window=4096, window_switch=True),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        qk_norm=QKNorm.HEAD,
        bias_fields=frozenset({"attention_bias"}),
        head_dim=128,
        default_window=4096,
        window_switch=True,
    ),
}
"""Families by ``model_type``."""


class Multipliers(NamedTuple):
    """The factors of Granite, by their fields. Other families have none."""

    embedding_multiplier: float = 1.0  # of the vectors of tokens
    residual_multiplier: float = 1.0  # of what attention and MLP add to the residual stream
    attention_multiplier: float | None = None  # of attention scores; None: 1 / sqrt(head_dim)
    logits_scaling: float = 1.0  # by which logits are divided


NO_MULTIPLIERS = Multipliers()


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The configuration of a decoder-only model with grouped-query attention and a gated MLP."""

    vocabulary: int  # width of the logits, padding rows included
    width: int  # of the residual stream
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    context: int  # tokens of the longest sequence
    rope: Rope
    norm_epsilon: float
    tied: bool  # the head is the transposed embedding
    family: str = "qwen3"  # a key of :data:`FAMILIES`
    attention_bias: bool = False  # of all four projections of attention
    mlp_bias: bool = False  # of all three projections of the MLP
    classes: int = 0  # outputs of a head for classes; 0: the head has the logits of the vocabulary
    multipliers: Multipliers = NO_MULTIPLIERS

    def __post_init__(self) -> None:
        if self.query_heads % self.kv_heads:
            raise UnsupportedModelError(
                f"num_attention_heads {self.query_heads} is no multiple of num_key_value_heads {self.kv_heads}"
            )
        if self.head_dim % 2:
            raise UnsupportedModelError(f"head_dim {self.head_dim} is odd; rotary positions need pairs")

    @property
    def qk_norm(self) -> QKNorm:
        return FAMILIES[self.family].qk_norm

    @property
    def norms_after(self) -> bool:
        """Whether attention and MLP are normed behind their projections, and not before."""
        return FAMILIES[self.family].norms_after

    @property
    def is_fused(self) -> bool:
        """Whether queries, keys and values are one tensor of a checkpoint, and so are gate and up."""
        return FAMILIES[self.family].is_fused

    @property
    def query_scale(self) -> float:
        """What queries are multiplied by, since attention divides scores by sqrt(head_dim) in all families."""
        multiplier = self.multipliers.attention_multiplier
        return 1.0 if multiplier is None else multiplier * math.sqrt(self.head_dim)

    @property
    def qkv_bias(self) -> bool:
        """Whether the projections to queries, keys and values have biases."""
        return self.attention_bias or FAMILIES[self.family].always_biased

    @property
    def outputs(self) -> int:
        """How many logits the head gives."""
        return self.classes or self.vocabulary

    @classmethod
    def from_directory(cls, directory: Path) -> DecoderConfig:
        """Read ``config.json``. Raises :class:`checkpoints.files.CheckpointError`; see :meth:`from_huggingface`."""
        return cls.from_huggingface(read_config(directory))

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> DecoderConfig:
        """Read the fields of a ``config.json``. Raises :class:`UnsupportedModelError`, which names a field."""
        fields = ConfigurationReader(config)
        name = fields.get("model_type")
        if name not in FAMILIES:
            raise UnsupportedModelError(f"model_type {name!r} is not implemented; known: {', '.join(FAMILIES)}")
        family = FAMILIES[name]
        _refuse_what_is_not_implemented(fields, family)
        classes = read_classes(config)
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
            rope=Rope.from_huggingface(fields, only_plain=not family.stretches),
            norm_epsilon=fields.number("rms_norm_eps"),
            tied=classes is None and fields.flag("tie_word_embeddings", False),
            classes=0 if classes is None else len(classes.names),
            family=name,
            attention_bias="attention_bias" in family.bias_fields and fields.flag("attention_bias", False),
            mlp_bias="mlp_bias" in family.bias_fields and fields.flag("mlp_bias", False),
            multipliers=_multipliers(fields) if family.has_multipliers else NO_MULTIPLIERS,
        )

    @property
    def parameters(self) -> int:
        """How many numbers the weights have."""
        heads, keys = self.query_heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.width * (2 * heads + 2 * keys)
        attention += (heads + 2 * keys) * self.qkv_bias + self.width * self.attention_bias
        attention += {QKNorm.NONE: 0, QKNorm.HEAD: 2 * self.head_dim, QKNorm.ALL_HEADS: heads + keys}[self.qk_norm]
        mlp = 3 * self.width * self.mlp_width + (2 * self.mlp_width + self.width) * self.mlp_bias
        outside = self.width * (1 + self.vocabulary + (0 if self.tied else self.outputs))
        return self.layers * (attention + mlp + 2 * self.width) + outside

    @property
    def size(self) -> ModelSize:
        """The floating-point operations of the model: 2 for each weight and token, or weight of the head and row, and
        4 x head_dim for each query head and pair of a query and a visible key.
        """
        projections = 2 * self.width * self.head_dim * (self.query_heads + self.kv_heads)
        return ModelSize(
            layers=self.layers,
            linear_flop=2 * self.layers * (projections + 3 * self.width * self.mlp_width),
            pair_flop=4 * self.layers * self.query_heads * self.head_dim,
            head_flop=2 * self.width * self.outputs,
        )

    def to_huggingface(self) -> dict[str, object]:
        """Return the fields of a ``config.json`` that HuggingFace loads as the same model. Classes have no names."""
        family = FAMILIES[self.family]
        biases = {"attention_bias": self.attention_bias, "mlp_bias": self.mlp_bias}
        return {
            "architectures": [_with_classes(family.architecture) if self.classes else family.architecture],
            **({"num_labels": self.classes} if self.classes else {}),
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
            "pad_token_id": None,  # HuggingFace's own for Phi-3 may not be in the vocabulary
            **{field: biases[field] for field in sorted(family.bias_fields)},
            **(self.multipliers._asdict() if family.has_multipliers else {}),
            **_without_window(family),
        }


def _without_window(family: Family) -> dict[str, object]:
    """Return the fields that say that no layer has a sliding window."""
    if family.window_switch:
        return {"use_sliding_window": False}
    return {} if family.default_window is None else {"sliding_window": None}


def _multipliers(fields: ConfigurationReader) -> Multipliers:
    return Multipliers(*(fields.number(name, 1.0) for name in Multipliers._fields))


_CHANGES_OF_NUMBERS = {
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "query_pre_attn_scalar": None,
    "hidden_activation": "silu",
    "logit_scale": 1.0,
    "clip_qkv": None,
    "lm_head_bias": False,
}
"""Fields with which other families change numbers on their way, and the values that change none."""


def _with_classes(architecture: str) -> str:
    """Return the class of the same decoder that has a head for classes."""
    return architecture.removesuffix("ForCausalLM") + SUFFIX


def _refuse_what_is_not_implemented(fields: ConfigurationReader, family: Family) -> None:
    if not family.has_classes or fields.get("architectures") != [_with_classes(family.architecture)]:
        fields.require("architectures", [family.architecture])
    fields.require("hidden_act", "silu")
    multipliers = {} if family.has_multipliers else Multipliers._field_defaults
    for field, unchanged in (_CHANGES_OF_NUMBERS | multipliers).items():
        fields.require(field, unchanged)
    for bias in ("attention_bias", "mlp_bias"):
        if bias not in family.bias_fields and not family.always_biased:
            fields.require(bias, False)
    if encoding_of(fields) is not None and family.is_fused:
        name = fields.get("model_type")
        raise UnsupportedModelError(
            f"quantization_config is not implemented for {name}, which has qkv_proj as one tensor"
        )
    layer_types = fields.get("layer_types") or []
    if not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types):
        raise UnsupportedModelError(f"layer_types {layer_types!r} is not implemented, only full_attention")
    if (window := _window_in_use(fields, family)) is not None:
        raise UnsupportedModelError(f"sliding_window {window} is in use, which is not implemented")


def _window_in_use(fields: ConfigurationReader, family: Family) -> int | None:
    """Return the sliding window if a layer has one that is shorter than the context. Defaults are HuggingFace's.

    HuggingFace ignores a window that a Llama names. Here it counts, since the decoder of whoever wrote it may have one.
    """
    if family.window_switch:
        if not fields.flag("use_sliding_window", False):
            return None
        # Layers before this number have no window.
        if fields.integer("max_window_layers", 28, least=0) >= fields.integer("num_hidden_layers"):
            return None
    if "sliding_window" not in fields and ("sliding_window" in fields.values or family.default_window is None):
        return None
    window = fields.integer("sliding_window", family.default_window)
    return window if window < context_length(fields.values) else None
