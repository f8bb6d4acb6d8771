"""Engines over small checkpoints, and short ways to score with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import pytest

from checkpoints.adapter_folder import AdapterFolder
from checkpoints.card import ModelCard
from model.architecture.config import DecoderConfig
from model.engine import Engine
from model.forward import Extension
from model.platforms import Platform
from model.programs.kind import ProgramKey
from model.states import Computed
from scoring.layout import ChunkWork, GroupWork, Head, LabelScores, Rows
from scoring.planning.algorithms import AlgorithmSetting
from settings.engine import EngineSettings

DType = Literal["bfloat16", "float32"]
PLATFORM = Platform.of(jax.devices()[0])


def load(
    directory: Path,
    dtype: DType,
    multi_item_algorithm: AlgorithmSetting = "auto",
    platform: Platform | None = None,
    context: int | None = None,
    adapter: Path | None = None,
    adapters: Path | None = None,
    **settings: Any,
) -> Engine:
    """An engine over a checkpoint directory.

    platform: this machine's by default; context: the served one, the model's own by default; adapter: merged into it;
    adapters: the folder of those that groups may name.
    """
    config = DecoderConfig.from_directory(directory)
    card = ModelCard(directory.name, context or config.context, config.vocabulary, "no tokenizer")
    asked = EngineSettings(dtype=dtype, **settings)
    return Engine.load(
        directory,
        asked,
        card,
        platform or PLATFORM,
        algorithm=multi_item_algorithm,
        adapter=adapter,
        adapters=None if adapters is None else AdapterFolder(adapters),
    )


def block_bytes(config: DecoderConfig, tokens: int) -> int:
    """The bytes of a block of a pool in float32: keys and values, and what recurrent layers keep behind them."""
    key_values = 2 * config.attention_layers * config.kv_heads * config.head_dim * tokens * 4
    return key_values + config.state_bytes


def unchecked(key: ProgramKey[Any], executable: jax.stages.Compiled) -> None:
    """Accept any program."""


def chunk(
    id: int,
    rows: Sequence[np.ndarray],
    prefix_end: int,
    labels: Sequence[int],
    head: Head = Head.LOGPROBS,
    *,
    top: bool = False,
) -> ChunkWork:
    """A chunk whose rows all see ``prefix_end`` tokens of the prefix."""
    return ChunkWork(id, Rows.pack(rows, [prefix_end] * len(rows)), tuple(labels), head, top=top)


def score(engine: Engine, groups: Sequence[GroupWork]) -> dict[int, LabelScores]:
    """The scores of all chunks by id."""
    return {scored.id: scored.scores for scored in engine.score(groups, lambda: None)}


def logprobs(
    engine: Engine,
    rows: Sequence[np.ndarray],
    cut: Callable[[int], int] = lambda length: 0,
    adapter: str | None = None,
) -> np.ndarray:
    """Log-probabilities of every token after each row, float32 [N, vocabulary].

    cut: maps the length of a row to the length of the prefix that it is cut into, with the rest as an item. adapter:
    that the rows name.
    """
    return logprobs_of(scores_of(engine, rows, range(engine.card.vocabulary), cut, adapter))


def scores_of(
    engine: Engine,
    rows: Sequence[np.ndarray],
    labels: Sequence[int],
    cut: Callable[[int], int] = lambda length: 0,
    adapter: str | None = None,
) -> LabelScores:
    """The scores of labels after each row; see :func:`logprobs`."""
    cuts = [cut(len(row)) for row in rows]
    groups = [
        GroupWork(f"row {n}", row[:end], (chunk(n, [row[end:]], end, labels),))
        for n, (row, end) in enumerate(zip(rows, cuts, strict=True))
    ]
    if not any(cuts):
        groups = [GroupWork("all", np.zeros(0, np.int32), tuple(part for group in groups for part in group.chunks))]
    found = score(engine, [replace(group, adapter=adapter) for group in groups])
    return LabelScores.join([found[n] for n in range(len(rows))])


def logprobs_of(scores: LabelScores) -> np.ndarray:
    """The log-probabilities of a head that computes them."""
    assert scores.logprobs is not None
    return scores.logprobs


@contextmanager
def counted(engine: Engine) -> Iterator[list[int]]:
    """Count the tokens that the forward pass is asked to compute, padding not included."""
    tokens, run = list[int](), engine.forward.run

    def counting(extensions: Sequence[Extension]) -> Computed:
        tokens.append(sum(len(one.tokens) for one in extensions))
        return run(extensions)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(engine.forward, "run", counting)
        yield tokens
