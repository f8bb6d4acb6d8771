"""The prefix cache under pressure, and fallbacks to other algorithms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from model.architecture import weights
from model.engine import Engine
from model.prefixes.pool import PROGRAM_BYTES, ContextTooLongError
from model.states import without_pause
from scoring.planning.algorithms import Algorithm
from tests.model import engines
from tests.model.checkpoints import EVERY
from tests.model.geometries import Group, Item

NAME = "untied"
CONFIG = EVERY[NAME]
BLOCK_BYTES = 2 * CONFIG.layers * CONFIG.kv_heads * CONFIG.head_dim * 64 * 4


def load(checkpoint: Callable[[str], Path], **settings: Any) -> Engine:
    return engines.load(
        checkpoint(NAME), "float32", step_tokens=64, **{"multi_item_algorithm": "prefill_extend"} | settings
    )


def group(length: int, seed: int) -> Group:
    random = np.random.RandomState(seed)
    prefix = tuple(random.randint(0, CONFIG.vocabulary, length).tolist())
    return Group(prefix, (Item((1, 2, 3)), Item(()), Item((5,), 1)))


def logits(engine: Engine, of_group: Group) -> np.ndarray:
    return engines.score(engine, [of_group.work("key", 0)])[0].logits


def test_prefixes_that_evict_one_another_score_as_they_do_alone(checkpoint: Callable[[str], Path]) -> None:
    groups = [group(length, n) for n, length in enumerate((50, 90, 128, 64, 65, 10))]
    roomy, crowded = load(checkpoint), load(checkpoint, prefix_cache_bytes=2 * BLOCK_BYTES)
    expected = [logits(roomy, each) for each in groups]
    for n in np.random.RandomState(0).randint(0, len(groups), 15):
        np.testing.assert_array_equal(logits(crowded, groups[n]), expected[n])


def test_prefills_hits_and_evictions_are_counted(checkpoint: Callable[[str], Path]) -> None:
    engine = load(checkpoint, prefix_cache_bytes=2 * BLOCK_BYTES)
    for length in (50, 50, 60, 50, 70, 60):
        logits(engine, group(length, length))
    assert engine.prefix_cache.counts() == {"prefills": 4, "shared": 0, "hits": 2, "evictions": 3, "expirations": 0}


def test_an_unused_prefix_expires(checkpoint: Callable[[str], Path]) -> None:
    engine, now = load(checkpoint, multi_item_prefill_extend_cache_timeout=60), 0.0
    engine.prefix_cache.blocks._clock = lambda: now
    for seconds in (0.0, 59.0, 61.0, 0.0):
        now += seconds
        expected = logits(engine, group(50, 1))
    np.testing.assert_array_equal(logits(engine, group(50, 1)), expected)
    counted = {"prefills": 2, "shared": 0, "hits": 3, "evictions": 0, "expirations": 1}
    with capture_logs() as logs:
        logits(engine, group(50, 1))
    (told,) = [entry for entry in logs if entry["event"] == "computed"]
    assert told["prefixes"] == counted | {"hits": 4}
    assert told["tokens"] == 64


def test_computed_tokens_are_counted_with_their_padding(checkpoint: Callable[[str], Path]) -> None:
    engine = load(checkpoint)
    logits(engine, group(100, 1))
    first = engine.computed_tokens
    logits(engine, group(100, 1))
    assert (first, engine.computed_tokens - first) == (3 * 64, 64), "two steps of query, and items in one of their own"


def test_work_that_ends_during_a_prefill_releases_its_blocks(checkpoint: Callable[[str], Path]) -> None:
    engine = load(checkpoint, prefix_cache_bytes=2 * BLOCK_BYTES)
    work = [group(128, 1).work("key", 0)]

    def stop() -> None:
        raise InterruptedError

    for _ in range(5):
        with pytest.raises(InterruptedError):
            list(engine.score(work, stop))
    assert not engine.prefix_cache.blocks.used
    assert np.isfinite(logits(engine, group(128, 1))).all()


@pytest.mark.slow
def test_items_longer_than_a_step_score_the_same_whatever_the_pool_has_room_for(
    checkpoint: Callable[[str], Path],
) -> None:
    random = np.random.RandomState(7)
    items = tuple(
        Item(tuple(random.randint(0, CONFIG.vocabulary, length).tolist()), short_by)
        for length, short_by in ((200, 0), (3, 0), (65, 2), (400, 1), (64, 0))
    )
    of_group = group(150, 3).with_items(items)
    expected = logits(load(checkpoint, multi_item_algorithm="serial"), of_group)
    (scored,) = load(checkpoint).score([of_group.work("key", 0)], lambda: None)
    assert scored.cached_tokens == 150 + 2 * 64 + 2 * 64 + 150, (
        "of all items but the first; long items share whole blocks alone"
    )
    roomy = scored.scores.logits
    np.testing.assert_allclose(roomy, expected, rtol=0, atol=2e-5)
    for blocks in (1, 3, 5, 11):
        crowded = load(checkpoint, prefix_cache_bytes=blocks * BLOCK_BYTES)
        for _ in range(2):
            np.testing.assert_array_equal(logits(crowded, of_group), roomy)


def test_of_a_prefix_longer_than_the_budget_only_the_beginning_is_kept(checkpoint: Callable[[str], Path]) -> None:
    engine = load(checkpoint, prefix_cache_bytes=2 * BLOCK_BYTES)
    small, large = group(100, 1), group(700, 2)
    before = logits(engine, small)
    np.testing.assert_array_equal(logits(engine, large), logits(load(checkpoint), large))
    assert engine.prefix_cache.blocks.used == 2
    np.testing.assert_array_equal(logits(engine, small), before)


def test_a_device_without_room_for_one_context_is_refused_when_the_model_is_loaded(
    checkpoint: Callable[[str], Path],
) -> None:
    decoder, _ = weights.load(checkpoint(NAME), CONFIG, "float32")
    memory = PROGRAM_BYTES + weights.size_in_bytes(decoder) + 10 * BLOCK_BYTES
    small = replace(engines.PLATFORM, memory=memory)
    with pytest.raises(
        ContextTooLongError,
        match="of 640 tokens beside the weights, and the context is 1024: set SCORELINE_CONTEXT_LENGTH to fewer",
    ):
        load(checkpoint, platform=small)
    assert load(checkpoint, platform=small, context=640).prefix_cache.blocks.shape.blocks == 10


def test_two_prefixes_of_one_owner_are_told_apart(checkpoint: Callable[[str], Path]) -> None:
    engine = load(checkpoint)
    one, other = (logits(engine, group(70, seed)) for seed in (1, 2))
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(logits(load(checkpoint), group(70, 2)), other)


@pytest.mark.parametrize(
    ("settings", "length", "falls_back_to", "reason"),
    [
        ({"multi_item_enable_prefill_extend": False}, 70, Algorithm.SERIAL, "prefill_extend is switched off"),
        (
            {"multi_item_algorithm": "packed", "max_multi_item_seq_len": 60},
            70,
            Algorithm.PREFILL_EXTEND,
            "prefix and item exceed max_multi_item_seq_len",
        ),
    ],
)
def test_a_fallback_to_another_algorithm_scores_and_is_logged(
    settings: dict[str, object],
    length: int,
    falls_back_to: Algorithm,
    reason: str,
    checkpoint: Callable[[str], Path],
) -> None:
    engine = load(checkpoint, **settings)
    with capture_logs() as logs:
        found = logits(engine, group(length, 1))
    np.testing.assert_allclose(found, logits(load(checkpoint), group(length, 1)), rtol=0, atol=2e-5)
    (told,) = [entry for entry in logs if entry["event"] == "fallback"]
    assert (told["algorithm"], told["reason"], told["rows"]) == (falls_back_to, reason, 3)


def test_without_batch_invariance_the_engine_packs_where_that_is_estimated_faster(
    checkpoint: Callable[[str], Path],
) -> None:
    engine = load(checkpoint, multi_item_algorithm="auto", batch_invariant=False)
    small = Group(group(90, 1).prefix, tuple(Item((n, n + 1)) for n in range(9)))
    with capture_logs() as logs:
        found = logits(engine, small)
    np.testing.assert_allclose(found, logits(load(checkpoint), small), rtol=0, atol=2e-5)
    (told,) = [entry for entry in logs if entry["event"] == "planned"]
    assert (told["algorithm"], told["rows"]) == (Algorithm.PACKED_SEGMENT, 9)
    assert told["reason"] == "estimated to be the fastest"


def test_a_sequence_that_needs_the_whole_pool_takes_it_from_all_others(checkpoint: Callable[[str], Path]) -> None:
    """A pool of ten blocks: the query has three, of which what continues it shares two, and the last needs nine."""
    engine = load(checkpoint, prefix_cache_bytes=10 * BLOCK_BYTES, context=640)
    cache, tokens = engine.prefix_cache, np.arange(570, dtype=np.int32) % CONFIG.vocabulary
    with cache.query("key", tokens[:130]) as query, cache.sequence(tokens[:190], query, 130) as branch:
        assert without_pause(query.obtain()) == 3 * 64
        assert without_pause(branch.obtain()) == 64
        assert branch.hidden is not None
        fresh = branch.hidden.fetch()
        with cache.sequence(tokens[:180], query, 130) as computing, cache.sequence(tokens, query, 130) as last:
            computing.begin()
            last.begin()
            assert not query.is_complete
            assert not branch.is_complete
            assert computing.is_lost
        assert without_pause(branch.obtain()) == 3 * 64
        np.testing.assert_array_equal(branch.hidden.fetch(), fresh)
    assert cache.blocks.used == 2
