"""Small Qwen3 checkpoints whose logits are spread, made from a seed alone.

A plain random model gives every token a probability of about one in the vocabulary, and any bug passes. So norms are
perturbed, kernels are large enough to matter, and the head is scaled until the top probability is often above a half.
numpy's ``RandomState`` is frozen, so the same seed is the same checkpoint on every machine: references need no weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from model.config import DecoderConfig

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
        rope_theta=10_000.0,
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
        rope_theta=1_000_000.0,
        norm_epsilon=1e-5,
        tied=False,
    ),
}
_LOGIT_SPREAD = 2.4
"""Standard deviation that the logits aim at."""
_GAIN = 0.4
"""Of a layer's kernels: large enough for a bug to show, small enough for bf16 to stay within its gates."""

Tensors = dict[str, np.ndarray]


def tensors(config: DecoderConfig, seed: int) -> Tensors:
    """The weights under HuggingFace's names and in its orientation, float32."""
    random = np.random.RandomState(seed)

    def kernel(out: int, size: int, gain: float = _GAIN) -> np.ndarray:
        return (random.standard_normal((out, size)) * gain / np.sqrt(size)).astype(np.float32)

    def norm(size: int, around: float = 1.0) -> np.ndarray:
        return (around * (1.0 + 0.4 * random.standard_normal(size))).astype(np.float32)

    D, width = config.head_dim, config.width
    found: Tensors = {}
    for i in range(config.layers):
        layer = f"model.layers.{i}."
        found[layer + "input_layernorm.weight"] = norm(width)
        found[layer + "self_attn.q_proj.weight"] = kernel(config.query_heads * D, width)
        found[layer + "self_attn.k_proj.weight"] = kernel(config.kv_heads * D, width)
        found[layer + "self_attn.v_proj.weight"] = kernel(config.kv_heads * D, width)
        found[layer + "self_attn.o_proj.weight"] = kernel(width, config.query_heads * D)
        found[layer + "self_attn.q_norm.weight"] = norm(D)
        found[layer + "self_attn.k_norm.weight"] = norm(D)
        found[layer + "post_attention_layernorm.weight"] = norm(width)
        found[layer + "mlp.gate_proj.weight"] = kernel(config.mlp_width, width)
        found[layer + "mlp.up_proj.weight"] = kernel(config.mlp_width, width)
        found[layer + "mlp.down_proj.weight"] = kernel(width, config.mlp_width)
    found["model.norm.weight"] = norm(width)
    found["model.embed_tokens.weight"] = kernel(config.vocabulary, width, _LOGIT_SPREAD / 2 if config.tied else 1.0)
    if not config.tied:
        found["lm_head.weight"] = kernel(config.vocabulary, width, _LOGIT_SPREAD)
    return found


def write(directory: Path, config: DecoderConfig, weights: Tensors) -> Path:
    """A checkpoint directory as HuggingFace reads it."""
    directory.mkdir(parents=True, exist_ok=True)
    fields = config.to_huggingface() | {"dtype": "float32"}
    (directory / "config.json").write_text(json.dumps(fields))
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def sequences(config: DecoderConfig, seed: int, lengths: tuple[int, ...]) -> list[np.ndarray]:
    """One random sequence of token ids a length."""
    random = np.random.RandomState(seed)
    return [random.randint(0, config.vocabulary, length).astype(np.int32) for length in lengths]
