"""Small checkpoints of every family whose logits are spread, made from a seed alone.

A plain random model gives every token a probability of about one in the vocabulary, and any bug passes. So norms are
perturbed, kernels are large enough to matter, and the head is scaled until the top probability is often above a half.
numpy's ``RandomState`` is frozen, so the same seed is the same checkpoint on every machine: references need no weights.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from demonstration.saving import config_fields
from model.architecture.config import Caps, DecoderConfig, Multipliers
from model.architecture.decoder import Decoder
from model.architecture.experts import ClampedGate, Mixture
from model.architecture.families import Norms, QKNorm
from model.architecture.recurrence import Recurrence
from model.architecture.rope import LinearScaling, Llama3Scaling, LongScaling, Rope, Still, YarnScaling
from model.architecture.weights import without_values
from model.architecture.windows import Window

CONFIGS = {
    # Grouped heads, a head_dim that is not width / heads, a tied head.
    "tied": DecoderConfig(
        vocabulary=96,
        width=64,
        layers=3,
        query_heads=4,
        kv_heads=2,
        head_dim=32,
        mlp_width=160,
        context=1024,
        rope=Rope(10_000.0),
        norm_epsilon=1e-6,
        tied=True,
    ),
    # A head of its own, one key head, another base and epsilon, a vocabulary with padding rows.
    "untied": DecoderConfig(
        vocabulary=90,
        width=96,
        layers=2,
        query_heads=6,
        kv_heads=1,
        head_dim=16,
        mlp_width=200,
        context=1024,
        rope=Rope(1_000_000.0),
        norm_epsilon=1e-5,
        tied=False,
    ),
}
_SMALL = DecoderConfig(
    vocabulary=96,
    width=64,
    layers=2,
    query_heads=4,
    kv_heads=2,
    head_dim=16,
    mlp_width=160,
    context=1024,
    rope=Rope(10_000.0),
    norm_epsilon=1e-5,
    tied=False,
)
VARIANTS = {
    "qwen3 biased": replace(_SMALL, attention_bias=True),
    "qwen2 tied": replace(_SMALL, family="qwen2", tied=True, rope=Rope(1_000_000.0)),
    "qwen2 yarn": replace(_SMALL, family="qwen2", rope=Rope(10_000.0, YarnScaling(4.0, 32.0, 1.0, 256, True, 1.1386))),
    "llama": replace(_SMALL, family="llama", kv_heads=4),
    "llama3 scaled": replace(_SMALL, family="llama", tied=True, rope=Rope(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 64))),
    "llama biased": replace(
        _SMALL, family="llama", attention_bias=True, mlp_bias=True, rope=Rope(10_000.0, LinearScaling(4.0))
    ),
    "mistral": replace(_SMALL, family="mistral"),
    "granite": replace(_SMALL, family="granite", multipliers=Multipliers(3.0, 0.6, 0.4, 0.7)),
    "granite tied": replace(
        _SMALL, family="granite", tied=True, attention_bias=True, multipliers=Multipliers(4.0, 0.5, 0.2, 1.5)
    ),
    "granite4": replace(_SMALL, family="granitemoehybrid", multipliers=Multipliers(3.0, 0.6, 0.4, 0.7)),
    "olmo2": replace(_SMALL, family="olmo2", kv_heads=4),
    "olmo2 grouped": replace(_SMALL, family="olmo2", norm_epsilon=1e-6, rope=Rope(500_000.0)),
    "phi3": replace(_SMALL, family="phi3", rope=Rope(250_000.0)),
    "phi4 mini": replace(
        _SMALL,
        family="phi3",
        tied=True,
        rope=Rope(10_000.0, LongScaling((1.0, 1.25, 1.5, 2.0, 3.0, 4.0), 1024, 1.19), turned=0.75),
    ),
    "exaone4": replace(
        _SMALL,
        family="exaone4",
        rope=Rope(10_000.0, Still()),
        window=Window(20, (True, False), Rope(10_000.0, Llama3Scaling(8.0, 1.0, 4.0, 64))),
    ),
    "exaone4 without a window": replace(_SMALL, family="exaone4"),
    "smollm3": replace(
        _SMALL,
        family="smollm3",
        layers=3,
        rope=Rope(50_000.0, Still()),
        window=Window(1024, (True, False, True), Rope(50_000.0)),
    ),
    "seed-oss": replace(_SMALL, family="seed_oss", head_dim=32, rope=Rope(10_000_000.0)),
    "ministral3": replace(
        _SMALL, family="ministral3", rope=Rope(10_000.0, YarnScaling(16.0, 32.0, 1.0, 1024, True, 1.0))
    ),
    "mistral with a window": replace(_SMALL, family="mistral", window=Window(6, (True, True))),
    "phi3 with a window": replace(_SMALL, family="phi3", window=Window(40, (True, True))),
    "qwen2 with a window": replace(_SMALL, family="qwen2", window=Window(3, (False, True))),
    "gemma": replace(_SMALL, family="gemma", head_dim=32, multipliers=Multipliers(8.0)),
    # Caps that are low enough for these scores and logits.
    "gemma2": replace(
        _SMALL,
        family="gemma2",
        multipliers=Multipliers(8.0, attention_multiplier=24**-0.5),
        caps=Caps(0.7, 14.0),
        window=Window(5, (True, False)),
    ),
    "gemma3": replace(
        _SMALL,
        family="gemma3_text",
        layers=3,
        tied=True,
        rope=Rope(1_000_000.0, LinearScaling(8.0)),
        multipliers=Multipliers(8.0, attention_multiplier=24**-0.5),
        window=Window(5, (True, False, True), Rope(10_000.0)),
    ),
    "olmo3": replace(
        _SMALL,
        family="olmo3",
        rope=Rope(10_000.0, YarnScaling(4.0, 32.0, 1.0, 256, True, 1.1386)),
        window=Window(20, (True, False), Rope(10_000.0)),
    ),
    "qwen35": replace(
        _SMALL,
        family="qwen3_5_text",
        layers=4,
        head_dim=32,
        rope=Rope(10_000_000.0, turned=0.25),
        recurrence=Recurrence((True, True, True, False), 2, 4, 32, 24, 4),
    ),
    "qwen35 in turn": replace(
        _SMALL,
        family="qwen3_5_text",
        layers=4,
        rope=Rope(10_000.0, turned=0.5),
        recurrence=Recurrence((True, False, True, False), 2, 2, 24, 32, 3),
    ),
    "qwen3 moe": replace(_SMALL, family="qwen3_moe", mlp_width=48, mixture=Mixture(8, 2, normalised=True)),
    "qwen3 moe not normalised": replace(
        _SMALL, family="qwen3_moe", layers=3, mlp_width=40, head_dim=32, mixture=Mixture(6, 3, normalised=False)
    ),
    "qwen35 moe": replace(
        _SMALL,
        family="qwen3_5_moe_text",
        layers=4,
        head_dim=32,
        mlp_width=48,
        rope=Rope(10_000_000.0, turned=0.25),
        recurrence=Recurrence((True, True, True, False), 2, 4, 32, 24, 4),
        mixture=Mixture(8, 2, normalised=True, shared=40),
    ),
    "qwen3 next": replace(
        _SMALL,
        family="qwen3_next",
        mlp_width=40,
        rope=Rope(10_000.0, turned=0.5),
        recurrence=Recurrence((True, False), 2, 6, 24, 32, 3),
        mixture=Mixture(6, 3, normalised=False, shared=56),
    ),
    "gpt-oss": replace(
        _SMALL,
        family="gpt_oss",
        layers=3,
        mlp_width=64,
        attention_bias=True,
        rope=Rope(150_000.0, YarnScaling(8.0, 32.0, 1.0, 128, False, 1.2079)),
        window=Window(7, (True, False, True)),
        mixture=Mixture(6, 3, True, ClampedGate(1.3, 1.1)),
    ),
    "mistral wide heads": replace(_SMALL, family="mistral", head_dim=32, kv_heads=1, rope=Rope(1_000_000.0)),
}
"""The families, and what their configurations can vary; stretched so far that short sequences tell."""

EVERY = CONFIGS | VARIANTS

CLASSIFIERS = {
    "qwen3 with seven classes": replace(_SMALL, classes=7),
    "qwen2 with one output": replace(_SMALL, family="qwen2", classes=1, rope=Rope(1_000_000.0)),
    "llama with two classes": replace(_SMALL, family="llama", classes=2),
    "gpt-oss with three classes": replace(VARIANTS["gpt-oss"], classes=3),
    "qwen3 moe with three classes": replace(VARIANTS["qwen3 moe"], classes=3),
    "mistral with three classes": replace(_SMALL, family="mistral", classes=3),
    "olmo2 with three classes": replace(_SMALL, family="olmo2", classes=3),
    "phi3 with two classes": replace(_SMALL, family="phi3", classes=2),
    "gemma2 with two classes": replace(VARIANTS["gemma2"], classes=2, caps=Caps(0.7)),
    "gemma3 with three classes": replace(VARIANTS["gemma3"], classes=3, tied=False),
    "olmo3 with two classes": replace(VARIANTS["olmo3"], classes=2, tied=False),
    "qwen35 with three classes": replace(VARIANTS["qwen35"], classes=3, tied=False),
}
"""The families with a head for classes."""

_LOGIT_SPREAD = 2.4
_VARIANT_SPREAD = 3.6
"""Standard deviation that the logits aim at; two layers and biases take some of it away."""
_GAIN = 0.4
"""Of a layer's kernels: large enough for a bug to show, small enough for bf16 to stay within its gates."""
_GAIN_OF_EXPERTS = 1.0
"""Of an expert's kernels, since a token passes few of them and their weights are less than one."""
_GAIN_OF_ROUTERS = 1.5  # and of the gates of what all tokens pass
"""Of routers, so that the experts of a token have different weights."""
_MLP = ("gate", "up", "down")
_GAIN_AFTER = 0.4
"""Of norms behind attention and MLP, which undo the gain of the kernels."""

Tensors = dict[str, np.ndarray]


def tensors(config: DecoderConfig, seed: int) -> Tensors:
    """The weights under HuggingFace's names and in its orientation, float32."""
    random = np.random.RandomState(seed)

    def kernel(out: int, size: int, gain: float = _GAIN) -> np.ndarray:
        return np.asarray(random.standard_normal((out, size)) * gain / np.sqrt(size), np.float32)

    def bias(size: int) -> np.ndarray:
        return (0.15 * random.standard_normal(size)).astype(np.float32)

    def norm(size: int, around: float = 1.0) -> np.ndarray:
        return (around * (1.0 + 0.4 * random.standard_normal(size)) - config.traits.norm_offset).astype(np.float32)

    D, width = config.head_dim, config.width
    spread = _VARIANT_SPREAD if config in VARIANTS.values() and not config.tied else _LOGIT_SPREAD
    found: Tensors = {}
    for i in range(config.layers):
        layer = f"model.layers.{i}."
        if config.traits.norms is not Norms.AFTER:
            found[layer + "input_layernorm.weight"] = norm(width)
        if config.recurrent[i] and config.recurrence is not None:
            sizes = config.recurrence
            mixer = layer + "linear_attn."
            found[mixer + "in_proj_qkv.weight"] = kernel(sizes.channels, width, 1.0)
            found[mixer + "in_proj_z.weight"] = kernel(sizes.output, width, 1.0)
            found[mixer + "in_proj_b.weight"] = kernel(sizes.value_heads, width, 1.0)
            found[mixer + "in_proj_a.weight"] = kernel(sizes.value_heads, width, 1.0)
            found[mixer + "conv1d.weight"] = kernel(sizes.channels, sizes.inputs, 2.0)[:, None]
            # Some heads forget at once, and others after hundreds of tokens.
            found[mixer + "A_log"] = np.linspace(-4, 1, sizes.value_heads).astype(np.float32)
            found[mixer + "dt_bias"] = bias(sizes.value_heads)
            found[mixer + "norm.weight"] = norm(sizes.value_dim) + np.float32(config.traits.norm_offset)
            found[mixer + "out_proj.weight"] = kernel(width, sizes.output)
        else:
            heads = {"q": config.query_heads * D, "k": config.kv_heads * D, "v": config.kv_heads * D}
            rows = heads | {"q": heads["q"] * (2 if config.traits.is_hybrid else 1)}
            for letter, size in rows.items():
                found[layer + f"self_attn.{letter}_proj.weight"] = kernel(size, width)
                if config.qkv_bias:
                    found[layer + f"self_attn.{letter}_proj.bias"] = bias(size)
            found[layer + "self_attn.o_proj.weight"] = kernel(width, config.query_heads * D)
            if config.attention_bias:
                found[layer + "self_attn.o_proj.bias"] = bias(width)
            if config.traits.is_gpt_oss:
                found[layer + "self_attn.sinks"] = 1.0 + random.standard_normal(config.query_heads).astype(np.float32)
            if config.traits.qk_norm:
                of_all = config.traits.qk_norm is QKNorm.ALL_HEADS
                found[layer + "self_attn.q_norm.weight"] = norm(heads["q"] if of_all else D)
                found[layer + "self_attn.k_norm.weight"] = norm(heads["k"] if of_all else D)
        after = 1.0 if config.traits.norms is Norms.BEFORE else _GAIN_AFTER
        found[layer + "post_attention_layernorm.weight"] = norm(width, after)
        mlps, gain = [""], _GAIN
        biased = config.mlp_bias or (config.mixture is not None and config.mixture.biased)
        if config.mixture is not None:
            router = layer + ("mlp.router" if config.traits.is_gpt_oss else "mlp.gate")
            found[f"{router}.weight"] = kernel(config.mixture.experts, width, _GAIN_OF_ROUTERS)
            if biased:
                found[f"{router}.bias"] = bias(config.mixture.experts)
            mlps, gain = [f"experts.{number}." for number in range(config.mixture.experts)], _GAIN_OF_EXPERTS
        widths = dict.fromkeys(mlps, config.mlp_width)
        if config.mixture is not None and config.mixture.shared:
            found[layer + "mlp.shared_expert_gate.weight"] = kernel(1, width, _GAIN_OF_ROUTERS)
            widths["shared_expert."] = config.mixture.shared
        for mlp, inner in widths.items():
            for name, out, size in (("gate", inner, width), ("up", inner, width), ("down", width, inner)):
                found[layer + f"mlp.{mlp}{name}_proj.weight"] = kernel(out, size, gain)
                if biased:
                    found[layer + f"mlp.{mlp}{name}_proj.bias"] = bias(out)
        if config.traits.is_gpt_oss:
            _put_experts_together(found, layer + "mlp.experts.", len(mlps))
        if config.family == "qwen3_5_moe_text":
            stacked = {part: [found.pop(f"{layer}mlp.{mlp}{part}_proj.weight") for mlp in mlps] for part in _MLP}
            gated = [np.concatenate(both) for both in zip(stacked["gate"], stacked["up"], strict=True)]
            found[layer + "mlp.experts.gate_up_proj"] = np.stack(gated)
            found[layer + "mlp.experts.down_proj"] = np.stack(stacked["down"])
        if config.traits.norms is Norms.AROUND:
            found[layer + "pre_feedforward_layernorm.weight"] = norm(width)
        if config.traits.norms is not Norms.BEFORE:
            found[layer + "post_feedforward_layernorm.weight"] = norm(width, _GAIN_AFTER)
        if config.traits.is_fused and config.recurrent[i]:
            _put_key_heads_together(found, layer + "linear_attn.", config)
        elif config.traits.is_fused and config.recurrence is None:
            for fused, parts in (("self_attn.qkv_proj", "qkv"), ("mlp.gate_up_proj", ("gate", "up"))):
                names = [layer + f"{fused.partition('.')[0]}.{part}_proj.weight" for part in parts]
                found[layer + f"{fused}.weight"] = np.concatenate([found.pop(name) for name in names])
        if config.traits.has_shared_mlp:
            gated = [found.pop(f"{layer}mlp.{part}_proj.weight") for part in ("gate", "up")]
            found[layer + "shared_mlp.input_linear.weight"] = np.concatenate(gated)
            found[layer + "shared_mlp.output_linear.weight"] = found.pop(layer + "mlp.down_proj.weight")
    found["model.norm.weight"] = norm(width)
    found["model.embed_tokens.weight"] = kernel(config.vocabulary, width, spread / 2 if config.tied else 1.0)
    if not config.tied:
        found["score.weight" if config.classes else "lm_head.weight"] = kernel(config.outputs, width, spread)
    return found


def _put_key_heads_together(found: Tensors, module: str, config: DecoderConfig) -> None:
    """Replace the tensors of a recurrent layer by those of Qwen3-Next, in which a key head follows another."""
    sizes = config.recurrence
    assert sizes is not None
    of_keys = sizes.key_heads * sizes.key_dim
    mixed = found.pop(module + "in_proj_qkv.weight")
    parts = *np.split(mixed, [of_keys, 2 * of_keys]), found.pop(module + "in_proj_z.weight")
    gates = found.pop(module + "in_proj_b.weight"), found.pop(module + "in_proj_a.weight")
    for name, joined in (("in_proj_qkvz", parts), ("in_proj_ba", gates)):
        heads = [np.concatenate(each) for each in zip(*(np.split(p, sizes.key_heads) for p in joined), strict=True)]
        found[f"{module}{name}.weight"] = np.concatenate(heads)


def _put_experts_together(found: Tensors, module: str, experts: int) -> None:
    """Replace the tensors of single experts by those of gpt-oss: gate and up in turn, and kernels as [in, out]."""

    def of_all(name: str) -> np.ndarray:
        return np.stack([found.pop(f"{module}{expert}.{name}") for expert in range(experts)])

    gate, up, down = (of_all(f"{name}_proj.weight") for name in ("gate", "up", "down"))
    biases = [of_all(f"{name}_proj.bias") for name in ("gate", "up", "down")]
    gate_up = np.empty((experts, gate.shape[2], 2 * gate.shape[1]), np.float32)
    gate_up[..., ::2], gate_up[..., 1::2] = gate.swapaxes(1, 2), up.swapaxes(1, 2)
    found[module + "gate_up_proj"], found[module + "down_proj"] = gate_up, np.ascontiguousarray(down.swapaxes(1, 2))
    found[module + "gate_up_proj_bias"] = np.stack(biases[:2], axis=-1).reshape(experts, -1)
    found[module + "down_proj_bias"] = biases[2]


def write(directory: Path, config: DecoderConfig, weights: Tensors) -> Path:
    """A checkpoint directory as HuggingFace reads it."""
    directory.mkdir(parents=True, exist_ok=True)
    fields = config_fields(config) | {"dtype": "float32"}
    (directory / "config.json").write_text(json.dumps(fields))
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def sequences(config: DecoderConfig, seed: int, lengths: tuple[int, ...]) -> list[np.ndarray]:
    """One random sequence of token ids a length."""
    random = np.random.RandomState(seed)
    return [random.randint(0, config.vocabulary, length).astype(np.int32) for length in lengths]


def random_decoder(config: DecoderConfig, dtype: str = "float32", seed: int = 0) -> Decoder:
    """A decoder with random weights of NumPy's. Those that flax draws take a second or two to compile."""
    graph, state = nnx.split(without_values(config, dtype))
    random = np.random.default_rng(seed)

    def drawn(shape: jax.ShapeDtypeStruct) -> jax.Array:
        kernel = random.standard_normal(shape.shape, np.float32) / np.sqrt(shape.shape[-1])
        return jnp.asarray(kernel.astype(shape.dtype))

    found: Decoder = nnx.merge(graph, jax.tree.map(drawn, state))
    return found
