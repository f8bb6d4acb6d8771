"""Sequences that branch off within a block share their common beginning to the grain, which changes no bit."""

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
from model.forward import Extension
from model.layerwise import forward as layerwise_forward
from model.prefixes import cache
from model.prefixes.blocks import Blocks, Segment, SegmentKeys, keys_of
from model.prefixes.pool import PoolShape
from scoring.layout import TokenIds
from tests.model import engines
from tests.model.checkpoints import EVERY
from tests.model.geometries import VOCABULARY, Group, Item

STEP, GRAIN = 256, 64
CONTEXT = 1_024
ITEMS = (Item((1, 2, 3)), Item((5,)))
OF_ITEMS = sum(len(item.tokens) for item in ITEMS)
CROWDED_BLOCKS = CONTEXT // STEP

Tokens = tuple[int, ...]
Load = Callable[..., Engine]

pytestmark = pytest.mark.skipif(not engines.PLATFORM.has_row_floor(STEP), reason="bits depend on cuts here")


@pytest.fixture(
    scope="module",
    params=[
        "untied",
        pytest.param("gemma3", marks=pytest.mark.matrix),
        pytest.param("qwen35", marks=pytest.mark.slow),
    ],
)
def model(request: pytest.FixtureRequest) -> str:
    """A model without recurrent layers, one with sliding windows, and one with recurrent layers."""
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def load(model: str, checkpoint: Callable[[str], Path]) -> Load:
    def loaded(**asked: Any) -> Engine:
        return engines.load(checkpoint(model), "float32", "prefill_extend", step_tokens=STEP, **asked)

    return loaded


@pytest.fixture(scope="module")
def plain(load: Load) -> Engine:
    """An engine that keeps nothing."""
    return load(enable_scoring_cache=False)


@pytest.fixture(scope="module")
def shared(load: Load) -> Engine:
    """An engine that keeps more than the queries of a test take, and is empty between two tests."""
    return load(prefix_cache_bytes=2**28)


def drawn(seed: int, count: int) -> Tokens:
    return tuple(np.random.RandomState(seed).randint(0, VOCABULARY, count).tolist())


def logits(engine: Engine, query: Tokens, owner: str = "key", on_step: Callable[[], None] = lambda: None) -> np.ndarray:
    (scored,) = engine.score([Group(query, ITEMS).work(owner, 0)], on_step)
    return scored.scores.logits


def common(one: Tokens, other: Tokens) -> int:
    """How many tokens two sequences begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


class Kept:
    """What is kept of queries of one owner, in plain words: at which places of which of them others can go on."""

    def __init__(self, *, has_states: bool) -> None:
        self.queries: list[Tokens] = []
        self._has_states = has_states
        self._places: set[Tokens] = set()

    def computed(self, query: Tokens) -> int:
        """How many tokens of a query are computed, which is kept from now on."""
        if query in self.queries:
            return 0
        branch = max((common(query, other) for other in self.queries), default=0)
        branch = min(branch, len(query) - 1) // GRAIN * GRAIN
        begin = branch
        if self._has_states:
            begin = max((place for place in range(0, branch + 1, GRAIN) if query[:place] in self._places), default=0)
            ends = [*range(begin // STEP * STEP + STEP, len(query), STEP), branch]
            self._places |= {query[:end] for end in ends} | ({query} if len(query) % GRAIN == 0 else set())
        self.queries.append(query)
        return len(query) - begin


def check(engine: Engine, plain: Engine, queries: Sequence[tuple[str, Tokens]]) -> int:
    """Compare bits, counts and usage of queries of owners, one after another. Returns the tokens that are computed."""
    engine.prefix_cache.clear()
    kept = {owner: Kept(has_states=engine.forward.has_states) for owner, _ in queries}
    total = 0
    for owner, query in queries:
        with engines.counted(engine) as computed:
            (scored,) = engine.score([Group(query, ITEMS).work(owner, 0)], lambda: None)
        expected = kept[owner].computed(query)
        assert sum(computed) - OF_ITEMS == expected
        assert scored.cached_tokens == (len(ITEMS) - 1) * len(query) + len(query) - expected
        np.testing.assert_array_equal(scored.scores.logits, logits(plain, query))
        total += expected
    return total


def test_what_goes_on_behind_a_key_is_found_as_long_as_any_of_it_is_there() -> None:
    blocks = Blocks(PoolShape(4, 4, 4), timeout=60, clock=lambda: 0.0)
    beginning, behind = drawn(0, 3 * GRAIN), [drawn(seed, GRAIN) for seed in (1, 2)]
    queries = [np.array(beginning + own, np.int32) for own in behind]
    (one,), (other,) = (keys_of("key", query, STEP, GRAIN) for query in queries)
    assert one.inside == other.inside
    segments = blocks.add([blocks.take(one), blocks.take(other)])
    for segment in segments:
        blocks.release(segment)
    for key in (other.end, one.end):
        assert all(blocks.find_within(inside) in segments for inside in one.inside)
        blocks.forget(key)
        segments = [segment for segment in segments if segment.keys.end != key]
    assert [blocks.find_within(inside) for inside in one.inside] == [None] * 3
    assert blocks.free == 4


@st.composite
def branching(draw: st.DrawFn) -> list[tuple[str, Tokens]]:
    """Queries of two owners each of which goes on from some place of another one, whoever has that, or is new."""
    queries = [("one", drawn(draw(st.integers(0, 9)), draw(st.integers(1, CONTEXT - 4))))]
    for seed in range(100, 100 + draw(st.integers(1, 6))):
        base = draw(st.sampled_from(queries))[1]
        place = draw(st.integers(0, len(base)) | st.sampled_from(range(0, len(base) + 1, GRAIN)))
        own = drawn(seed, draw(st.integers(1, 300) | st.sampled_from([GRAIN, STEP, 2 * GRAIN - place % GRAIN])))
        query = (base[:place] + own)[: CONTEXT - 4]
        queries.append((draw(st.sampled_from(["one", "one", "other"])), query))
    return queries


@settings(deadline=None, max_examples=8)
@given(queries=branching())
def test_queries_compute_what_they_do_not_share_to_the_grain_and_score_as_alone(
    shared: Engine, plain: Engine, queries: list[tuple[str, Tokens]]
) -> None:
    check(shared, plain, queries)
    for owner, query in queries:
        shared.prefix_cache.drop(owner, np.array(query, np.int32))
    assert not shared.prefix_cache.blocks.used


@pytest.fixture(scope="module")
def crowded(model: str, load: Load) -> Engine:
    """An engine whose pool has as many blocks as one sequence of the greatest length takes."""
    return load(prefix_cache_bytes=CROWDED_BLOCKS * engines.block_bytes(EVERY[model], STEP), context=CONTEXT)


@settings(deadline=None, max_examples=6)
@given(outer=branching(), inner=branching(), place=st.integers(0, 20))
def test_queries_that_evict_and_preempt_one_another_score_as_alone(
    crowded: Engine,
    plain: Engine,
    outer: list[tuple[str, Tokens]],
    inner: list[tuple[str, Tokens]],
    place: int,
) -> None:
    steps, found = count(), list[tuple[Tokens, np.ndarray]]()

    def preempt() -> None:
        if next(steps) == place:
            found.extend((query, logits(crowded, query, owner)) for owner, query in inner)

    found += [(query, logits(crowded, query, owner, preempt)) for owner, query in outer]
    for query, of_query in found:
        np.testing.assert_array_equal(of_query, logits(plain, query))
    blocks = crowded.prefix_cache.blocks
    assert blocks.used <= CROWDED_BLOCKS
    crowded.prefix_cache.clear()
    assert not blocks.used
    assert not blocks._beginnings, "nothing is found of what is gone"


def test_a_backlog_of_queries_computes_little_more_than_its_distinct_tokens(shared: Engine, plain: Engine) -> None:
    """As 100 queries of 3,000 tokens that share 2,500, but a quarter of them, and each a third as long."""
    queries = [("key", drawn(0, 833) + drawn(1 + number, 167)) for number in range(25)]
    distinct = 833 + 25 * 167
    assert check(shared, plain, queries) <= 1.1 * distinct


def test_what_preempts_a_query_goes_on_from_where_that_branches_off(shared: Engine, plain: Engine) -> None:
    """The query that preempts has the same beginning, of which the other one has computed the shared part by then."""
    shared.prefix_cache.clear()
    one, other, third = (drawn(0, 400) + drawn(seed, 500) for seed in (1, 2, 3))
    found, steps = list[np.ndarray](), count()

    def preempt() -> None:
        if next(steps) == 1:
            found.append(logits(shared, third))

    logits(shared, one)
    with engines.counted(shared) as computed:
        found.insert(0, logits(shared, other, on_step=preempt))
    again = 384 - STEP if shared.forward.has_states else 0
    assert sum(computed) - 2 * OF_ITEMS == again + 2 * (900 - 384)
    np.testing.assert_array_equal(found, [logits(plain, other), logits(plain, third)])


def _owners_are_not_told_apart(patches: pytest.MonkeyPatch) -> None:
    patches.setattr(cache, "keys_of", lambda owner, *rest: keys_of("", *rest))


def _keys_do_not_say_what_comes_before(patches: pytest.MonkeyPatch) -> None:
    def of_parts_alone(owner: str, tokens: TokenIds, size: int, grain: int) -> list[SegmentKeys]:
        parts = [keys_of(owner, tokens[begin : begin + grain], size, grain) for begin in range(0, len(tokens), grain)]
        ends = [key.end for (key,) in parts]
        cut = [ends[begin : begin + size // grain] for begin in range(0, len(ends), size // grain)]
        whole = keys_of(owner, tokens, size, grain)
        return [SegmentKeys(keys.end, tuple(of_cut[:-1])) for keys, of_cut in zip(whole, cut, strict=True)]

    patches.setattr(cache, "keys_of", of_parts_alone)


def _another_segment_is_found(patches: pytest.MonkeyPatch) -> None:
    found, within = Blocks.find, Blocks.find_within

    def first(self: Blocks, key: bytes) -> Segment | None:
        return within(self, key) and next(iter(self._segments.values()))

    patches.setattr(Blocks, "find_within", first)
    patches.setattr(Blocks, "find", lambda self, key: found(self, key) or first(self, key))


def _nothing_is_found_within_a_segment(patches: pytest.MonkeyPatch) -> None:
    patches.setattr(Blocks, "find_within", lambda self, key: None)


def _the_beginning_of_another_block_is_copied(patches: pytest.MonkeyPatch) -> None:
    place = layerwise_forward._place

    def beside(piece: Extension, block_tokens: int) -> TokenIds:
        target, source, first = place(piece, block_tokens)
        return np.array([target, source - 1 if source else 1, first], np.int32)

    patches.setattr(layerwise_forward, "_place", beside)


QUERIES = [
    ("one", drawn(0, 400) + drawn(1, 300)),
    ("one", drawn(0, 400) + drawn(2, 300)),
    ("other", drawn(0, 700)),
    ("one", drawn(0, 400) + drawn(3, 300)),
    ("one", drawn(4, 300) + drawn(0, 400)[300:] + drawn(5, 300)),
    ("one", drawn(0, 330) + drawn(6, 300)),
    ("one", drawn(4, 256) + drawn(0, 400)[256:]),
]


def test_queries_that_show_planted_faults_are_computed_right(shared: Engine, plain: Engine) -> None:
    check(shared, plain, QUERIES)


@pytest.mark.parametrize(
    "harm",
    [
        _owners_are_not_told_apart,
        _keys_do_not_say_what_comes_before,
        _another_segment_is_found,
        _nothing_is_found_within_a_segment,
        _the_beginning_of_another_block_is_copied,
    ],
)
def test_a_planted_fault_of_sharing_is_seen(
    harm: Callable[[pytest.MonkeyPatch], None], shared: Engine, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    harm(monkeypatch)
    with pytest.raises(AssertionError):
        check(shared, plain, QUERIES)
