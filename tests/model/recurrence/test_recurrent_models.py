"""Models with recurrent layers: what a prefix keeps, what rows behind a part of it get, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.architecture.configuration_reader import UnsupportedModelError
from model.engine import Engine
from model.platforms import Platform
from model.prefixes.pool import PoolShape
from scoring.layout import ChunkWork, Continuations, GroupWork, Head, Rows
from tests.model import engines
from tests.model.checkpoints import EVERY
from tests.model.continuations.cases import Way, by
from tests.model.engines import chunk
from tests.model.geometries import LABELS, STEP, Group, groups, several_groups
from tests.model.references.gates import FLOAT32_LOGPROBS
from tests.model.whole_steps.conftest import WHOLE_STEPS


@pytest.fixture(
    scope="module",
    params=[engines.PLATFORM, pytest.param(WHOLE_STEPS, marks=pytest.mark.slow)],
    ids=["by layer", "by whole steps"],
)
def platform(request: pytest.FixtureRequest) -> Platform:
    found: Platform = request.param
    return found


@pytest.fixture(scope="module")
def both(checkpoint: Callable[[str], Path], platform: Platform) -> tuple[Engine, Engine]:
    """An engine that scores serially, and one that shares prefixes.

    tests/model/whole_steps/test_programs.py compares either model by layer and by whole steps.
    """
    name = "qwen35" if platform is engines.PLATFORM else "qwen35 in turn"
    serial, shared = (
        engines.load(checkpoint(name), "float32", algorithm, platform, step_tokens=STEP)
        for algorithm in ("serial", "prefill_extend")
    )
    return serial, shared


@pytest.fixture(scope="module")
def engine(checkpoint: Callable[[str], Path], platform: Platform) -> Engine:
    return engines.load(checkpoint("qwen35"), "float32", "prefill_extend", platform, step_tokens=STEP)


def logprobs(engine: Engine, work: list[Group]) -> list[np.ndarray]:
    found = engines.score(engine, [group.work(f"group {n}", n) for n, group in enumerate(work)])
    return [engines.logprobs_of(found[n]) for n in range(len(work))]


@settings(deadline=None, max_examples=10)
@given(work=several_groups)
def test_sharing_a_prefix_changes_scores_by_rounding_alone(both: tuple[Engine, Engine], work: list[Group]) -> None:
    for one, other in zip(*(logprobs(engine, work) for engine in both), strict=True):
        np.testing.assert_allclose(one, other, atol=2 * FLOAT32_LOGPROBS)  # each may be off by as much


@settings(deadline=None, max_examples=10)
@given(group=groups, data=st.data())
def test_a_row_has_the_same_bits_whatever_part_of_the_prefix_other_rows_see(
    engine: Engine, group: Group, data: st.DataObject
) -> None:
    (together,) = logprobs(engine, [group])
    number = data.draw(st.integers(0, len(group.items) - 1))
    (alone,) = logprobs(engine, [group.with_items([group.items[number]])])
    assert np.array_equal(alone[0], together[number])
    # Nor does it matter what stands in the prefix behind the part that it sees.
    seen = max(1, len(group.prefix) - group.items[number].short_by)
    shorter = replace(group, prefix=group.prefix[:seen], items=(replace(group.items[number], short_by=0),))
    (of_shorter,) = logprobs(engine, [shorter])
    assert np.array_equal(of_shorter[0], together[number])


def test_a_long_query_is_computed_once_for_rows_that_see_parts_of_it(engine: Engine) -> None:
    """Each part is computed from the last whole step on, which all of them share."""
    tokens = np.arange(3 * STEP + 40, dtype=np.int32) % 90
    ends = [len(tokens), len(tokens) - 1, len(tokens) - 1, 2 * STEP + 1]
    rows = Rows.pack([tokens[:2]] * len(ends), ends)
    with engines.counted(engine) as computed:
        engines.score(engine, [GroupWork("parts", tokens, (ChunkWork(0, rows, LABELS, Head.LOGPROBS),))])
    assert sum(computed) == len(tokens) + 39 + 1 + 2 * len(ends)


def test_usage_says_how_many_tokens_of_the_query_were_computed(engine: Engine) -> None:
    """A row of each part pays for it, but for the whole steps that it shares."""
    random = np.random.RandomState(3)
    for length in (50, 3 * STEP + 40):
        tokens = random.randint(0, 90, length).astype(np.int32)
        ends = [length, length - 1, length - 1, length - 2, length]
        items = [random.randint(0, 90, own).astype(np.int32) for own in (3, 2, 1, 4, 2)]
        chunk = ChunkWork(0, Rows.pack(items, ends), LABELS, Head.LOGPROBS)
        with engines.counted(engine) as computed:
            (scored,) = engine.score([GroupWork("usage", tokens, (chunk,))], lambda: None)
        assert sum(ends) + sum(map(len, items)) - scored.cached_tokens == sum(computed)


def test_an_item_longer_than_a_step_pays_for_no_more_than_it_is_credited_with(engine: Engine) -> None:
    """It shares whole steps alone, of which a query of less than a step has none."""
    random = np.random.RandomState(5)
    tokens, short, long = (random.randint(0, 90, length).astype(np.int32) for length in (50, 3, STEP + 20))
    chunks = (
        ChunkWork(0, Rows.pack([short], [50]), LABELS, Head.LOGPROBS),
        ChunkWork(1, Rows.pack([long], [49]), LABELS, Head.LOGPROBS),
    )
    scored = engine.score([GroupWork("credit", tokens, chunks)], lambda: None)
    assert [chunk.cached_tokens for chunk in scored] == [0, 0]


def test_branches_compute_no_part_of_a_query_that_nothing_reads(checkpoint: Callable[[str], Path]) -> None:
    """Labels of several tokens behind items that see less of the query."""
    random = np.random.RandomState(4)
    prefix, item, label = (random.randint(0, 90, size).astype(np.int32) for size in (2 * STEP + 20, 40, 20))
    ends = [len(prefix), len(prefix) - 1]
    continuations = Continuations.pack([label] * 8, np.repeat(np.array(ends) + len(item), 4))
    chunk = ChunkWork(0, Rows.pack([item] * 2, ends), (), Head.LOGPROBS, continuations)
    counts = []
    for name in ("untied", "qwen35"):
        engine = engines.load(checkpoint(name), "float32", "prefill_extend", step_tokens=STEP)
        with engines.counted(engine) as computed, by(Way.BRANCH):
            list(engine.score([GroupWork("branches", prefix, (chunk,))], lambda: None))
        counts.append(sum(computed))
    assert counts[0] == counts[1]


def test_a_block_counts_with_the_state_behind_it() -> None:
    config = EVERY["qwen35"]
    assert config.recurrence is not None
    # Three layers keep a state of 4 heads of 32 x 24, and three inputs of 2 x 2 x 32 + 4 x 24 channels, in float32.
    assert config.recurrence.state_bytes == 4 * 3 * (4 * 32 * 24 + 3 * 224)
    key_values = 2 * config.kv_heads * config.head_dim * STEP * 4
    shape = PoolShape.of(config, 10 * STEP, 4, STEP, budget=3 * (key_values + config.recurrence.state_bytes))
    assert (shape.blocks, shape.budget, shape.longest) == (10, 3, 10)


@pytest.mark.parametrize("tokens", [0, 1, 2, 63, 64, 65])
def test_items_of_these_lengths_score_as_whole_sequences(tokens: int, both: tuple[Engine, Engine]) -> None:
    random = np.random.RandomState(tokens)
    prefix = random.randint(0, 90, 2 * STEP + 7).astype(np.int32)
    item = random.randint(0, 90, tokens).astype(np.int32)
    work = [GroupWork("one", prefix, (chunk(0, [item], len(prefix), LABELS),))]
    serial, shared = (engines.logprobs_of(engines.score(engine, work)[0]) for engine in both)
    np.testing.assert_allclose(serial, shared, atol=FLOAT32_LOGPROBS)


def test_packed_sequences_are_refused_by_the_name_of_the_setting(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(UnsupportedModelError, match="SCORELINE_MULTI_ITEM_ALGORITHM=packed is not implemented"):
        engines.load(checkpoint("qwen35"), "float32", "packed")


def test_the_planner_never_packs_these_models(checkpoint: Callable[[str], Path]) -> None:
    """Without batch invariance it compares all algorithms that are possible."""
    engine = engines.load(checkpoint("qwen35"), "float32", "auto", batch_invariant=False, step_tokens=STEP)
    policy = engine.planner.policy
    assert not policy.may_use_segments
    assert not policy.may_use_dense_mask
    items = [np.array([number, 5], np.int32) for number in range(20)]
    prefix = np.arange(60, dtype=np.int32)
    (scored,) = engine.score([GroupWork("one", prefix, (chunk(0, items, 60, LABELS),))], lambda: None)
    assert set(scored.algorithms) <= {"serial", "prefill_extend"}
