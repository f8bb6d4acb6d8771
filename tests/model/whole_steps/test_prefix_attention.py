"""The check of attention to long prefixes sees errors that change one key among a thousand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from jax import Array

from model.attention.contract import AttendPrefix, AttentionOutput, StepPrefixes
from model.attention.xla import XLAAttention
from model.checks.known_answer import KnownAnswerError
from model.engine import Engine
from model.whole_steps import prefix_attention
from model.whole_steps.forward import WholeStepForward
from model.whole_steps.prefix_attention import PrefixAttentionKey
from tests.model import engines
from tests.model.whole_steps.conftest import WHOLE_STEPS

STEP, BLOCK = 128, 64
AT = 704
"""The key that is planted wrong, where a block begins. The model's context, and so the prefix, has 1,024."""

Change = Callable[[StepPrefixes], StepPrefixes]


@dataclass(frozen=True)
class Planted(XLAAttention):
    """Attention with an error. changed: of what the step sees; at: a key that nobody gets."""

    changed: Change = lambda prefixes: prefixes
    missing: int | None = None
    twice: int | None = None  # a block that stands in the place of the next one, too
    stale: bool = False  # whether what comes behind the end of a prefix is no number

    def prefix(self, prefixes: StepPrefixes) -> AttendPrefix:
        if self.twice is not None:
            table = prefixes.table.at[:, self.twice + 1].set(prefixes.table[:, self.twice])
            prefixes = prefixes._replace(table=table)
        attend, table = XLAAttention.prefix(self, self.changed(prefixes)), prefixes.table

        def planted(queries: Array, pool_keys: Array, pool_values: Array, layer: Array) -> AttentionOutput:
            if self.missing is not None:
                place = (layer, slice(None), table[:, self.missing // BLOCK], self.missing % BLOCK)
                pool_values = pool_values.at[place].set(0)
            if self.stale:
                pool_values = pool_values.at[:, :, table[:, -1], BLOCK - 1].set(jnp.nan)
            return attend(queries, pool_keys, pool_values, layer)

        return planted


def sees_one_more(prefixes: StepPrefixes) -> StepPrefixes:
    """Rows whose end is the planted key see it."""
    return prefixes._replace(ends=jnp.where(prefixes.ends == AT, AT + 1, prefixes.ends))


def sees_one_less(prefixes: StepPrefixes) -> StepPrefixes:
    return prefixes._replace(ends=jnp.where(prefixes.ends == AT + 1, AT, prefixes.ends))


def visits_a_block_less(prefixes: StepPrefixes) -> StepPrefixes:
    return prefixes._replace(counts=jnp.maximum(prefixes.counts - 1, 0))


@pytest.fixture(scope="module")
def engine(checkpoint: Callable[[str], Path]) -> Engine:
    return engines.load(checkpoint("tied"), "float32", platform=WHOLE_STEPS, step_tokens=STEP)


@pytest.mark.parametrize("windowed", [False, True])
def test_the_right_attention_is_used(engine: Engine, windowed: bool) -> None:
    assert isinstance(engine.forward, WholeStepForward)
    engine.forward.compile(PrefixAttentionKey(windowed))


@pytest.mark.parametrize(
    "error",
    [
        {"changed": sees_one_more},
        {"changed": sees_one_less},
        {"changed": visits_a_block_less},
        {"missing": AT},
        {"twice": AT // BLOCK},
        {"stale": True},
    ],
    ids=["a key more", "a key less", "a block less", "a key without its value", "a block twice", "NaN behind the end"],
)
def test_an_error_is_seen(engine: Engine, monkeypatch: pytest.MonkeyPatch, error: dict[str, Any]) -> None:
    forward = engine.forward
    assert isinstance(forward, WholeStepForward)
    monkeypatch.setattr(forward._decoder, "attention", replace(Planted(), **error))
    monkeypatch.setattr(forward.executables, "_table", {}.__class__())
    monkeypatch.setattr(forward.executables, "_shared", {})
    with pytest.raises(KnownAnswerError, match="PrefixAttentionKey"):
        forward.executables._compiled(PrefixAttentionKey())


def test_an_error_behind_the_end_of_all_prefixes_but_the_longest_is_seen(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_attention, "KEYS", AT // 2)
    test_an_error_is_seen(engine, monkeypatch, {"changed": sees_one_more})
