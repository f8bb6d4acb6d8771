"""The sizes of the models in benchmarks, whose weights are random."""

from __future__ import annotations

from pathlib import Path

from model.config import DecoderConfig
from model.rope import Rope

DEMONSTRATION = Path(__file__).parents[1] / "demonstration" / "model"
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
SHAPES = {"demonstration": DecoderConfig.from_directory(DEMONSTRATION), "qwen3-0.6b": QWEN3_06B}
