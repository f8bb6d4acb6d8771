"""Models by name whose sizes are known without a checkpoint, for benchmarks and for compiling ahead of time."""

from __future__ import annotations

from model.architecture.config import DecoderConfig
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
NAMED_SHAPES = {"qwen3-0.6b": QWEN3_06B, "qwen3-8b": QWEN3_8B, "qwen3-32b": QWEN3_32B, "llama-3.2-1b": LLAMA_32_1B}
