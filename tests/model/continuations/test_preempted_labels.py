"""Labels of several tokens whose blocks are taken by preempting work, or that nearly fill the pool, keep their bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from model.engine import Engine
from tests.model import engines
from tests.model.checkpoints import EVERY
from tests.model.continuations.cases import Case, Label, Way, bits, by
from tests.model.geometries import STEP, VOCABULARY, Item
from tests.model.test_preemption import CROWDED, ROOMY

ITEMS = (5, 70, 0, 130)
"""Tokens of items: some become branches, whose labels are behind them."""
LABELS = (1, 4, STEP + 6)
"""Tokens of labels. The last one takes several steps, whose states are read as they come."""

Load = Callable[..., Engine]


@pytest.fixture(scope="module", params=["untied", pytest.param("qwen35", marks=pytest.mark.matrix)])
def load(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Load:
    model: str = request.param

    def loaded(blocks: int = ROOMY) -> Engine:
        context = None if blocks == ROOMY else CROWDED
        memory = blocks * engines.block_bytes(EVERY[model], STEP)
        return engines.load(checkpoint(model), "float32", context=context, step_tokens=STEP, prefix_cache_bytes=memory)

    return loaded


@pytest.fixture(scope="module")
def alone(load: Load) -> Callable[[Case], np.ndarray]:
    engine = load()
    return lambda case: scored(engine, case)


def drawn(seed: int, prefix: int, lengths: tuple[int, ...] = ITEMS, labels: tuple[int, ...] = LABELS) -> Case:
    random = np.random.RandomState(seed)

    def draw(length: int) -> tuple[int, ...]:
        return tuple(random.randint(0, VOCABULARY, length).tolist())

    of_items = tuple(tuple(Label(draw(length)) for length in labels) for _ in lengths)
    return Case(draw(prefix), tuple(Item(draw(length)) for length in lengths), of_items)


def scored(engine: Engine, case: Case, on_step: Callable[[], None] = lambda: None) -> np.ndarray:
    """The bits of all targets."""
    (found,) = engine.score([case.work()], on_step)
    return bits(found)


INNER: dict[str, Callable[[int, Case], Case]] = {
    "the same query": lambda seed, outer: Case(outer.prefix, outer.items[:1], drawn(seed, 1).labels[:1]),
    "a query too long for the pool": lambda seed, outer: drawn(seed, 500, (3, 70), (1, 5)),
}
each_inner = pytest.mark.parametrize("inner", INNER)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inner", "blocks", "prefix"),
    [
        ("the same query", 3, 150),
        ("a query too long for the pool", ROOMY, 150),
    ],
)
def test_labels_that_are_preempted_at_any_step_score_as_alone(
    inner: str, blocks: int, prefix: int, load: Load, alone: Callable[[Case], np.ndarray]
) -> None:
    engine = load(blocks)
    for place in count():
        outer, found, steps = drawn(place, prefix), list[np.ndarray](), count()
        within = INNER[inner](1_000 + place, outer)

        def preempt(
            place: int = place, work: Case = within, found: list[np.ndarray] = found, steps: Iterator[int] = steps
        ) -> None:
            if next(steps) == place:
                found.append(scored(engine, work))

        np.testing.assert_array_equal(scored(engine, outer, preempt), alone(outer))
        if not found:
            break
        np.testing.assert_array_equal(found, [alone(within)])
    assert place >= 5, "the outer work has at least five steps"


@each_inner
@pytest.mark.parametrize("ended", [pytest.param(False, id="to its end"), pytest.param(True, id="ended in between")])
def test_labels_that_are_preempted_at_every_step_release_all_blocks(
    inner: str, ended: bool, load: Load, alone: Callable[[Case], np.ndarray]
) -> None:
    engine = load(3)

    def stop() -> None:
        if ended:
            raise InterruptedError

    def preempt() -> None:
        try:
            scored(engine, within, stop)
        except InterruptedError:
            assert ended

    taken = 0
    for seed in range(2):
        outer = drawn(seed, 150)
        within = INNER[inner](1_000 + seed, outer)
        with capture_logs() as logs:
            np.testing.assert_array_equal(scored(engine, outer, preempt), alone(outer))
        taken += sum(entry["event"] == "a sequence takes the blocks of all others" for entry in logs)
        assert engine.prefix_cache.blocks.used <= 3, "no more than prefixes that are kept"
    assert taken or inner != "a query too long for the pool"


@pytest.mark.parametrize("prefix", [260, pytest.param(400, marks=pytest.mark.matrix)])
def test_an_item_that_leaves_no_room_for_its_query_scores_as_in_a_large_pool(
    prefix: int, load: Load, alone: Callable[[Case], np.ndarray]
) -> None:
    """The pool has ten blocks: the query takes five or seven of them, and query, item and label take nearly all."""
    engine, case = load(3), drawn(9, prefix, (CROWDED - prefix - STEP - 10, 90, 3))
    np.testing.assert_array_equal(scored(engine, case), alone(case))
    assert engine.prefix_cache.blocks.used <= 10


def test_labels_that_are_ended_between_two_steps_leave_no_block_in_use(load: Load) -> None:
    engine = load(3)
    for place in range(0, 12, 3):
        steps = count()

        def stop(place: int = place, steps: Iterator[int] = steps) -> None:
            if next(steps) == place:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            scored(engine, drawn(place, 150), stop)
        assert engine.prefix_cache.blocks.used <= 3
        assert not engine.prefix_cache._in_use


def test_branches_that_lose_the_blocks_of_their_query_are_computed_again(
    load: Load, alone: Callable[[Case], np.ndarray]
) -> None:
    """Preempted work holds seven of ten blocks. The query takes two more, and its branches one each beside it."""
    engine, outer = load(10), drawn(1, 7 * STEP - 10, (5, 9))
    within = drawn(2, STEP + 6, (10, 11, 12, 9), (4, 5))
    found = list[np.ndarray]()
    with by(Way.BRANCH):
        expected = alone(within)

    def preempt() -> None:
        with by(Way.BRANCH):
            found.append(scored(engine, within))
        engine.prefix_cache.drop(within.work().owner, within.work().prefix)

    np.testing.assert_array_equal(scored(engine, outer, preempt), alone(outer))
    for one in found:
        np.testing.assert_array_equal(one, expected)
    assert engine.prefix_cache.blocks.used <= 10
