"""The configuration of a decoder, read from a HuggingFace ``config.json``.

Fields that ask for anything the decoder does not implement are refused by name: a checkpoint that loads but computes
wrong scores is worse than one that does not load. A new family is an entry of
:data:`model.architecture.families.FAMILIES`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from checkpoints.decision_head import DecisionHead
from checkpoints.files import context_length, read_classes, read_config, read_decision_head
from model.architecture.configuration_reader import ConfigurationReader, UnsupportedModelError
from model.architecture.experts import Mixture, read_mixture
from model.architecture.families import FAMILIES, Family, Norms, QKNorm
from model.architecture.recurrence import Recurrence, read_recurrence
from model.architecture.rope import LongScaling, Rope
from model.architecture.stored.reading import MXFP4, encoding_of, method_of
from model.architecture.windows import Window, read_positions
from scoring.planning.estimates import ModelSize


class Multipliers(NamedTuple):
    """The factors of Granite, by their fields. Gemma has the first and the third, and other families have none."""

    embedding_multiplier: float = 1.0  # of the vectors of tokens
    residual_multiplier: float = 1.0  # of what attention and MLP add to the residual stream
    attention_multiplier: float | None = None  # of attention scores; None: 1 / sqrt(head_dim)
    logits_scaling: float = 1.0  # by which logits are divided


NO_MULTIPLIERS = Multipliers()


class Caps(NamedTuple):
    """Limits within which a hyperbolic tangent keeps numbers, in Gemma 2; None: there is none."""

    scores: float | None = None  # of attention
    logits: float | None = None  # of the vocabulary


NO_CAPS = Caps()


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The configuration of a decoder-only model with grouped-query attention and a gated MLP."""

    vocabulary: int  # width of the logits, padding rows included
    width: int  # of the residual stream
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int  # of the MLP, or of each expert of a mixture
    context: int  # tokens of the longest sequence
    rope: Rope
    norm_epsilon: float
    tied: bool  # the head is the transposed embedding
    family: str = "qwen3"  # a key of :data:`model.architecture.families.FAMILIES`
    attention_bias: bool = False  # of all four projections of attention
    mlp_bias: bool = False  # of all three projections of the MLP
    classes: int = 0  # outputs of a head for classes; 0: the head has the logits of the vocabulary
    decides: bool = False  # whether the classes are the labels of decisions: such a head has a bias
    multipliers: Multipliers = NO_MULTIPLIERS
    caps: Caps = NO_CAPS
    window: Window | None = None  # None: every token sees all tokens before it, in all layers
    recurrence: Recurrence | None = None  # None: all layers have attention
    mixture: Mixture | None = None  # None: every layer has one MLP

    def __post_init__(self) -> None:
        if self.query_heads % self.kv_heads:
            raise UnsupportedModelError(
                f"num_attention_heads {self.query_heads} is no multiple of num_key_value_heads {self.kv_heads}"
            )
        if self.head_dim % 2:
            raise UnsupportedModelError(f"head_dim {self.head_dim} is odd; rotary positions need pairs")
        if 2 * self.rope.pairs(self.head_dim) != self.head_dim * self.rope.turned or self.rope.pairs(self.head_dim) < 1:
            raise UnsupportedModelError(
                f"partial_rotary_factor {self.rope.turned:g} of head_dim {self.head_dim} makes no whole pairs"
            )
        scaling, pairs = self.rope.scaling, self.rope.pairs(self.head_dim)
        if isinstance(scaling, LongScaling) and len(scaling.factors) != pairs:
            raise UnsupportedModelError(f"short_factor has {len(scaling.factors)} numbers for {pairs} pairs of a head")

    @property
    def traits(self) -> Family:
        """What distinguishes its family."""
        return FAMILIES[self.family]

    @property
    def has_plain_attention(self) -> bool:
        """Whether attention needs what no kernel of an accelerator knows: sliding windows, or a cap of scores."""
        return self.window is not None or self.caps.scores is not None

    @property
    def windowed(self) -> tuple[bool, ...]:
        """Which layers have a sliding window."""
        return (False,) * self.layers if self.window is None else self.window.layers

    @property
    def recurrent(self) -> tuple[bool, ...]:
        """Which layers are recurrent; the others have attention."""
        return (False,) * self.layers if self.recurrence is None else self.recurrence.layers

    @property
    def attention_layers(self) -> int:
        """How many layers have attention, and so keys and values of every token."""
        return self.layers - sum(self.recurrent)

    @property
    def state_bytes(self) -> int:
        """Bytes of what recurrent layers keep of a sequence, in float32; 0 if there are none."""
        return 0 if self.recurrence is None else self.recurrence.state_bytes

    @property
    def reach(self) -> int:
        """How many tokens a token sees in a layer with a sliding window, itself among them."""
        return self.context if self.window is None else self.window.size

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The rotary positions, and those of layers with a window where they differ."""
        own = None if self.window is None else self.window.rope
        return (self.rope,) if own is None else (self.rope, own)

    @property
    def query_scale(self) -> float:
        """What queries are multiplied by, since attention divides scores by sqrt(head_dim) in all families."""
        multiplier = self.multipliers.attention_multiplier
        return 1.0 if multiplier is None else multiplier * math.sqrt(self.head_dim)

    @property
    def qkv_bias(self) -> bool:
        """Whether the projections to queries, keys and values have biases."""
        return self.attention_bias or self.traits.always_biased

    @property
    def outputs(self) -> int:
        """How many logits the head gives."""
        return self.classes or self.vocabulary

    @classmethod
    def from_directory(cls, directory: Path) -> DecoderConfig:
        """Read a checkpoint. Raises :class:`checkpoints.files.CheckpointError`; see :meth:`from_huggingface`."""
        return cls.from_huggingface(read_config(directory), read_decision_head(directory))

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any], head: DecisionHead | None = None) -> DecoderConfig:
        """Read the fields of a ``config.json``. Raises :class:`UnsupportedModelError`, which names a field.

        head: that of a checkpoint for decisions, in place of the one that the fields name.
        """
        fields = ConfigurationReader(config)
        name = fields.get("model_type")
        if name not in FAMILIES:
            raise UnsupportedModelError(f"model_type {name!r} is not implemented; known: {', '.join(FAMILIES)}")
        family = FAMILIES[name]
        _refuse_what_is_not_implemented(fields, family, may_be_a_body=head is not None)
        classes = read_classes(config) if head is None else head.classes
        width, query_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
        rope, window = read_positions(fields, family)
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
            mlp_width=fields.integer(family.mlp_width_field),
            context=context_length(config),
            rope=rope,
            norm_epsilon=fields.number("rms_norm_eps"),
            tied=classes is None and fields.flag("tie_word_embeddings", family.is_tied),
            classes=0 if classes is None else len(classes.names),
            family=name,
            attention_bias="attention_bias" in family.bias_fields and fields.flag("attention_bias", family.is_gpt_oss),
            mlp_bias="mlp_bias" in family.bias_fields and fields.flag("mlp_bias", False),
            decides=head is not None,
            multipliers=_multipliers(fields, family, divides=head is None),
            caps=_caps(fields, of_logits=classes is None) if family.has_caps else NO_CAPS,
            window=window,
            recurrence=read_recurrence(fields) if family.is_hybrid else None,
            mixture=read_mixture(fields, family) if family.is_mixture else None,
        )

    @property
    def parameters(self) -> int:
        """How many numbers the weights have."""
        heads, keys = self.query_heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.width * ((3 if self.traits.is_hybrid else 2) * heads + 2 * keys)
        attention += (heads + 2 * keys) * self.qkv_bias + self.width * self.attention_bias
        attention += self.query_heads * self.traits.is_gpt_oss
        normed = {QKNorm.NONE: 0, QKNorm.HEAD: 2 * self.head_dim, QKNorm.ALL_HEADS: heads + keys}
        attention += normed[self.traits.qk_norm]
        mlp = self._mlp_weights(1 if self.mixture is None else self.mixture.experts)
        mlp += (2 * self.mlp_width + self.width) * self.mlp_bias
        outside = self.width * (1 + self.vocabulary + (0 if self.tied else self.outputs)) + self.classes * self.decides
        norms = 4 if self.traits.norms is Norms.AROUND else 2
        recurrent = 0 if self.recurrence is None else sum(self.recurrent) * self.recurrence.parameters(self.width)
        return self.attention_layers * attention + recurrent + self.layers * (mlp + norms * self.width) + outside

    @property
    def parameters_of_a_token(self) -> int:
        """How many of these numbers a token is computed with: all, but for experts that are not chosen."""
        if self.mixture is None:
            return self.parameters
        others = self._mlp_weights(self.mixture.experts) - self._mlp_weights(self.mixture.chosen)
        return self.parameters - self.layers * others

    def _mlp_weights(self, experts: int) -> int:
        """Return how many numbers a layer's MLP has in its kernels, or so many experts and their router in all."""
        kernels = 3 * experts * self.width * self.mlp_width
        if self.mixture is None:
            return kernels
        biases = (experts * (2 * self.mlp_width + self.width) + self.mixture.experts) * self.mixture.biased
        shared = (3 * self.mixture.shared + 1) * self.width if self.mixture.shared else 0
        return kernels + shared + self.width * self.mixture.experts + biases

    @property
    def size(self) -> ModelSize:
        """The floating-point operations of the model: 2 for each weight and token, or weight of the head and row, and
        4 x head_dim for each query head and pair of a query and a visible key. Of a mixture, the experts of a token
        count. In layers with a sliding window, pairs are counted as in the others, so that the time of long prompts is
        estimated too high.
        """
        of_heads = (3 if self.traits.is_hybrid else 2) * self.query_heads + 2 * self.kv_heads
        mixing = self.attention_layers * self.width * self.head_dim * of_heads
        mlp = self._mlp_weights(1 if self.mixture is None else self.mixture.chosen)
        if self.recurrence is not None:
            # A token reads the state for its query and its key, and writes to it.
            of_state = 3 * self.recurrence.output * self.recurrence.key_dim
            mixing += sum(self.recurrent) * (self.recurrence.parameters(self.width) + of_state)
        return ModelSize(
            layers=self.layers,
            linear_flop=2 * (mixing + self.layers * mlp),
            pair_flop=4 * self.attention_layers * self.query_heads * self.head_dim,
            head_flop=2 * self.width * self.outputs,
        )


def _multipliers(fields: ConfigurationReader, family: Family, *, divides: bool) -> Multipliers:
    """Return the factors of a model. divides: whether logits are divided: those of decisions are not."""
    if family.has_multipliers:
        found = Multipliers(*(fields.number(name, 1.0) for name in Multipliers._fields))
        return found if divides else found._replace(logits_scaling=1.0)
    if not family.is_gemma:
        return NO_MULTIPLIERS
    of_queries = fields.integer("query_pre_attn_scalar", 256) ** -0.5 if family.has_scalar else None
    return Multipliers(fields.integer("hidden_size") ** 0.5, attention_multiplier=of_queries)


_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
"""The fields of :class:`Caps`, and HuggingFace's defaults."""


def _caps(fields: ConfigurationReader, *, of_logits: bool) -> Caps:
    """Return the limits of a model, where null means that there is none. of_logits: whether it has such logits."""

    def read(name: str) -> float | None:
        is_null = name in fields.values and name not in fields
        return None if is_null else fields.number(name, _CAPS[name])

    scores, logits = map(read, _CAPS)
    return Caps(scores, logits if of_logits else None)


_CHANGES_OF_NUMBERS = {
    "use_bidirectional_attention": False,
    "is_causal": True,
    "logit_scale": 1.0,
    "clip_qkv": None,
    "lm_head_bias": False,
}
"""Fields with which other families change numbers on their way, and the values that change none."""


_GRANITE_WITHOUT_EXPERTS = {"num_local_experts": 0, "position_embedding_type": "rope"}
"""Fields of Granite 4 that HuggingFace takes for others where they are absent, and the values that are implemented."""


def _refuse_what_is_not_implemented(fields: ConfigurationReader, family: Family, *, may_be_a_body: bool) -> None:
    known = [family.classifier] if family.classifier else []
    if may_be_a_body:
        known = [family.architecture.replace("ForCausalLM", end) for end in ("Model", "TextModel")]
    if fields.get("architectures") not in ([name] for name in known):
        fields.require("architectures", [family.architecture])
    for name in ("hidden_act", "hidden_activation"):
        if not (family.is_gemma and fields.get(name) == "gelu" and name == "hidden_act"):  # which means the other one
            fields.require(name, family.activation)
    if not family.has_scalar:
        fields.require("query_pre_attn_scalar", None)
    multipliers = {} if family.has_multipliers else Multipliers._field_defaults
    caps = {} if family.has_caps else dict.fromkeys(_CAPS)
    for field, unchanged in (_CHANGES_OF_NUMBERS | multipliers | caps).items():
        fields.require(field, unchanged)
    for bias in ("attention_bias", "mlp_bias"):
        if bias not in family.bias_fields and not family.always_biased:
            fields.require(bias, False)
    if family.has_shared_mlp:
        for name, only in _GRANITE_WITHOUT_EXPERTS.items():
            fields.require(name, only, present=True)
    method, encoding = method_of(fields.values), encoding_of(fields)  # which refuses what it can't read
    if encoding is not None and (method == MXFP4) != family.is_gpt_oss:
        raise UnsupportedModelError(f"quant_method {method!r} is not implemented for {fields.get('model_type')}")
