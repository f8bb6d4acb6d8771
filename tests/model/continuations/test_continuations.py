"""Labels of all lengths are scored as NumPy scores them, in each of the ways in which they share work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from model.engine import Engine
from model.forward import AttentionRows
from model.layerwise import forward as layerwise_forward
from model.layerwise import steps
from model.programs.heads import Heads
from model.score_buffer import EngineError, ScoreBuffer
from model.states import States
from model.work import layout
from scoring.layout import ChunkWork, Continuations, GroupWork, Head, Rows, ScoredChunk
from scoring.planning.algorithms import AlgorithmSetting
from scoring.planning.cut import together_in_rows
from tests.model import engines
from tests.model.continuations.cases import (
    CLEAR_LEAD,
    Case,
    Label,
    Oracle,
    Way,
    assert_scored,
    bits,
    bits_of_first,
    by,
    cases,
    likelihood,
)
from tests.model.geometries import STEP, VOCABULARY, Item
from tests.model.references.gates import FLOAT32_LOGPROBS

MODEL = "untied"
WAYS = (None, Way.ROW, Way.BRANCH)
Load = Callable[..., Engine]
quickly = settings(max_examples=5)


@pytest.fixture(scope="module")
def load(checkpoint: Callable[[str], Path]) -> Load:
    @cache
    def loaded(algorithm: AlgorithmSetting = "auto", **asked: Any) -> Engine:
        return engines.load(checkpoint(MODEL), "float32", algorithm, step_tokens=STEP, **asked)

    return loaded


@pytest.fixture(scope="module")
def oracle(checkpoint: Callable[[str], Path]) -> Oracle:
    return Oracle(checkpoint(MODEL), MODEL)


def scored(engine: Engine, case: Case) -> ScoredChunk:
    (found,) = engine.score([case.work()], lambda: None)
    return found


@pytest.mark.parametrize("way", WAYS)
@quickly
@given(case=cases())
def test_labels_of_all_lengths_are_scored_as_in_numpy(way: Way | None, load: Load, oracle: Oracle, case: Case) -> None:
    with by(way):
        assert_scored(scored(load(), case), case, oracle.expected(case), FLOAT32_LOGPROBS)


@quickly
@given(case=cases())
def test_likelihoods_are_as_in_numpy(load: Load, oracle: Oracle, case: Case) -> None:
    wanted = likelihood(case)
    assert_scored(scored(load(), wanted), wanted, oracle.expected(wanted), FLOAT32_LOGPROBS)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["serial", "prefill_extend", "packed"])
@pytest.mark.parametrize("batch_invariant", [True, False])
@quickly
@given(case=cases())
def test_no_setting_changes_the_scores(
    algorithm: AlgorithmSetting, batch_invariant: bool, load: Load, oracle: Oracle, case: Case
) -> None:
    found = scored(load(algorithm, batch_invariant=batch_invariant), case)
    assert_scored(found, case, oracle.expected(case), FLOAT32_LOGPROBS)
    assert not any("packed" in name for name in found.algorithms)


FEW = Case(
    (5, 6, 7),
    (Item((8, 9)), Item(())),
    ((Label((1,)), Label((2, 3)), Label((10, 11, 12))), (Label((4, 5, 6)), Label((7,)), Label((13, 14)))),
)


def test_chunks_of_both_kinds_share_a_group(load: Load, oracle: Oracle) -> None:
    work = FEW.work()
    (chunk,) = work.chunks
    plain = ChunkWork(1, chunk.rows, (1, 2), Head.LOGPROBS)
    found = {one.id: one for one in load().score([GroupWork("both", work.prefix, (chunk, plain))], lambda: None)}
    assert_scored(found[0], FEW, oracle.expected(FEW), FLOAT32_LOGPROBS)
    alone = engines.score(load(), [GroupWork("plain", work.prefix, (plain,))])[1]
    np.testing.assert_array_equal(found[1].scores.logits, alone.logits)
    assert found[1].token_logprobs is None


def test_an_item_without_tokens_has_a_likelihood_of_one(load: Load) -> None:
    rows = Rows.pack([[], []], [3, 3])
    chunk = ChunkWork(0, rows, (), Head.LOGPROBS, Continuations.pack([[], [5, 6]], [3, 3]))
    (found,) = load().score([GroupWork("empty", np.array([1, 2, 3], np.int32), (chunk,))], lambda: None)
    assert found.scores.logprobs is not None
    assert found.greedy is not None
    assert found.scores.logprobs[0, 0] == 0.0
    assert found.scores.logprobs[1, 0] < 0.0
    assert found.greedy[0]


def test_a_chunk_without_any_target_is_scored_at_once(load: Load) -> None:
    chunk = ChunkWork(0, Rows.pack([[]], [2]), (), Head.LOGPROBS, Continuations.pack([[]], [2]))
    nothing = ChunkWork(1, Rows.pack([], []), (), Head.LOGPROBS, Continuations.pack([], []))
    computed = load().computed_tokens
    found = list(load().score([GroupWork("none", np.array([1, 2], np.int32), (chunk, nothing))], lambda: None))
    assert [one.scores.logits.shape for one in found] == [(1, 1), (0, 0)]
    assert load().computed_tokens == computed


@pytest.mark.parametrize(("kept", "message"), [(4, "1 targets behind 4 of 3 tokens"), (3, "1024 targets behind 3 of")])
def test_a_continuation_that_does_not_fit_is_refused(kept: int, message: str, load: Load) -> None:
    targets = [[1]] if kept == 4 else [[1] * 1024]
    chunk = ChunkWork(7, Rows.pack([[2]], [2]), (), Head.LOGPROBS, Continuations.pack(targets, [kept]))
    with pytest.raises(EngineError, match=f"chunk 7, continuation 0: {message}"):
        list(load().score([GroupWork("long", np.array([1, 2], np.int32), (chunk,))], lambda: None))


@pytest.mark.slow
def test_a_continuation_as_long_as_the_context_is_scored(load: Load, oracle: Oracle) -> None:
    random = np.random.RandomState(0)
    case = Case((1,), (Item(()),), ((Label(tuple(random.randint(0, VOCABULARY, 1023).tolist())),),))
    assert_scored(scored(load(), case), case, oracle.expected(case), FLOAT32_LOGPROBS)


class Others:
    """The ways in which labels, items and groups around an item's first label can change."""

    @staticmethod
    def labels_added(case: Case) -> Case:
        return case.first(len(case.labels[0]))

    @staticmethod
    def labels_lengthened(case: Case) -> Case:
        first, *rest = case.labels[0]
        longer = tuple(Label((*label.tokens, 1), label.cut) for label in rest)
        return Case(case.prefix, case.items[:1], ((first, *longer, Label((2,))),))

    @staticmethod
    def labels_of_one_token_added(case: Case) -> Case:
        return Case(case.prefix, case.items[:1], ((case.labels[0][0], *(Label((token,)) for token in range(12))),))

    @staticmethod
    def items_added(case: Case) -> Case:
        return case


CHANGES = ("labels_added", "labels_lengthened", "labels_of_one_token_added", "items_added")


@pytest.mark.parametrize("way", [None, pytest.param(Way.ROW, marks=pytest.mark.slow), Way.BRANCH])
@quickly
@given(case=cases())
def test_nothing_else_changes_a_bit_of_a_label(way: Way | None, load: Load, case: Case) -> None:
    engine, label = load(), case.labels[0][0]
    with by(way):
        alone = bits(scored(engine, case.first(1)))
        for change in CHANGES:
            found = scored(engine, getattr(Others, change)(case))
            assert np.array_equal(bits_of_first(found, label), alone), change
        last = Case(case.prefix, case.items[:1], ((*case.labels[0][1:], label),))
        assert np.array_equal(bits(scored(engine, last))[-len(alone) :], alone), "in another order"
        strangers = [FEW.work("other", 1), case.work(), Case(case.prefix, FEW.items, FEW.labels).work("case", 2)]
        among = {one.id: one for one in engine.score(strangers, lambda: None)}
        assert np.array_equal(bits_of_first(among[0], label), alone), "among others"
        engine.prefix_cache.drop(case.work().owner, case.work().prefix)
        assert np.array_equal(bits(scored(engine, case.first(1))), alone), "whether the query is cached"


@quickly
@given(case=cases())
def test_nothing_else_changes_a_bit_of_a_likelihood(load: Load, case: Case) -> None:
    engine, wanted = load(), likelihood(case)
    alone = bits(scored(engine, wanted.first(1)))
    assert len(alone) == len(wanted.labels[0][0].tokens)
    assert np.array_equal(bits(scored(engine, wanted))[: len(alone)], alone), "among other items"
    turned = bits(scored(engine, Case(wanted.prefix, wanted.items[::-1], wanted.labels[::-1])))
    assert np.array_equal(turned[len(turned) - len(alone) :], alone), "in another order"
    among = {
        one.id: one for one in engine.score([FEW.work("other", 1), case.work("x", 2), wanted.work()], lambda: None)
    }
    assert np.array_equal(bits(among[0])[: len(alone)], alone), "among others"
    engine.prefix_cache.drop(wanted.work().owner, wanted.work().prefix)
    assert np.array_equal(bits(scored(engine, wanted.first(1))), alone), "whether the query is cached"


@pytest.mark.parametrize("kind", [lambda case: case, likelihood])
@quickly
@given(case=cases())
def test_the_most_probable_tokens_are_those_of_numpy_and_change_no_bit(
    kind: Callable[[Case], Case], load: Load, oracle: Oracle, case: Case
) -> None:
    engine, wanted = load(), kind(case)
    expected = oracle.expected(wanted)
    (found,) = engine.score([wanted.with_top()], lambda: None)
    assert_scored(found, wanted, expected, FLOAT32_LOGPROBS)
    assert np.array_equal(bits(found), bits(scored(engine, wanted)))
    assert found.top is not None
    assert expected.highest is not None
    np.testing.assert_allclose(found.top.logprobs, expected.highest, rtol=0, atol=FLOAT32_LOGPROBS)
    targets = np.array([token for labels in wanted.labels for label in labels for token in label.tokens], np.int32)
    clear = np.abs(expected.lead) > CLEAR_LEAD
    assert np.array_equal((found.top.ids == targets)[clear], (expected.lead > 0)[clear])
    is_target = found.top.ids == targets
    assert np.array_equal(bits(found)[is_target], found.top.logprobs.view(np.int32)[is_target])
    strangers = [FEW.with_top("other", 1), FEW.work("plain", 2), wanted.with_top()]
    among = {one.id: one for one in engine.score(strangers, lambda: None)}[0].top
    assert among is not None
    assert among.ids.tobytes() == found.top.ids.tobytes(), "among others"
    assert among.logprobs.tobytes() == found.top.logprobs.tobytes(), "among others"


def test_a_logit_that_no_sound_model_gives_is_refused_with_its_token(load: Load) -> None:
    """An infinite logit of another token leaves the target a log-probability that is possible."""
    (chunk,) = FEW.with_top().chunks
    assert chunk.continuations is not None
    buffer = ScoreBuffer.of(chunk)
    count = len(chunk.continuations.tokens)
    nothing = np.full(count, -np.inf, np.float32)
    top = np.zeros(count, np.int32), np.full(count, np.nan, np.float32)
    buffer.write(np.arange(count), nothing, np.zeros(count, np.bool_), *top)
    with pytest.raises(EngineError, match="most probable token is NaN"):
        buffer.scored()


@quickly
@given(case=cases(most_items=2, most_labels=3))
def test_a_label_of_one_token_has_the_bits_that_it_has_by_default(load: Load, case: Case) -> None:
    ids = (7, 41, 80, *range(20, 30))
    work = case.work()
    (rows,) = (chunk.rows for chunk in work.chunks)
    for count in (3, len(ids)):
        chunk = ChunkWork(0, rows, ids[:count], Head.LOGPROBS)
        by_default = engines.logprobs_of(engines.score(load(), [GroupWork("d", work.prefix, (chunk,))])[0])
        ones = tuple(Label((token,)) for token in ids[:count])
        alone = scored(load(), Case(case.prefix, case.items, (ones,) * len(case.items)))
        assert np.array_equal(bits(alone), by_default.reshape(-1).view(np.int32)), count
        among = Case(case.prefix, case.items, tuple((*ones, *own) for own in case.labels))
        targets = np.array([[len(label.tokens) for label in labels] for labels in among.labels])
        firsts = (np.cumsum(targets) - targets.reshape(-1)).reshape(targets.shape)[:, :count]
        assert np.array_equal(bits(scored(load(), among))[firsts], by_default.view(np.int32)), f"{count} of more"


def planted(change: Callable[[pytest.MonkeyPatch], None], load: Load, oracle: Oracle) -> bool:
    """Whether a bug is noticed: by more than fifty times what a right engine is off."""
    expected = oracle.expected(FEW)
    with pytest.MonkeyPatch.context() as patches:
        change(patches)
        found = scored(load(), FEW)
    assert found.token_logprobs is not None
    return bool(np.abs(found.token_logprobs - expected.logprobs).max() > 50 * FLOAT32_LOGPROBS)


def target_off_by_one(patches: pytest.MonkeyPatch) -> None:
    run = Heads.of_targets

    def off(self: Heads, states: Sequence[States], targets: np.ndarray, *, top: bool) -> Any:
        return run(self, states, np.roll(targets, 1, axis=0), top=top)

    patches.setattr(Heads, "of_targets", off)


def first_target_read_late(patches: pytest.MonkeyPatch) -> None:
    read = steps.tokens_read

    def late(extensions: Any) -> np.ndarray:
        found = read(extensions)
        found[0] += 1
        return found

    patches.setattr(layerwise_forward, "tokens_read", late)


def neighbours_label_seen(patches: pytest.MonkeyPatch) -> None:
    patches.setattr(layout, "_tail", lambda first, length: slice(3, 3 + length))


def targets_computed_one_place_early(patches: pytest.MonkeyPatch) -> None:
    patches.setattr(layout, "_tail", lambda first, length: slice(first + 1, first + 1 + length))


def tail_behind_the_tail_before_it(patches: pytest.MonkeyPatch) -> None:
    places = AttentionRows.places

    def in_order(self: AttentionRows, offset: np.ndarray) -> np.ndarray:
        return places(replace(self, begins=self.own_begins - self.shared), offset)

    patches.setattr(AttentionRows, "places", in_order)


def tail_at_the_place_behind_the_tail_before_it(patches: pytest.MonkeyPatch) -> None:
    offsets = AttentionRows.offsets

    def counted_on(self: AttentionRows) -> np.ndarray:
        begins = np.repeat(self.begins, self.own)
        return np.where(np.repeat(self.shared, self.own) > 0, np.arange(len(begins)) - begins, offsets(self))

    patches.setattr(AttentionRows, "offsets", counted_on)


BUGS = (
    target_off_by_one,
    first_target_read_late,
    neighbours_label_seen,
    targets_computed_one_place_early,
    tail_behind_the_tail_before_it,
    tail_at_the_place_behind_the_tail_before_it,
)


def test_labels_share_the_tokens_of_a_short_item(load: Load) -> None:
    labels = tuple(Label((number, *range(4))) for number in range(10))
    case = Case(tuple(range(STEP)), (Item(tuple(range(20))),), (labels,))
    engine = load()
    list(engine.score([case.work()], lambda: None))  # so that the query is cached
    computed = engine.computed_tokens
    scored(engine, case)
    rows = len(list(together_in_rows(20, [4] * 10, engine._forward.shapes)))
    assert engine.computed_tokens - computed == rows * STEP


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(bug: Callable[[pytest.MonkeyPatch], None], load: Load, oracle: Oracle) -> None:
    assert planted(bug, load, oracle)


def test_without_a_bug_nothing_is_noticed(load: Load, oracle: Oracle) -> None:
    assert not planted(lambda patches: None, load, oracle)
