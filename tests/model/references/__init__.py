"""What HuggingFace said of the checkpoints of :mod:`tests.model.checkpoints`, stored. Made by ``make_references``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.model.checkpoints import CLASSIFIERS, CONFIGS, EVERY, sequences
from tests.model.continuations.cases import Case, Expected, reference_case

FOLDER = Path(__file__).parent
SEED = 7
LENGTHS = (1, 2, 3, 4, 29, 30, 31, 32, 33, 40, 64, 230, 255, 256, 600, 640, 1024)
"""Tokens of each sequence: around the edges of length buckets and of attention tiles."""
FEW_LENGTHS = (25, 26, 27, 28, 225, 230, 240, 255, 256)
"""The same for what varies by family: two buckets, and far enough for stretched positions to tell."""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Log-probabilities of the next token, float32 [N, vocabulary], as HuggingFace computes them in either dtype."""

    float32: np.ndarray
    bfloat16: np.ndarray


def rows(name: str) -> list[np.ndarray]:
    """The sequences that a checkpoint's reference is about, int32 [length] each."""
    return sequences(EVERY[name], SEED, LENGTHS if name in CONFIGS else FEW_LENGTHS)


def read(name: str) -> Reference:
    """The stored reference of a checkpoint."""
    with np.load(path(name)) as stored:
        return Reference(stored["float32"], stored["bfloat16"])


def path(name: str) -> Path:
    """Where a checkpoint's reference is stored."""
    return FOLDER / f"{name.replace(' ', '_')}.npz"


FAMILIES = (
    "tied",
    "qwen2 tied",
    "llama3 scaled",
    "mistral wide heads",
    "mistral with a window",
    "granite",
    "granite4",
    "olmo2 grouped",
    "olmo3",
    "phi3",
    "gemma2",
    "gemma3",
    "qwen35",
    "qwen35 moe",
    "qwen3 moe",
    "gpt-oss",
)
"""A checkpoint of each family, whose labels of several tokens are compared."""


def read_labels(name: str) -> tuple[Case, Expected]:
    """Labels of a checkpoint's reference, and what HuggingFace said of them."""
    with np.load(labels_path()) as stored:
        case = reference_case(EVERY[name].vocabulary, stored[f"{name} greedy"])
        return case, Expected(stored[f"{name} logprobs"], stored[f"{name} lead"])


def rows_of_classifier(name: str) -> list[np.ndarray]:
    """The sequences that the reference of a checkpoint with classes is about, int32 [length] each."""
    return sequences(CLASSIFIERS[name], SEED, FEW_LENGTHS)


def read_classes(name: str) -> np.ndarray:
    """What HuggingFace said of a checkpoint with classes: logits, float32 [N, classes]."""
    with np.load(classes_path()) as stored:
        found: np.ndarray = stored[name]
        return found


def classes_path() -> Path:
    """Where the references of classes are stored."""
    return FOLDER / "classes.npz"


def labels_path() -> Path:
    """Where the references of labels are stored."""
    return FOLDER / "labels.npz"
