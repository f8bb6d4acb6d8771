"""Prefixes that share steps, in a pool that has no room for them beside others: no bit and no block is lost.

A step has several tiles here. Elsewhere in the tests of preemption, it has one, and each prefix has steps of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from model.engine import Engine
from model.prefixes.cache import PrefixCache
from model.prefixes.prefix import Prefix
from tests.model import engines
from tests.model.checkpoints import EVERY
from tests.model.continuations.cases import Way, bits, by
from tests.model.continuations.test_preempted_labels import (  # the tests and their fixture
    alone,
    drawn,
    test_branches_that_lose_the_blocks_of_their_query_are_computed_again,
    test_labels_that_are_ended_between_two_steps_leave_no_block_in_use,
    test_labels_that_are_preempted_at_every_step_release_all_blocks,
)
from tests.model.geometries import VOCABULARY
from tests.model.test_preemption import CROWDED, ROOMY, Load, group, logits
from tests.model.whole_steps.runs import SMALL, short_steps

__all__ = [
    "alone",
    "test_branches_that_lose_the_blocks_of_their_query_are_computed_again",
    "test_labels_that_are_ended_between_two_steps_leave_no_block_in_use",
    "test_labels_that_are_preempted_at_every_step_release_all_blocks",
]
BLOCK = SMALL.block_tokens
"""Tokens of a block. A step has two blocks, and a crowded pool has ten."""


@pytest.fixture(scope="module")
def load(checkpoint: Callable[[str], Path]) -> Load:
    def loaded(blocks: int = ROOMY) -> Engine:
        return short_steps(
            checkpoint("untied"),
            context=None if blocks == ROOMY else CROWDED,
            prefix_cache_bytes=blocks * engines.block_bytes(EVERY["untied"], BLOCK),
        )

    return loaded


def tokens(seed: int, length: int) -> np.ndarray:
    found: np.ndarray = np.random.RandomState(seed).randint(0, VOCABULARY, length).astype(np.int32)
    return found


@contextmanager
def obtained(cache: PrefixCache, length: int) -> Iterator[Prefix]:
    """A query in use that has its blocks."""
    with cache.query("other", tokens(0, length)) as query:
        list(query.obtain())
        yield query
    cache.drop("other", query.tokens)


def test_queries_whose_room_is_taken_from_preempted_work_are_all_obtained(load: Load) -> None:
    """Preempted work has seven of ten blocks. The first query takes the others, and the second one takes all."""
    engine = load(10)
    cache, queries = engine.prefix_cache, [tokens(seed, 2 * BLOCK + 2) for seed in (1, 2)]
    expected = []
    for query in queries:
        with cache.query("key", query) as prefix:
            list(prefix.obtain())
            assert prefix.hidden is not None
            expected.append(prefix.hidden.fetch())
        cache.drop("key", query)
    with obtained(cache, 7 * BLOCK) as preempted, ExitStack() as stack:
        prefixes = [stack.enter_context(cache.query("key", query)) for query in queries]
        list(cache.obtain(prefixes))
        assert not preempted.is_complete
        for prefix, hidden in zip(prefixes, expected, strict=True):
            assert prefix.is_complete
            assert prefix.hidden is not None
            np.testing.assert_array_equal(prefix.hidden.fetch(), hidden)
    for query in queries:
        cache.drop("key", query)
    assert not cache.blocks.used


def test_branches_whose_room_is_taken_from_their_query_are_all_obtained(load: Load) -> None:
    """Preempted work and the query have nine of ten blocks. The first branch takes the last one beside the query."""
    engine = load(10)
    cache, whole = engine.prefix_cache, tokens(3, 2 * BLOCK + 30)
    with obtained(cache, 7 * BLOCK), cache.query("key", whole[: 2 * BLOCK]) as query:
        list(query.obtain())
        with ExitStack() as stack:
            branches = [stack.enter_context(cache.sequence(whole, query, 2 * BLOCK)) for _ in range(2)]
            list(cache.obtain(branches))
            assert not query.is_complete
            first, second = (branch.hidden for branch in branches)
            assert first is not None
            assert second is not None
            np.testing.assert_array_equal(first.fetch(), second.fetch())
    cache.drop("key", whole[: 2 * BLOCK])
    assert not cache.blocks.used


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
    assert engine.prefix_cache.blocks.used <= 10


@pytest.mark.parametrize("place", range(7))
def test_queries_that_are_computed_together_and_preempted_score_as_alone_now_and_later(load: Load, place: int) -> None:
    """The preempting work takes the whole pool. Empty items are read where a query ends, and the cache keeps that."""
    engine, roomy = load(10), load()
    outer = [group(seed, 2 * BLOCK + 9, (0, 3)) for seed in (5, 6, 7)]
    inner = group(8, 9 * BLOCK, (0, 4))
    expected, steps, found = [logits(roomy, one) for one in outer], count(), list[np.ndarray]()

    def preempt() -> None:
        if next(steps) == place:
            found.append(logits(engine, inner))

    work = [one.work("key", number) for number, one in enumerate(outer)]
    scored = {one.id: one.scores.logits for one in engine.score(work, preempt)}
    np.testing.assert_array_equal([scored[number] for number in range(3)], expected)
    np.testing.assert_array_equal(found, [logits(roomy, inner)] * len(found))
    np.testing.assert_array_equal([logits(engine, one) for one in outer], expected)


def test_branches_take_no_room_from_the_queries_of_their_step(load: Load) -> None:
    """Each of three queries has three of ten blocks. Three branches have as many, two of which are their query's."""
    engine, roomy = load(10), load()
    work = [drawn(seed, 2 * BLOCK + 2, (20,), (4, 5)).work(f"query {seed}", seed) for seed in range(3)]
    cache = engine.prefix_cache
    with by(Way.BRANCH), capture_logs() as logs:
        expected, found = ({one.id: bits(one) for one in of.score(work, lambda: None)} for of in (roomy, engine))
    np.testing.assert_equal(found, expected)
    assert not [entry for entry in logs if entry["event"] == "a sequence takes the blocks of all others"]
    assert cache.counts()["prefills"] == 3
