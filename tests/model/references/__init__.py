"""What HuggingFace said of the checkpoints of :mod:`tests.model.checkpoints`, stored. Made by ``make_references``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
SEED = 7
LENGTHS = (1, 2, 3, 5, 7, 12, 20, 25, 31, 32, 33, 50, 64, 200, 255, 256, 513, 700, 1024)
"""Tokens of each sequence: around the edges of length buckets and of attention tiles."""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Log-probabilities of the next token, float32 [N, vocabulary], as HuggingFace computes them in either dtype."""

    float32: np.ndarray
    bfloat16: np.ndarray


def read(name: str) -> Reference:
    """The stored reference of a checkpoint."""
    with np.load(FOLDER / f"{name}.npz") as stored:
        return Reference(stored["float32"], stored["bfloat16"])
