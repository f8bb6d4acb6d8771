"""Writes models with random weights as GGUF files, for llama.cpp: a Qwen3 or a Qwen3.5, without a tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.shapes import SHAPES
from demonstration.saving import joined
from model.architecture.config import DecoderConfig
from model.architecture.weights import fused_tensors

DTYPES = ("bfloat16", "float32")
"""Of the weights in a file."""

TENSORS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_TENSORS = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
"""llama.cpp's names by HuggingFace's, without the layer's ``blk.N.`` and ``model.layers.N.`` in front."""
HYBRID_TENSORS = LAYER_TENSORS | {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
}
"""The same of Qwen3.5."""


def write_gguf(path: Path, config: DecoderConfig, weights: dict[str, np.ndarray], dtype: str = DTYPES[0]) -> None:
    """Write a Qwen3 or a Qwen3.5 for llama.cpp. weights: bf16, by HuggingFace's names; dtype: of the file."""
    import gguf

    is_wide, hybrid = dtype == "float32", config.recurrence
    writer = gguf.GGUFWriter(path, "qwen3" if hybrid is None else "qwen35")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if is_wide else gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config.vocabulary)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.mlp_width)
    writer.add_head_count(config.query_heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    if hybrid is not None:
        assert hybrid.key_heads == hybrid.value_heads, "the heads of values are in another order there"
        writer.add_rope_dimension_count(2 * config.rope.pairs(config.head_dim))
        writer.add_rope_dimension_sections([config.rope.pairs(config.head_dim), 0, 0, 0])
        writer.add_ssm_conv_kernel(hybrid.inputs)
        writer.add_ssm_inner_size(hybrid.output)
        writer.add_ssm_state_size(hybrid.key_dim)
        writer.add_ssm_time_step_rank(hybrid.value_heads)
        writer.add_ssm_group_count(hybrid.key_heads)
        writer.add_full_attention_interval(config.layers // config.attention_layers)
    for name, weight in joined(weights, fused_tensors(config)).items():
        found = _as_stored(name, weight, config)
        if found.dtype == np.float32 or is_wide:
            writer.add_tensor(_gguf_name(name, hybrid is not None), found.astype(np.float32))
        else:
            bits, kind = found.view(np.uint8), gguf.GGMLQuantizationType.BF16
            writer.add_tensor(_gguf_name(name, hybrid is not None), bits, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _as_stored(name: str, weight: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """Return a weight as the file has it: what is no kernel in float32."""
    if name.endswith("A_log"):
        found: np.ndarray = -np.exp(weight.astype(np.float32))
        return found
    if name.endswith("conv1d.weight"):
        return weight[:, 0].astype(np.float32)
    if weight.ndim > 1:
        return weight
    has_offset = name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")
    return weight.astype(np.float32) + np.float32(config.traits.norm_offset if has_offset else 0)


def _gguf_name(name: str, is_hybrid: bool) -> str:
    if name in TENSORS:
        return TENSORS[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{(HYBRID_TENSORS if is_hybrid else LAYER_TENSORS)[rest]}"


def write_random_gguf(path: Path, shape: str, dtype: str = DTYPES[0]) -> None:
    """Write the random weights of :mod:`benchmarks.checkpoint`."""
    from benchmarks.checkpoint import random_tensors

    write_gguf(path, SHAPES[shape], random_tensors(SHAPES[shape], seed=0), dtype)
