"""Models by name whose sizes are known without a checkpoint, for benchmarks and for compiling ahead of time."""

from __future__ import annotations

from model.architecture.config import DecoderConfig
from model.architecture.rope import Rope

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
NAMED_SHAPES = {"qwen3-0.6b": QWEN3_06B, "qwen3-8b": QWEN3_8B}
