"""Models by name whose sizes are known without a checkpoint, for benchmarks and for compiling ahead of time."""

from __future__ import annotations

from dataclasses import replace

from model.architecture.config import DecoderConfig
from model.architecture.experts import Mixture
from model.architecture.recurrence import Recurrence
from model.architecture.rope import Llama3Scaling, Rope

QWEN3_06B = DecoderConfig(
    vocabulary=151_936,
    width=1_024,
    layers=28,
    query_heads=16,
    kv_heads=8,
    head_dim=128,
    mlp_width=3_072,
    context=40_960,
    rope=Rope(1e6),
    norm_epsilon=1e-6,
    tied=True,
)
QWEN3_8B = DecoderConfig(
    vocabulary=151_936,
    width=4_096,
    layers=36,
    query_heads=32,
    kv_heads=8,
    head_dim=128,
    mlp_width=12_288,
    context=40_960,
    rope=Rope(1e6),
    norm_epsilon=1e-6,
    tied=False,
)
QWEN3_32B = DecoderConfig(
    vocabulary=151_936,
    width=5_120,
    layers=64,
    query_heads=64,
    kv_heads=8,
    head_dim=128,
    mlp_width=25_600,
    context=40_960,
    rope=Rope(1e6),
    norm_epsilon=1e-6,
    tied=False,
)
QWEN3_30B_A3B = DecoderConfig(
    vocabulary=151_936,
    width=2_048,
    layers=48,
    query_heads=32,
    kv_heads=4,
    head_dim=128,
    mlp_width=768,
    context=40_960,
    rope=Rope(1e6),
    norm_epsilon=1e-6,
    tied=False,
    family="qwen3_moe",
    mixture=Mixture(128, 8, normalised=True),
)
LLAMA_32_1B = DecoderConfig(
    vocabulary=128_256,
    width=2_048,
    layers=16,
    query_heads=32,
    kv_heads=8,
    head_dim=64,
    mlp_width=8_192,
    context=131_072,
    rope=Rope(500_000.0, Llama3Scaling(32.0, 1.0, 4.0, 8_192)),
    norm_epsilon=1e-5,
    tied=True,
    family="llama",
)
QWEN35_08B = DecoderConfig(
    vocabulary=248_320,
    width=1_024,
    layers=24,
    query_heads=8,
    kv_heads=2,
    head_dim=256,
    mlp_width=3_584,
    context=262_144,
    rope=Rope(1e7, turned=0.25),
    norm_epsilon=1e-6,
    tied=True,
    family="qwen3_5_text",
    recurrence=Recurrence((True, True, True, False) * 6, value_heads=16),
)
QWEN35_4B = replace(
    QWEN35_08B,
    width=2_560,
    layers=32,
    query_heads=16,
    kv_heads=4,
    mlp_width=9_216,
    recurrence=Recurrence((True, True, True, False) * 8),
)
QWEN35_9B = replace(QWEN35_4B, width=4_096, mlp_width=12_288, tied=False)
NAMED_SHAPES = {
    "qwen3-0.6b": QWEN3_06B,
    "qwen3-8b": QWEN3_8B,
    "qwen3-32b": QWEN3_32B,
    "llama-3.2-1b": LLAMA_32_1B,
    "qwen3-30b-a3b": QWEN3_30B_A3B,
    "qwen3.5-0.8b": QWEN35_08B,
    "qwen3.5-4b": QWEN35_4B,
    "qwen3.5-9b": QWEN35_9B,
}
