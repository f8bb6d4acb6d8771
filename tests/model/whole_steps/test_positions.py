"""The check of rotary angles sees a device whose angles are wrong far from the beginning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import pytest
from jax import Array

from model.architecture.config import DecoderConfig
from model.architecture.decoder import rotary_embeddings
from model.checks.known_answer import KnownAnswerError
from model.engine import Engine
from model.layers.rotation import RotaryEmbedding
from model.whole_steps import positions
from model.whole_steps.forward import WholeStepForward
from model.whole_steps.positions import PositionsKey
from tests.model import engines
from tests.model.whole_steps.conftest import WHOLE_STEPS


@pytest.fixture(scope="module")
def forward(checkpoint: Callable[[str], Path]) -> WholeStepForward:
    engine: Engine = engines.load(checkpoint("tied"), "float32", platform=WHOLE_STEPS, step_tokens=128)
    assert isinstance(engine.forward, WholeStepForward)
    return engine.forward


def test_the_right_angles_are_used(forward: WholeStepForward) -> None:
    forward.executables._compiled(PositionsKey())


def test_angles_that_are_wrong_at_the_last_positions_alone_are_seen(
    forward: WholeStepForward, monkeypatch: pytest.MonkeyPatch
) -> None:
    def repeated(given: Array, config: DecoderConfig) -> tuple[RotaryEmbedding, ...]:
        return rotary_embeddings(jnp.minimum(given, 1_000), config)

    monkeypatch.setattr(positions, "rotary_embeddings", repeated)
    monkeypatch.setattr(forward.executables, "_shared", {})
    with pytest.raises(KnownAnswerError, match="PositionsKey"):
        forward.executables._compiled(PositionsKey())
