"""Prefixes that share steps, in a pool that has no room for them beside others: no bit and no block is lost.

A step has several tiles here. Elsewhere in the tests of preemption, it has one, and each prefix has steps of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from model.engine import Engine
from model.prefixes.cache import Pin, PrefixCache
from tests.model import engines
from tests.model.continuations.cases import Way, bits, by
from tests.model.continuations.test_preempted_labels import (  # the tests and their fixture
    alone,
    drawn,
    test_branches_that_lose_the_blocks_of_their_query_are_computed_again,
    test_labels_that_are_ended_between_two_steps_leave_no_block_in_use,
    test_labels_that_are_preempted_at_every_step_release_all_blocks,
)
from tests.model.geometries import VOCABULARY
from tests.model.test_preemption import BLOCK_BYTES, CROWDED, ROOMY, Load, group, logits
from tests.model.whole_steps.conftest import WHOLE_STEPS

__all__ = [
    "alone",
    "test_branches_that_lose_the_blocks_of_their_query_are_computed_again",
    "test_labels_that_are_ended_between_two_steps_leave_no_block_in_use",
    "test_labels_that_are_preempted_at_every_step_release_all_blocks",
]
STEP, BLOCK = 128, 64
"""Tokens of a step, which has two tiles, and of a block. A crowded pool has ten blocks."""


@pytest.fixture(scope="module")
def load(checkpoint: Callable[[str], Path]) -> Load:
    def loaded(blocks: int = ROOMY) -> Engine:
        return engines.load(
            checkpoint("untied"),
            "float32",
            platform=WHOLE_STEPS,
            context=None if blocks == ROOMY else CROWDED,
            step_tokens=STEP,
            prefix_cache_bytes=blocks * BLOCK_BYTES,
        )

    return loaded


def tokens(seed: int, length: int) -> np.ndarray:
    found: np.ndarray = np.random.RandomState(seed).randint(0, VOCABULARY, length).astype(np.int32)
    return found


@contextmanager
def obtained(cache: PrefixCache, length: int, key: str) -> Iterator[Pin]:
    """A pinned prefix that has its blocks."""
    with cache.pinned(key, tokens(0, length)) as pin:
        list(pin.obtain())
        yield pin
    cache.drop(key)


def test_queries_whose_room_is_taken_from_preempted_work_are_all_obtained(load: Load) -> None:
    """Preempted work has seven of ten blocks. The first query takes the others, and the second one takes all."""
    engine = load(10)
    cache, queries = engine.prefix_cache, [tokens(seed, 2 * BLOCK + 2) for seed in (1, 2)]
    expected = []
    for query in queries:
        with cache.pinned("alone", query) as pin:
            list(pin.obtain())
            expected.append(pin.hidden)
            cache.drop("alone")
    with obtained(cache, 7 * BLOCK, "preempted") as preempted, ExitStack() as stack:
        pins = [stack.enter_context(cache.pinned(f"query {n}", query)) for n, query in enumerate(queries)]
        list(cache.obtain(pins))
        assert preempted.prefix is None
        for pin, hidden in zip(pins, expected, strict=True):
            assert pin.prefix is not None
            np.testing.assert_array_equal(pin.hidden, hidden)
        for pin in pins:
            cache.drop(pin.key)
    assert len(cache._free) == cache._shape.blocks


def test_branches_whose_room_is_taken_from_their_query_are_all_obtained(load: Load) -> None:
    """Preempted work and the query have nine of ten blocks. The first branch takes the last one beside the query."""
    engine = load(10)
    cache, whole = engine.prefix_cache, tokens(3, 2 * BLOCK + 30)
    with obtained(cache, 7 * BLOCK, "preempted"), cache.pinned("query", whole[: 2 * BLOCK]) as base:
        list(base.obtain())
        with ExitStack() as stack:
            pins = [stack.enter_context(cache.branch(whole, 2 * BLOCK, base)) for _ in range(2)]
            list(cache.obtain(pins))
            assert base.prefix is None
            first, second = (pin.hidden for pin in pins)
            assert first is not None
            np.testing.assert_array_equal(first, second)
        cache.drop("query")
    assert len(cache._free) == cache._shape.blocks


def test_work_of_several_queries_that_preempts_other_work_scores_as_alone(load: Load) -> None:
    engine, roomy = load(10), load()
    outer, inner = group(1, 7 * BLOCK, (5, 9)), [group(seed, 2 * BLOCK + 2, (3, 4)) for seed in (2, 3, 4)]
    expected = [logits(roomy, one) for one in inner]
    found = list[list[np.ndarray]]()

    def preempt() -> None:
        work = [one.work("key", number) for number, one in enumerate(inner)]
        scores = engines.score(engine, work)
        found.append([scores[number].logits for number in range(len(inner))])

    (scored,) = engine.score([outer.work("key", 0)], preempt)
    np.testing.assert_array_equal(scored.scores.logits, logits(roomy, outer))
    assert len(found) >= 4
    for scores in found:
        np.testing.assert_array_equal(scores, expected)
    assert engine.prefix_cache._used <= 10


def test_branches_take_no_room_from_the_queries_of_their_step(load: Load) -> None:
    """Each of three queries has three of ten blocks. Three branches have as many, two of which are their query's."""
    engine, roomy = load(10), load()
    work = [drawn(seed, 2 * BLOCK + 2, (20,), (4, 5)).work(f"query {seed}", seed) for seed in range(3)]
    cache = engine.prefix_cache
    with by(Way.BRANCH), patch.object(cache, "_lose", wraps=cache._lose) as lose:
        expected, found = ({one.id: bits(one) for one in of.score(work, lambda: None)} for of in (roomy, engine))
    np.testing.assert_equal(found, expected)
    assert not lose.called
    assert cache.counts()["prefills"] == 3
