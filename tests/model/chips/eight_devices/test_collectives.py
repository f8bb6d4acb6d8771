"""Where devices exchange numbers: twice in a layer, once behind the embedding, and in heads a number for each label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from model.engine import Engine
from model.programs.label_head import HeadKey
from model.programs.target_head import TargetHeadKey
from model.whole_steps.extend import ExtendKey
from model.whole_steps.forward import Key, WholeStepForward
from model.whole_steps.prefill import PrefillKey
from scoring.layout import Head
from tests.model.chips.eight_devices.conftest import MODELS, Loaded
from tools.tpu.hlo import Instruction, Module

COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")
NAME, CHIPS = "eight heads", 8


def module(engine: Engine, key: Key) -> Module:
    """The compiled program of a key."""
    assert isinstance(engine.forward, WholeStepForward)
    return Module.parse(engine.forward.executables[key].as_text() or "")


def exchanges(found: Module) -> Iterator[tuple[str, Instruction]]:
    """The collectives of a program, with their computations."""
    for computation, instruction in found.executed():
        if instruction.opcode.startswith(COLLECTIVES) and not instruction.opcode.endswith("-done"):
            yield computation, instruction


@pytest.mark.parametrize("key", [ExtendKey(), PrefillKey()])
def test_a_layer_has_two_all_reduces_and_nothing_else(key: Key, engine: Loaded) -> None:
    found = module(engine(NAME, CHIPS), key)
    assert {instruction.opcode for _, instruction in exchanges(found)} == {"all-reduce"}
    # The loop over all layers but the last one, and behind it the last one and the embedding.
    in_loop = Counter(computation for computation, _ in exchanges(found) if computation != found.entry)
    assert list(in_loop.values()) == [2]
    assert sum(computation == found.entry for computation, _ in exchanges(found)) == 3
    # Hidden states and nothing larger, such as weights or the pool.
    width = MODELS[NAME].width
    assert all(array.dimensions[-1] == width for _, instruction in exchanges(found) for array in instruction.results)


@pytest.mark.parametrize("top", [False, True])
@pytest.mark.parametrize(
    "kind", [partial(HeadKey.of, Head.LOGPROBS), partial(HeadKey.of, Head.LOGITS), TargetHeadKey.of]
)
def test_heads_exchange_no_rows_of_the_vocabulary(kind: Callable[..., Key], top: bool, engine: Loaded) -> None:
    key = kind(2, top=top)
    found = module(engine(NAME, CHIPS), key)
    assert isinstance(key, HeadKey | TargetHeadKey)
    per_row = key.labels if isinstance(key, HeadKey) else key.targets
    sizes = [array.size for _, instruction in exchanges(found) for array in instruction.results]
    assert sizes
    assert max(sizes) <= key.rows * max(per_row, CHIPS)
    own = MODELS[NAME].vocabulary // CHIPS
    whole = [
        array
        for _, instruction in found.executed()
        for array in instruction.results
        if MODELS[NAME].vocabulary in array.dimensions
    ]
    assert own * CHIPS == MODELS[NAME].vocabulary
    assert not whole, "no device has the logits, or the kernel, of the whole vocabulary"
