"""Whole steps that compute something else than NumPy, or bits that depend on place or company, are never served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from model.checks.known_answer import KnownAnswerError
from model.checks.known_prompts import contents
from model.engine import Engine
from model.whole_steps.extend import ExtendKey
from model.whole_steps.forward import Key, WholeStepForward
from model.whole_steps.full_steps import full_steps
from model.whole_steps.prefill import PrefillKey
from model.whole_steps.shape import StepShape
from tests.model.engines import DType
from tests.model.whole_steps.runs import short_steps

Arguments = tuple[Any, ...]
Outputs = tuple[Any, ...]
Program = Callable[..., Outputs]
Change = Callable[[Program], Program]


@pytest.fixture(scope="module")
def load(checkpoint: Callable[[str], Path]) -> Callable[..., Engine]:
    def loaded(name: str = "untied", dtype: DType = "float32", **settings: Any) -> Engine:
        return short_steps(checkpoint(name), dtype, **settings)

    return loaded


@pytest.fixture(scope="module")
def whole(load: Callable[..., Engine]) -> Engine:
    return load()


@pytest.fixture(scope="module")
def recurrent(load: Callable[..., Engine]) -> Engine:
    return load("qwen35")


@contextmanager
def changed(engine: Engine, kind: type[Key] | Key, change: Change) -> Iterator[None]:
    """Have an engine call changed programs of one kind, or one changed program."""
    forward = engine.forward
    assert isinstance(forward, WholeStepForward)
    right = forward.executables

    def program(key: Key) -> Program:
        is_changed = isinstance(key, kind) if isinstance(kind, type) else key == kind
        return change(right[key]) if is_changed else right[key]

    with forward.calling(program):
        yield


def argument(number: int, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Change one argument of a program, counted from the last one."""

    def spoil(program: Program) -> Program:
        def spoiled(*arguments: Any) -> Outputs:
            given = list(arguments)
            given[number] = change(np.array(given[number])).astype(np.int32)
            return program(*given)

        return spoiled

    return spoil


def outputs(change: Callable[[Outputs], Outputs]) -> Change:
    """Change the outputs of a program."""
    return lambda program: lambda *arguments: change(program(*arguments))


def one_less(values: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.maximum(values - 1, 0)
    return found


def next_row(values: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.roll(values, 1, axis=0)
    return found


def in_last_tile(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """Change the last quarter of the rows: a tile."""

    def changed(values: np.ndarray) -> np.ndarray:
        kept = len(values) * 3 // 4
        found: np.ndarray = np.concatenate([values[:kept], change(values[kept:])])
        return found

    return changed


EVERYWHERE = ExtendKey(everywhere=True)
FAULTS: dict[str, tuple[type[Key] | Key, Change]] = {
    "tiles that see the blocks of other tiles": (ExtendKey, argument(-7, next_row)),
    "blocks in another order": (ExtendKey, argument(-7, lambda table: table[:, ::-1])),
    "a block of a prefix that is not seen": (ExtendKey, argument(-6, one_less)),
    "items behind one token less": (ExtendKey, argument(-5, one_less)),
    "a tile whose items are behind one token less": (ExtendKey, argument(-5, in_last_tile(one_less))),
    "items that see the item before them": (ExtendKey, argument(-3, lambda begins: np.maximum(begins - 8, 0))),
    "states of other items": (ExtendKey, argument(-1, next_row)),
    "states of the tokens before": (EVERYWHERE, argument(-1, next_row)),
    "positions that are too low": (ExtendKey, argument(-8, one_less)),
    "a prefix that sees the blocks of another": (PrefillKey, argument(-5, next_row)),
    "a prefix that does not see its second block": (PrefillKey, argument(-4, lambda counts: np.minimum(counts, 1))),
    "tokens that do not see themselves": (PrefillKey, argument(-3, one_less)),
    "keys and values at the places of other tiles": (PrefillKey, argument(-2, next_row)),
    "a tile that is not stored": (PrefillKey, argument(-2, in_last_tile(lambda places: places * 0))),
    "keys stored as values": (PrefillKey, outputs(lambda found: (found[0], found[2], found[1]))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_detected(fault: str, whole: Engine) -> None:
    kind, change = FAULTS[fault]
    with changed(whole, kind, change), pytest.raises(KnownAnswerError, match="differs from NumPy's by"):
        whole.check_model()


def nothing(values: np.ndarray) -> np.ndarray:
    return values * 0 - 1


def without_the_input_before(windows: np.ndarray) -> np.ndarray:
    """Give the convolution the inputs before the last one a token late."""
    return np.concatenate([windows[:, 1:-1], windows[:, -2:]], axis=1)


RECURRENT_FAULTS: dict[str, tuple[type[Key] | Key, Change]] = {
    "items behind the states of other tiles": (ExtendKey, argument(-10, next_row)),
    "items behind no state": (ExtendKey, argument(-10, nothing)),
    "other inputs of the convolution": (ExtendKey, argument(-9, without_the_input_before)),
    "long items that begin anew with each chunk": (ExtendKey, argument(-8, lambda chunks: chunks * 0)),
    "pieces behind the states of other tiles": (PrefillKey, argument(-7, next_row)),
    "pieces behind no state": (PrefillKey, argument(-7, nothing)),
    "other inputs of the convolution in prefixes": (PrefillKey, argument(-6, without_the_input_before)),
    "states that are kept behind other blocks": (PrefillKey, argument(-2, next_row)),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", RECURRENT_FAULTS)
def test_a_planted_fault_of_recurrent_layers_is_detected(fault: str, recurrent: Engine) -> None:
    kind, change = RECURRENT_FAULTS[fault]
    with changed(recurrent, kind, change), pytest.raises(KnownAnswerError, match="differs from NumPy's by"):
        recurrent.check_model()


def other_bits_at(place: int) -> Change:
    """Change the state of one place by its last bits."""
    return outputs(lambda found: (found[0].at[place].multiply(1 + 2**-20), *found[1:]))


def other_bits_in_company(found: Outputs) -> Outputs:
    """Change states by their last bits, depending on how many items there are."""
    items = len(np.unique(np.asarray(found[0]), axis=0))
    return found[0] * (1 + items * 2**-22), *found[1:]


BITS: dict[str, tuple[type[Key] | Key, Change]] = {
    "at one place of a step that is read everywhere": (EVERYWHERE, other_bits_at(9)),
    "at one place of a step of items": (ExtendKey, other_bits_at(2)),
    "beside other items": (ExtendKey, outputs(other_bits_in_company)),
    "at one place of a step of prefixes": (PrefillKey, other_bits_at(1)),
}


@pytest.mark.parametrize("where", BITS)
def test_bits_that_depend_on_place_or_company_are_detected(where: str, whole: Engine) -> None:
    kind, change = BITS[where]
    with changed(whole, kind, change), pytest.raises(KnownAnswerError, match="not have the same bits"):
        whole.check_model()


def test_a_worker_that_promises_no_bits_serves_with_other_bits_and_says_so(load: Callable[..., Engine]) -> None:
    engine = load(batch_invariant=False)
    with changed(engine, ExtendKey, other_bits_at(2)), capture_logs() as logs:
        engine.check_model()
    told = [line for line in logs if line["event"] == "bits of scores depend on their company"]
    assert {(line["log_level"], line["algorithm"]) for line in told} == {
        ("warning", "serial"),
        ("warning", "prefill_extend"),
        ("warning", "reading all tokens"),
    }


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("untied", "float32"),
        ("qwen35", "float32"),
        pytest.param("qwen35", "bfloat16", marks=pytest.mark.matrix),
        pytest.param("tied", "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_right_programs_pass_in_either_dtype(name: str, dtype: DType, load: Callable[..., Engine]) -> None:
    engine = load(name, dtype)
    engine.check_model()
    assert not engine.prefix_cache.blocks.used, "all blocks are free again"


@pytest.mark.parametrize("context", [1, 2, 16, 300, 100_000])
@pytest.mark.parametrize("vocabulary", [1, 90])
def test_known_prompts_fit_any_context_and_vocabulary(context: int, vocabulary: int) -> None:
    shape = StepShape(tokens=2_048, tile_rows=128, block_tokens=256, blocks=100, longest=10, max_items=512)
    known = full_steps(vocabulary, shape, context)
    for groups in (known.prompts, *known.companies):
        for group in groups:
            assert group.prefix.max() < vocabulary
            lengths = group.chunks[0].rows.sequence_lengths
            assert lengths.min() > 0
            assert lengths.max() <= context


def test_the_known_items_fill_a_step_of_each_kind_and_stand_in_every_company() -> None:
    shape = StepShape(tokens=2_048, tile_rows=128, block_tokens=256, blocks=100, longest=10, max_items=512)
    known = full_steps(1_000, shape, 16_384)
    distinct = set(contents(known.prompts))
    full, mixed, *alone = known.companies
    for company in (full, mixed, [group for groups in alone for group in groups]):
        assert distinct <= set(contents(company))
    tiles = sum(-(-len(group.prefix) // shape.tile_rows) for group in full)
    assert tiles == shape.tiles
    tokens = sum(int(group.chunks[0].rows.lengths.sum()) for group in full)
    assert tokens == shape.tokens
