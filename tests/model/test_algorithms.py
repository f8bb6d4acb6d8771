"""The four algorithms give the same scores, which other rows do not change (``docs/algorithms.md``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.special import softmax

from checkpoints.card import ModelCard
from model.architecture import weights
from model.attention.tiles import TiledAttention
from model.engine import Engine
from scoring.layout import ChunkWork, GroupWork, Head, ScoredChunk
from scoring.planning.algorithms import Algorithm, AlgorithmSetting
from scoring.prepare import prepare
from scoring.request import parse_score_request
from settings.engine import EngineSettings
from tests.model import engines, references
from tests.model.checkpoints import EVERY
from tests.model.engines import PLATFORM, DType
from tests.model.geometries import LABELS, SHORT_ITEM, STEP, VOCABULARY, Group, Item, groups, several_groups
from tests.model.references.gates import FLOAT32_LOGPROBS, assert_bfloat16
from tests.scoring.generous_limits import GENEROUS
from tests.scoring.tokenizing.tokenizers_under_test import qwen2

SETTINGS: dict[Algorithm, dict[str, Any]] = {
    Algorithm.SERIAL: {"multi_item_algorithm": "serial"},
    Algorithm.PREFILL_EXTEND: {"multi_item_algorithm": "prefill_extend"},
    Algorithm.PACKED_SEGMENT: {"multi_item_algorithm": "packed", "multi_item_mask_impl": "segment"},
    Algorithm.PACKED_DENSE: {"multi_item_algorithm": "packed", "multi_item_mask_impl": "dense"},
}
BIT_EXACT = (Algorithm.SERIAL, Algorithm.PREFILL_EXTEND)
SHARING = (Algorithm.PREFILL_EXTEND, Algorithm.PACKED_SEGMENT, Algorithm.PACKED_DENSE)
"""Serial scoring is compared with HuggingFace in tests/model/references/test_huggingface_references.py."""
PACKED = (Algorithm.PACKED_SEGMENT, Algorithm.PACKED_DENSE)
MODELS = ("untied", "llama3 scaled", "gemma2", "gemma3", "qwen3 moe", "gpt-oss")
EVERY_KIND = (
    ("untied", "float32"),
    pytest.param("untied", "bfloat16", marks=pytest.mark.slow),
    pytest.param("llama3 scaled", "float32", marks=pytest.mark.matrix),
)
"""Qwen3- and Llama-shaped, both dtypes."""
ROUNDING = 2e-5
"""Largest difference of float32 log-probabilities between algorithms, and with other rows in a packed sequence."""

Loaded = Callable[[str, DType, Algorithm], Engine]
each_model = pytest.mark.parametrize(
    "model", [MODELS[0], *(pytest.param(model, marks=pytest.mark.matrix) for model in MODELS[1:])]
)
each_kind = pytest.mark.parametrize(("model", "dtype"), EVERY_KIND)
each_dtype = pytest.mark.parametrize(("model", "dtype"), EVERY_KIND[:2])
quickly = settings(max_examples=4)


@pytest.fixture(scope="module")
def engine(checkpoint: Callable[[str], Path]) -> Loaded:
    @cache
    def loaded(model: str, dtype: DType, algorithm: Algorithm) -> Engine:
        return engines.load(checkpoint(model), dtype, step_tokens=STEP, **SETTINGS[algorithm])

    return loaded


def logprobs(engine: Engine, work: Sequence[Group]) -> list[np.ndarray]:
    """Log-probabilities [items, labels] of each group, float32."""
    found = engines.score(engine, [group.work(f"group {n}", n) for n, group in enumerate(work)])
    return [engines.logprobs_of(found[n]) for n in range(len(work))]


@pytest.mark.slow  # the next test is the quick one
@pytest.mark.parametrize(
    "model", [*MODELS[:1], *(pytest.param(model, marks=pytest.mark.matrix) for model in MODELS[1:])]
)
@quickly
@given(work=several_groups)
def test_every_algorithm_gives_the_same_float32_scores(model: str, engine: Loaded, work: list[Group]) -> None:
    found = {algorithm: np.concatenate(logprobs(engine(model, "float32", algorithm), work)) for algorithm in Algorithm}
    for algorithm in Algorithm:
        np.testing.assert_allclose(found[algorithm], found[Algorithm.SERIAL], rtol=0, atol=ROUNDING)
    scores = {algorithm: softmax(values, axis=1) for algorithm, values in found.items()}
    segment = scores[Algorithm.PACKED_SEGMENT]
    np.testing.assert_allclose(segment, scores[Algorithm.PACKED_DENSE], rtol=0, atol=1e-6)
    np.testing.assert_allclose(segment, scores[Algorithm.PREFILL_EXTEND], rtol=0, atol=1e-5)


@pytest.mark.parametrize("algorithm", SHARING)
@pytest.mark.parametrize(
    "cut", ["seven from the end", pytest.param("one from the end", marks=pytest.mark.matrix), "at the end"]
)
@each_model
def test_float32_logprobs_are_huggingfaces(model: str, cut: str, algorithm: Algorithm, engine: Loaded) -> None:
    rows = rows_of(model)
    found = engines.logprobs(engine(model, "float32", algorithm), rows, CUTS[cut])
    assert np.abs(found - reference(model, rows, "float32")).max() <= FLOAT32_LOGPROBS


@pytest.mark.parametrize(
    ("model", "algorithm"),
    [
        (MODELS[0], Algorithm.PREFILL_EXTEND),
        *(pytest.param(MODELS[0], algorithm, marks=pytest.mark.slow) for algorithm in PACKED),
        *(pytest.param(model, Algorithm.PREFILL_EXTEND, marks=pytest.mark.matrix) for model in MODELS[1:]),
    ],
)
def test_bfloat16_scores_are_as_close_as_huggingfaces_own(model: str, algorithm: Algorithm, engine: Loaded) -> None:
    rows = rows_of(model)
    found = engines.logprobs(engine(model, "bfloat16", algorithm), rows, CUTS["seven from the end"])
    assert_bfloat16(found, reference(model, rows, "float32"), reference(model, rows, "bfloat16"), LABELS)


CUTS: dict[str, Callable[[int], int]] = {
    "seven from the end": lambda length: max(1, length - 7),
    "one from the end": lambda length: max(1, length - 1),
    "at the end": lambda length: length,
}
FEW = 300
"""Tokens of the longest reference that is used here: some reach into a second block of a prefix."""


def rows_of(model: str) -> list[np.ndarray]:
    return [row for row in references.rows(model) if len(row) <= FEW]


def reference(model: str, rows: list[np.ndarray], dtype: DType) -> np.ndarray:
    kept = [n for n, row in enumerate(references.rows(model)) if len(row) <= FEW]
    assert len(kept) == len(rows)
    found: np.ndarray = getattr(references.read(model), dtype)[kept]
    return found


@pytest.mark.parametrize(
    "algorithm", [PACKED[0], *(pytest.param(algorithm, marks=pytest.mark.matrix) for algorithm in SHARING[::2])]
)
def test_the_size_of_tiles_is_no_part_of_the_scores(algorithm: Algorithm, checkpoint: Callable[[str], Path]) -> None:
    """This is also how a platform gets an attention of its own."""
    decoder, _ = weights.load(checkpoint("untied"), EVERY["untied"], "float32")
    card = ModelCard("small", EVERY["untied"].context, VOCABULARY, "no tokenizer")
    mask = SETTINGS[algorithm].get("multi_item_mask_impl", "auto")
    asked = EngineSettings.model_validate({"dtype": "float32", "step_tokens": STEP, "multi_item_mask_impl": mask})
    wanted: AlgorithmSetting = SETTINGS[algorithm]["multi_item_algorithm"]
    random = np.random.RandomState(5)
    prefix, rows = random.randint(0, VOCABULARY, 40), [random.randint(0, VOCABULARY, n) for n in (12, 11, 0, 30)]
    group = Group(tuple(prefix.tolist()), tuple(Item(tuple(row.tolist())) for row in rows))
    small = TiledAttention(one_tile=4, query_block=8, key_block=8)
    found, expected = (
        logprobs(Engine(decoder, asked, card, "", PLATFORM, wanted, attention), [group])[0]
        for attention in (small, TiledAttention())
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)
    assert not np.array_equal(found, expected) or algorithm is Algorithm.PACKED_DENSE


class OtherRows:
    """The ways in which the rows around a group's first item can change."""

    @staticmethod
    def permuted(group: Group) -> list[Group]:
        return [group.with_items((*group.items[1:], group.items[0]))]

    @staticmethod
    def added(group: Group) -> list[Group]:
        return [
            group.with_items(
                (*group.items, Item((5, 6, 7)), Item(()), Item(tuple(range(SHORT_ITEM))), Item(tuple(range(STEP + 3))))
            )
        ]

    @staticmethod
    def removed(group: Group) -> list[Group]:
        return [group.with_items(group.items[:1])]

    @staticmethod
    def lengthened(group: Group) -> list[Group]:
        longer = [Item((*item.tokens, 1), item.short_by) for item in group.items[1:]]
        return [group.with_items((group.items[0], *longer))]

    @staticmethod
    def among_other_groups(group: Group) -> list[Group]:
        other = Group(tuple(range(30)), (Item((1, 2, 3)), Item(())))
        return [other, group, Group(group.prefix[:1], group.items)]


CHANGES = ("permuted", "added", "removed", "lengthened", "among_other_groups")


def first_item(engine: Engine, group: Group, change: str) -> np.ndarray:
    """The first item's log-probabilities after a change of the other rows."""
    changed: list[Group] = getattr(OtherRows, change)(group)
    place = 1 if change == "among_other_groups" else 0
    found = logprobs(engine, changed)[place]
    of_first: np.ndarray = found[-1] if change == "permuted" else found[0]
    return of_first


@pytest.mark.parametrize("algorithm", BIT_EXACT)
@each_kind
@quickly
@given(group=groups)
def test_other_rows_do_not_change_a_bit(
    model: str, dtype: DType, algorithm: Algorithm, engine: Loaded, group: Group
) -> None:
    scoring = engine(model, dtype, algorithm)
    alone = logprobs(scoring, [group])[0][0]
    for change in CHANGES:
        assert np.array_equal(first_item(scoring, group, change).view(np.int32), alone.view(np.int32)), change


@pytest.mark.parametrize("algorithm", [PACKED[0], pytest.param(PACKED[1], marks=pytest.mark.matrix)])
@each_model
@quickly
@given(group=groups)
def test_other_rows_of_a_packed_sequence_change_no_more_than_rounding(
    model: str, algorithm: Algorithm, engine: Loaded, group: Group
) -> None:
    scoring = engine(model, "float32", algorithm)
    alone = logprobs(scoring, [group])[0][0]
    for change in CHANGES:
        np.testing.assert_allclose(first_item(scoring, group, change), alone, rtol=0, atol=ROUNDING, err_msg=change)


@pytest.mark.parametrize("algorithm", Algorithm)
@each_kind
@quickly
@given(group=groups)
def test_another_items_content_does_not_change_a_bit(
    model: str, dtype: DType, algorithm: Algorithm, engine: Loaded, group: Group
) -> None:
    def other(item: Item) -> Item:
        return Item(tuple((token * 7 + 3) % VOCABULARY for token in item.tokens), item.short_by)

    scoring = engine(model, dtype, algorithm)
    before = logprobs(scoring, [group])[0][0]
    after = logprobs(scoring, [group.with_items((group.items[0], *map(other, group.items[1:])))])[0][0]
    assert np.array_equal(before.view(np.int32), after.view(np.int32))


@pytest.mark.parametrize(
    "algorithm", [*BIT_EXACT, *(pytest.param(packed, marks=pytest.mark.matrix) for packed in PACKED)]
)
@each_dtype
@quickly
@given(work=several_groups)
def test_scoring_again_gives_the_same_bits(
    model: str, dtype: DType, algorithm: Algorithm, engine: Loaded, work: list[Group]
) -> None:
    scoring = engine(model, dtype, algorithm)
    one, other = (np.concatenate(logprobs(scoring, work)).view(np.int32) for _ in range(2))
    assert np.array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Algorithm.SERIAL, Algorithm.PREFILL_EXTEND])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.matrix)])
def test_any_number_of_rows_gives_the_same_bits(
    dtype: DType, algorithm: Algorithm, checkpoint: Callable[[str], Path]
) -> None:
    """Steps of every size, full, nearly empty and in between."""
    scoring = engines.load(checkpoint("untied"), dtype, step_tokens=256, **SETTINGS[algorithm])
    random = np.random.RandomState(0)
    for length in (1, 9, 30):
        rows = [Item(tuple(random.randint(0, VOCABULARY, length).tolist())) for _ in range(18)]
        group = Group(tuple(range(12)), tuple(rows))
        everybody = logprobs(scoring, [group])[0]
        for count in (*range(1, 9), 13, 17):
            some = logprobs(scoring, [group.with_items(rows[:count])])[0]
            assert np.array_equal(some.view(np.int32), everybody[:count].view(np.int32)), (length, count)


@each_kind
def test_a_cached_prefix_gives_the_bits_of_a_fresh_one(
    model: str, dtype: DType, checkpoint: Callable[[str], Path]
) -> None:
    random = np.random.RandomState(1)
    group = Group(tuple(random.randint(0, VOCABULARY, 300).tolist()), (Item((1, 2, 3)), Item(()), Item((4,), 2)))
    work = [group.work("group", 0)]
    caching, forgetting = (
        engines.load(
            checkpoint(model),
            dtype,
            step_tokens=STEP,
            enable_scoring_cache=caches,
            **SETTINGS[Algorithm.PREFILL_EXTEND],
        )
        for caches in (True, False)
    )
    fresh, cached, without = (scored_once(engine, work) for engine in (caching, caching, forgetting))
    again = scored_once(forgetting, work)
    assert [found.cached_tokens for found in (fresh, cached, without, again)] == [598, 898, 598, 598]
    for found in (cached, without, again):
        assert np.array_equal(found.scores.logits.view(np.int32), fresh.scores.logits.view(np.int32))


def scored_once(engine: Engine, work: list[GroupWork]) -> ScoredChunk:
    (found,) = engine.score(work, lambda: None)
    return found


@pytest.mark.parametrize("algorithm", Algorithm)
def test_delimiter_zero_stands_between_query_and_every_item(algorithm: Algorithm, engine: Loaded) -> None:
    """RFC-008: scores are those of ``query ++ delimiter ++ item``; id 0 is a delimiter like any other."""
    tokenizer = qwen2()
    card = ModelCard("small", 1024, VOCABULARY, tokenizer.fingerprint, delimiter=0)
    query, items_ = [5, 6, 7], [[1, 2], [], [9]]
    request = parse_score_request({"query": query, "items": items_, "label_token_ids": list(LABELS)})
    prepared = prepare(request, card, tokenizer, replace(GENEROUS, chunk_tokens=1000, chunk_items=10))
    (chunk,) = prepared.chunks
    work = GroupWork("group", prepared.prefix, (ChunkWork(0, chunk.rows, LABELS, Head.LOGPROBS),))
    found = engines.logprobs_of(engines.score(engine("untied", "float32", algorithm), [work])[0])
    whole = [np.array([*query, 0, *item], np.int32) for item in items_]
    expected = engines.logprobs(engine("untied", "float32", Algorithm.SERIAL), whole)[:, LABELS]
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)
