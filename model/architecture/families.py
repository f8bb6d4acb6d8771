"""The families of decoders, by what distinguishes them: see :mod:`model.architecture.config`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from checkpoints.classification import SUFFIX


class QKNorm(StrEnum):
    """What of queries and keys is normed together."""

    NONE = ""
    HEAD = "head"  # each head by itself
    ALL_HEADS = "all heads"


class Norms(StrEnum):
    """Where the norms of attention and MLP stand."""

    BEFORE = "before"
    AFTER = "after"  # behind what they compute, before it is added
    AROUND = "around"  # on both sides


class Windows(NamedTuple):
    """What HuggingFace knows of the sliding windows of a family."""

    default: int | None  # tokens, of configurations that leave it out; None: no window
    switch: bool = False  # it is in use only with ``use_sliding_window``
    pattern: int = 0  # each so-many-eth layer has none, unless ``layer_types`` says otherwise; 0: all have it
    reads_pattern: bool = False  # ``sliding_window_pattern`` may name another number
    is_still: bool = False  # layers without it have no positions; or those of ``no_rope_layers``, without a default
    bases: tuple[float, float] | None = None  # of the rotary positions, where each kind of layers has its own: defaults


@dataclass(frozen=True, slots=True)
class Family:
    """How HuggingFace implements a family of decoders."""

    architecture: str  # the class that computes next-token logits
    qk_norm: QKNorm = QKNorm.NONE
    norms: Norms = Norms.BEFORE
    norm_offset: float = 0.0  # what is added to the weights of norms
    activation: str = "silu"  # of the MLP's gate, by HuggingFace's name
    is_gemma: bool = False  # embeddings are multiplied by the root of their width
    has_caps: bool = False  # scores and logits are kept within limits: see Caps
    has_scalar: bool = False  # scores are multiplied by a number of their own
    is_tied: bool = False  # the head is the embedding, of configurations that leave it out
    is_fused: bool = False  # several projections of a layer are one tensor of a checkpoint: see fused_tensors
    has_multipliers: bool = False  # embeddings, scores, what layers add, and logits have factors: see Multipliers
    has_classes: bool = True  # HuggingFace has it with a head for classes, too
    text: str = ""  # what distinguishes the name of that class from the one of a model that takes pictures
    scalings: tuple[str, ...] = ("linear", "llama3", "yarn")  # how a configuration may stretch positions
    always_biased: bool = False  # queries, keys and values have biases whatever the configuration says
    bias_fields: frozenset[str] = frozenset()  # the fields that may switch on biases
    head_dim: int | None = None  # default; None: width / query heads
    kv_heads: int | None = None  # default; None: the number of query heads
    windows: Windows | None = None  # None: HuggingFace has none for it
    is_hybrid: bool = False  # some layers are recurrent, and what attention gives is gated: see Recurrence
    is_mixture: bool = False  # the MLP of every layer is a mixture of experts: see Mixture
    always_normalises: bool = False  # the weights of a token's experts add up to one whatever the configuration says
    has_shared_expert: bool = False  # all tokens pass one MLP more, whose result is gated
    has_shared_mlp: bool = False  # the MLP has the names of Granite 4's, whose gate and up are one tensor
    is_gpt_oss: bool = False  # heads see a sink, experts have a clamped gate and biases, and share their tensors
    # The share of each head that positions rotate, of configurations that leave it out; None: they may name no other.
    turned: float | None = None

    @property
    def mlp_width_field(self) -> str:
        """The field with the width of the MLP, or of each expert."""
        if self.has_shared_mlp:
            return "shared_intermediate_size"
        return "moe_intermediate_size" if self.is_mixture and not self.is_gpt_oss else "intermediate_size"

    @property
    def classifier(self) -> str | None:
        """The class of the same decoder with a head for classes; None if there is none."""
        return self.architecture.replace("ForCausalLM", self.text + SUFFIX) if self.has_classes else None


_GEMMA = Family(
    "GemmaForCausalLM",
    norm_offset=1.0,
    activation="gelu_pytorch_tanh",
    is_gemma=True,
    is_tied=True,
    bias_fields=frozenset({"attention_bias"}),
    head_dim=256,
    kv_heads=16,
)
"""The first Gemma. Later ones are told by what they have besides."""

_QWEN35 = Family(
    "Qwen3_5ForCausalLM",
    qk_norm=QKNorm.HEAD,
    norm_offset=1.0,
    text="Text",
    scalings=(),
    head_dim=256,
    kv_heads=4,
    is_hybrid=True,
    turned=0.25,
)
"""All hybrids compute as Qwen3.5 does."""

FAMILIES = {
    "exaone4": Family(
        "Exaone4ForCausalLM",
        qk_norm=QKNorm.HEAD,
        norms=Norms.AFTER,
        kv_heads=32,
        windows=Windows(4096, pattern=4, reads_pattern=True, is_still=True),
    ),
    "gemma": _GEMMA,
    "gemma2": replace(
        _GEMMA,
        architecture="Gemma2ForCausalLM",
        norms=Norms.AROUND,
        has_caps=True,
        has_scalar=True,
        kv_heads=4,
        windows=Windows(4096, pattern=2),
    ),
    "gemma3_text": replace(
        _GEMMA,
        architecture="Gemma3ForCausalLM",
        qk_norm=QKNorm.HEAD,
        norms=Norms.AROUND,
        has_scalar=True,
        text="Text",
        kv_heads=None,
        windows=Windows(4096, pattern=6, reads_pattern=True, bases=(1_000_000.0, 10_000.0)),
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        bias_fields=frozenset({"attention_bias"}),
        scalings=("yarn",),
        head_dim=64,
        kv_heads=8,
        windows=Windows(128, pattern=2),
        is_mixture=True,
        always_normalises=True,
        is_gpt_oss=True,
    ),
    "granite": Family(
        "GraniteForCausalLM",
        bias_fields=frozenset({"attention_bias", "mlp_bias"}),
        has_multipliers=True,
        has_classes=False,
    ),
    "granitemoehybrid": Family(
        "GraniteMoeHybridForCausalLM",
        bias_fields=frozenset({"attention_bias"}),
        has_multipliers=True,
        has_classes=False,
        has_shared_mlp=True,
    ),
    "llama": Family("LlamaForCausalLM", bias_fields=frozenset({"attention_bias", "mlp_bias"})),
    "ministral3": Family("Ministral3ForCausalLM", scalings=("yarn",), head_dim=128, kv_heads=8, windows=Windows(None)),
    "mistral": Family("MistralForCausalLM", kv_heads=8, windows=Windows(4096)),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        qk_norm=QKNorm.ALL_HEADS,
        norms=Norms.AFTER,
        bias_fields=frozenset({"attention_bias"}),
    ),
    "olmo3": Family(
        "Olmo3ForCausalLM",
        qk_norm=QKNorm.ALL_HEADS,
        norms=Norms.AFTER,
        bias_fields=frozenset({"attention_bias"}),
        windows=Windows(4096, pattern=4, bases=(500_000.0, 500_000.0)),
    ),
    "phi3": Family("Phi3ForCausalLM", is_fused=True, scalings=("longrope",), turned=1.0, windows=Windows(None)),
    "qwen2": Family("Qwen2ForCausalLM", always_biased=True, windows=Windows(4096, switch=True)),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        qk_norm=QKNorm.HEAD,
        bias_fields=frozenset({"attention_bias"}),
        head_dim=128,
        windows=Windows(4096, switch=True),
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        qk_norm=QKNorm.HEAD,
        bias_fields=frozenset({"attention_bias"}),
        kv_heads=4,
        windows=Windows(4096, switch=True),
        is_mixture=True,
    ),
    "qwen3_5_moe_text": replace(
        _QWEN35,
        architecture="Qwen3_5MoeForCausalLM",
        has_classes=False,
        kv_heads=2,
        is_mixture=True,
        always_normalises=True,
        has_shared_expert=True,
    ),
    "qwen3_5_text": _QWEN35,
    "qwen3_next": replace(
        _QWEN35,
        architecture="Qwen3NextForCausalLM",
        text="",
        kv_heads=2,
        is_mixture=True,
        has_shared_expert=True,
        is_fused=True,
    ),
    "seed_oss": Family("SeedOssForCausalLM", always_biased=True, head_dim=128, kv_heads=8),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        is_tied=True,
        bias_fields=frozenset({"attention_bias", "mlp_bias"}),
        kv_heads=4,
        windows=Windows(None, is_still=True),
    ),
}
"""Families by ``model_type``."""
