"""Engines over small checkpoints, and the plainest ways to ask one for scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from model.config import DecoderConfig
from model.engine import Engine
from scoring.layout import ChunkWork, GroupWork, Head, LabelScores, Rows
from scoring.model_card import ModelCard
from settings.engine import EngineSettings

DType = Literal["bfloat16", "float32"]


def load(directory: Path, dtype: DType, step_tokens: int = 256) -> Engine:
    """An engine over a checkpoint directory."""
    config = DecoderConfig.from_directory(directory)
    card = ModelCard(directory.name, config.context, config.vocabulary, "no tokenizer")
    return Engine.load(directory, EngineSettings(dtype=dtype, step_tokens=step_tokens), card)


def chunk(
    id: int, rows: Sequence[np.ndarray], prefix_end: int, labels: Sequence[int], head: Head = Head.LOGPROBS
) -> ChunkWork:
    """Rows that all continue the same length of prefix."""
    return ChunkWork(id, Rows.pack(rows, [prefix_end] * len(rows)), tuple(labels), head)


def score(engine: Engine, groups: Sequence[GroupWork]) -> dict[int, LabelScores]:
    """Every chunk's scores by its id."""
    return {scored.id: scored.scores for scored in engine.score(groups, lambda: None)}


def logprobs(engine: Engine, rows: Sequence[np.ndarray]) -> np.ndarray:
    """Log-probabilities of every token after each row, float32 [N, vocabulary]."""
    work = chunk(0, rows, 0, range(engine.card.vocabulary))
    found = score(engine, [GroupWork("all", np.zeros(0, np.int32), (work,))])[0].logprobs
    assert found is not None
    return found
