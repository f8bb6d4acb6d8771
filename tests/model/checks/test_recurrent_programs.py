"""The check at start sees a wrong program of recurrent layers, and a model whose layers hand on a wrong state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.checks.known_answer import KnownAnswerError
from model.layerwise.forward import LayerwiseForward
from model.layerwise.recurrence import RecurrenceKey, RecurrentInputsKey, RecurrentOutputKey
from model.layerwise.recurrent_layers import RecurrentLayers
from model.layerwise.states import KeepStateKey, TakeStateKey
from model.layerwise.warm_up import Key, core
from tests.model import engines
from tests.model.checks.test_known_answer import BLOCKS, BUCKETS, Program, Table, with_arguments, with_outputs

KEYS: tuple[Key, ...] = tuple(
    key
    for key in core(BUCKETS, BLOCKS, has_states=True)
    if isinstance(key, RecurrenceKey | RecurrentInputsKey | RecurrentOutputKey | KeepStateKey | TakeStateKey)
)


@pytest.fixture(scope="module")
def table(checkpoint: Callable[[str], Path]) -> Table:
    return Table(checkpoint("qwen35"), "qwen35")


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(key, marks=pytest.mark.matrix) if isinstance(key, RecurrenceKey) and 8 < key.length < 128 else key
        for key in KEYS
    ],
    ids=str,
)
def test_a_right_program_passes_and_one_with_a_wrong_number_does_not(key: Key, table: Table) -> None:
    def other(outputs: list[np.ndarray]) -> list[np.ndarray]:
        outputs[-1][(0,) * outputs[-1].ndim] += 3 * np.abs(outputs[-1][0]).max()
        return outputs

    assert table.passes(key)
    assert not table.passes(key, with_outputs(other))


def _with(number: int, change: Callable[[Any], Any]) -> Callable[[Program], Program]:
    """Change an argument of a program, counted from its end."""
    return with_arguments(
        lambda arguments: (
            *arguments[:-number],
            change(np.asarray(arguments[-number])),
            *arguments[len(arguments) - number + 1 :],
        )
    )


LONG, SHORT = RecurrenceKey(128, 1), RecurrenceKey(8, 64)
FAULTS: dict[str, tuple[Key, Callable[[Program], Program]]] = {
    "a decay that is too slow": (SHORT, _with(7, lambda decay: 0.9 * decay)),
    "no decay": (LONG, _with(7, np.zeros_like)),
    "another rate": (SHORT, _with(6, lambda rate: 0.95 * rate)),
    "the state of other heads": (SHORT, _with(4, lambda state: np.roll(state, 1, axis=0))),
    "no state at the beginning": (LONG, _with(4, np.zeros_like)),
    "items that begin a token late": (SHORT, _with(3, lambda places: np.roll(places, 1, axis=1))),
    "tokens of another length bucket are changed": (SHORT, _with(1, lambda slots: np.maximum(slots, 0))),
    "padding that is written to the state": (RecurrenceKey(128, 1, keeps=True), _with(2, lambda lengths: lengths + 3)),
    "a state that lacks the last token": (RecurrenceKey(128, 1, keeps=True), _with(2, lambda lengths: lengths - 1)),
    "an input of the convolution that is a token too early": (
        RecurrentInputsKey(128),
        _with(2, lambda windows: np.concatenate([np.maximum(windows[:, :1] - 1, 0), windows[:, 1:]], axis=1)),
    ),
    "kept inputs of another token": (RecurrentInputsKey(128), _with(1, lambda last: last - 1)),
    "no kept inputs": (RecurrentInputsKey(128), _with(3, np.zeros_like)),
    "another row's gate": (RecurrentOutputKey(128), _with(2, lambda hidden: np.roll(hidden, 1, axis=0))),
    "another row's output": (RecurrentOutputKey(128), _with(1, lambda out: np.roll(out, 1, axis=0))),
    "a state kept behind another block": (KeepStateKey(BLOCKS), _with(1, lambda block: block - 1)),
    "a state taken from behind another block": (TakeStateKey(BLOCKS), _with(1, lambda block: block - 1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_of_a_recurrent_layer_is_detected(fault: str, table: Table) -> None:
    key, spoil = FAULTS[fault]
    assert not table.passes(key, spoil)


def _states_are_not_kept(layers: RecurrentLayers) -> None:
    through = layers.through
    layers.through = lambda number, hidden, step: through(  # type: ignore[method-assign]
        number, hidden, _replaced(step, kept=None)
    )


def _all_layers_have_the_states_of_the_first(layers: RecurrentLayers) -> None:
    through = layers.through

    def of_first(number: int, hidden: Any, step: Any) -> Any:
        own, layers._pool[number] = layers._pool[number], layers._pool[0] if step.kept is None else layers._pool[number]
        found = through(number, hidden, step)
        layers._pool[number] = own if step.kept is None else layers._pool[number]
        return found

    layers.through = of_first  # type: ignore[method-assign]


def _items_begin_behind_nothing(layers: RecurrentLayers) -> None:
    through = layers.through
    layers.through = lambda number, hidden, step: through(  # type: ignore[method-assign]
        number, hidden, _replaced(step, origin=np.int32(-1))
    )


def _replaced(step: Any, **changes: Any) -> Any:
    return replace(step, **changes)


def test_a_right_model_passes_the_known_prompt(checkpoint: Callable[[str], Path]) -> None:
    engine = engines.load(checkpoint("qwen35"), "float32", step_tokens=64)
    engine.check_model()
    assert not engine.prefix_cache.blocks.used, "the blocks of all parts of the known prompt are free again"


@pytest.mark.parametrize(
    "harm", [_states_are_not_kept, _all_layers_have_the_states_of_the_first, _items_begin_behind_nothing]
)
def test_layers_that_hand_on_a_wrong_state_are_detected(
    harm: Callable[[RecurrentLayers], None], checkpoint: Callable[[str], Path]
) -> None:
    engine = engines.load(checkpoint("qwen35"), "float32", step_tokens=64)
    assert isinstance(engine.forward, LayerwiseForward)
    assert engine.forward._recurrent is not None
    harm(engine.forward._recurrent)
    with pytest.raises(KnownAnswerError, match="a known prompt scored by prefill_extend"):
        engine.check_model()
