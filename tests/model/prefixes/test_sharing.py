"""Queries that begin alike share the steps of their common beginning, which changes no bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.engine import Engine
from model.platforms import Platform
from scoring.layout import GroupWork, ScoredChunk
from tests.model import engines
from tests.model.checkpoints import EVERY
from tests.model.geometries import STEP, VOCABULARY, Group, Item
from tests.model.whole_steps.conftest import WHOLE_STEPS

CROWDED_BLOCKS = 8
COMMON, OWN = 300, 100
"""Tokens that the queries have in common, and of each alone."""
AT_BOUNDARIES = COMMON // STEP * STEP
"""Those of the common ones that end with a step, or with a block of whole steps."""

QUERIES = 15

Load = Callable[..., Engine]


SERVED: dict[str, tuple[str, Platform | None]] = {
    "steps of a CPU": ("untied", None),
    "whole steps": ("untied", WHOLE_STEPS),
    "recurrent layers": ("qwen35", None),
    "recurrent layers in whole steps": ("qwen35", WHOLE_STEPS),
}


SLOW = "recurrent layers in whole steps"


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow) if name in (SLOW, "whole steps") else name for name in SERVED],
)
def served(request: pytest.FixtureRequest) -> tuple[str, Platform | None]:
    """The name of a model, and the platform."""
    return SERVED[request.param]


@pytest.fixture(scope="module")
def load(served: tuple[str, Platform | None], checkpoint: Callable[[str], Path]) -> Load:
    model, platform = served

    def loaded(*, cache: bool = True, **settings: int) -> Engine:
        steps = STEP if platform is None else 2 * STEP
        asked: dict[str, Any] = {"enable_scoring_cache": cache, "step_tokens": steps, **settings}
        return engines.load(checkpoint(model), "float32", "prefill_extend", platform, **asked)

    return loaded


def drawn(seed: int, count: int) -> tuple[int, ...]:
    return tuple(np.random.RandomState(seed).randint(0, VOCABULARY, count).tolist())


def query(number: int, items: int = 10) -> Group:
    """A query whose first tokens are those of the others, with items of its own."""
    own = np.random.RandomState(1_000 + number)
    return Group(
        drawn(0, COMMON) + drawn(number + 1, OWN),
        tuple(Item(tuple(own.randint(0, VOCABULARY, length).tolist())) for length in own.randint(1, 12, items)),
    )


def score(engine: Engine, work: Sequence[GroupWork]) -> dict[int, ScoredChunk]:
    return {chunk.id: chunk for chunk in engine.score(work, lambda: None)}


def alone(engine: Engine, groups: Sequence[Group]) -> list[np.ndarray]:
    """The logits of groups that share nothing, because the engine keeps nothing."""
    return [score(engine, [one.work("key", 0)])[0].scores.logits for one in groups]


def test_many_queries_of_five_jobs_compute_their_common_beginning_once(load: Load) -> None:
    groups = [query(number) for number in range(QUERIES)]
    order = np.random.RandomState(5).permutation(QUERIES).reshape(5, -1)
    engine, found, tokens = load(), dict[int, ScoredChunk](), 0
    for job in order.tolist():
        with engines.counted(engine) as computed:
            found |= score(engine, [groups[number].work("key", number) for number in job])
        tokens += sum(computed)
    counts = engine.prefix_cache.counts()
    assert (counts["prefills"], counts["shared"], counts["hits"]) == (QUERIES, QUERIES - 1, 0)
    items = sum(len(item.tokens) for group in groups for item in group.items)
    distinct = AT_BOUNDARIES + QUERIES * (COMMON + OWN - AT_BOUNDARIES) + items
    assert tokens == distinct
    for number, logits in enumerate(alone(load(cache=False), groups)):
        np.testing.assert_array_equal(found[number].scores.logits, logits)
    # All items share the query, but the first one of each, which shares the beginning with other queries alone.
    usage = sorted(chunk.cached_tokens for chunk in found.values())
    assert usage == [9 * (COMMON + OWN)] + (QUERIES - 1) * [9 * (COMMON + OWN) + AT_BOUNDARIES]


def test_another_owner_shares_nothing(load: Load) -> None:
    engine, group = load(), query(1)
    score(engine, [group.work("one tenant", 0)])
    with engines.counted(engine) as computed:
        other = score(engine, [group.work("another tenant", 0)])[0]
    assert sum(computed) == COMMON + OWN + sum(len(item.tokens) for item in group.items)
    assert other.cached_tokens == 9 * (COMMON + OWN)


def test_a_conversation_that_goes_on_computes_what_is_new(load: Load) -> None:
    engine, items = load(), (Item((1, 2)), Item((3,)))
    whole = drawn(7, 500)
    lengths = [130, 2 * STEP, 2 * STEP + 1, 5 * STEP, 500, 3 * STEP]
    computed_of_each, found = list[int](), list[np.ndarray]()
    for length in lengths:
        with engines.counted(engine) as computed:
            found += [score(engine, [Group(whole[:length], items).work("key", 0)])[0].scores.logits]
        computed_of_each.append(sum(computed) - 3)
    # 2 * STEP ends with a step of the query before it, whose last token was not read: that step is computed again.
    assert computed_of_each == [130, STEP, 1, 3 * STEP, 500 - 5 * STEP, STEP]
    expected = alone(load(cache=False), [Group(whole[:length], items) for length in lengths])
    np.testing.assert_array_equal(found, expected)


@st.composite
def related(draw: st.DrawFn) -> list[Group]:
    """Queries each of which goes on from some place of another one, or is new."""
    prefixes = [drawn(draw(st.integers(0, 99)), 1)]
    for seed in range(draw(st.integers(1, 6))):
        base = draw(st.sampled_from(prefixes))
        place = draw(st.one_of(st.integers(0, len(base)), st.sampled_from([0, len(base), len(base) // STEP * STEP])))
        own = drawn(seed, draw(st.sampled_from([1, 5, STEP - 1, STEP, STEP + 1, 3 * STEP, 4 * STEP + 9])))
        prefixes.append((base[:place] + own)[: (CROWDED_BLOCKS - 1) * STEP])
    return [Group(prefix, (Item((number,)), Item(()), Item((1, 2, 3), 1))) for number, prefix in enumerate(prefixes)]


@pytest.fixture(scope="module")
def both(load: Load) -> tuple[Engine, Engine]:
    """An engine that keeps prefixes, and one that does not."""
    return load(), load(cache=False)


@pytest.fixture(scope="module")
def crowded(served: tuple[str, Platform | None], load: Load) -> Engine:
    """An engine whose pool has as many blocks as one sequence of the greatest length takes."""
    block_bytes = engines.block_bytes(EVERY[served[0]], STEP)
    return load(context=CROWDED_BLOCKS * STEP, prefix_cache_bytes=CROWDED_BLOCKS * block_bytes)


@settings(deadline=None, max_examples=8)
@given(groups=related(), together=st.booleans())
def test_related_queries_score_as_alone_and_their_usage_is_what_was_computed(
    both: tuple[Engine, Engine], groups: list[Group], together: bool
) -> None:
    engine, plain = both
    work = [group.work("key", number) for number, group in enumerate(groups)]
    found, tokens = dict[int, ScoredChunk](), 0
    for some in [work] if together else [[one] for one in work]:
        with engines.counted(engine) as computed:
            found |= score(engine, some)
        tokens += sum(computed)
    for number, logits in enumerate(alone(plain, groups)):
        np.testing.assert_array_equal(found[number].scores.logits, logits)
    for group in groups:
        for end in (len(group.prefix) - 1, len(group.prefix)):  # with recurrent layers, a query of its own each
            engine.prefix_cache.drop("key", np.array(group.prefix[:end], np.int32))
    assert not engine.prefix_cache.blocks.used
    prompts = sum(len(group.prefix) - item.short_by + len(item.tokens) for group in groups for item in group.items)
    assert prompts - sum(chunk.cached_tokens for chunk in found.values()) <= tokens


# Of the others, test_branching.py has the recurrent layers, and test_prefixes_that_share_steps.py the whole steps.
@pytest.mark.parametrize("served", ["steps of a CPU", pytest.param(SLOW, marks=pytest.mark.slow)], indirect=True)
@settings(deadline=None, max_examples=6)
@given(outer=related(), inner=related(), place=st.integers(0, 12))
def test_related_queries_that_preempt_one_another_in_a_small_pool_score_as_alone(
    both: tuple[Engine, Engine], crowded: Engine, outer: list[Group], inner: list[Group], place: int
) -> None:
    found, steps = dict[int, ScoredChunk](), count()

    def preempt() -> None:
        if next(steps) == place:
            found.update(score(crowded, [one.work("key", 100 + number) for number, one in enumerate(inner)]))

    work = [one.work("key", number) for number, one in enumerate(outer)]
    found |= {chunk.id: chunk for chunk in crowded.score(work, preempt)}
    for first, groups in ((0, outer), (100, inner)):
        for number, logits in enumerate(alone(both[1], groups), first):
            if number in found:
                np.testing.assert_array_equal(found[number].scores.logits, logits)
    assert crowded.prefix_cache.blocks.used <= CROWDED_BLOCKS


def test_the_beginning_stays_longer_than_what_is_behind_it(checkpoint: Callable[[str], Path]) -> None:
    """A pool of three steps: the beginning, and what two queries have behind it. Others evict that first."""
    engine = engines.load(
        checkpoint("untied"),
        "float32",
        "prefill_extend",
        step_tokens=STEP,
        prefix_cache_bytes=3 * engines.block_bytes(EVERY["untied"], STEP),
    )
    computed_of_each = []
    for beginning, seed in ((0, 1), (0, 2), (0, 3), (0, 2), (0, 1), (9, 4), (0, 5)):
        with engines.counted(engine) as computed:
            score(engine, [Group(drawn(beginning, STEP) + drawn(seed, STEP), (Item((1,)),)).work("key", 0)])
        computed_of_each.append(sum(computed) - 1)
    assert computed_of_each == [2 * STEP, STEP, STEP, 0, STEP, 2 * STEP, STEP]


def test_a_query_that_preempting_work_has_computed_meanwhile_is_kept_once(load: Load) -> None:
    engine, group = load(), query(3)
    found = list[np.ndarray]()

    def preempt() -> None:
        if not found:
            found.append(score(engine, [group.work("key", 1)])[1].scores.logits)

    (scored,) = engine.score([group.work("key", 0)], preempt)
    np.testing.assert_array_equal(scored.scores.logits, found[0])
    assert engine.prefix_cache.blocks.used == -(-(COMMON + OWN) // STEP)
    engine.prefix_cache.drop("key", np.array(group.prefix, np.int32))
    assert not engine.prefix_cache.blocks.used
