"""The sizes of the models in benchmarks, whose weights are random."""

from __future__ import annotations

from pathlib import Path

from model.architecture.config import DecoderConfig
from tools.tpu.shapes import NAMED_SHAPES, QWEN3_06B

__all__ = ["DEMONSTRATION", "QWEN3_06B", "SHAPES"]

DEMONSTRATION = Path(__file__).parents[1] / "demonstration" / "model"
SHAPES = {"demonstration": DecoderConfig.from_directory(DEMONSTRATION), **NAMED_SHAPES}
