"""Programs of whole steps give the scores of the programs by layer, and the same bits whatever else is in a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from model import weights
from model.config import DecoderConfig
from model.engine import Engine
from model.packed_sequence import pack_sequences
from model.score_buffer import Row, ScoreBuffer
from model.whole_steps.layout import Behind, Unfilled
from scoring.layout import GroupWork, Head, Rows
from tests.model import engines
from tests.model.checkpoints import EVERY, sequences
from tests.model.engines import DType, chunk
from tests.model.whole_steps.runs import SMALL, WholeSteps, items, table

FAMILIES = (
    "tied",
    pytest.param("untied", marks=pytest.mark.slow),
    pytest.param("qwen2 yarn", marks=pytest.mark.slow),
    pytest.param("llama3 scaled", marks=pytest.mark.slow),
    pytest.param("llama biased", marks=pytest.mark.slow),
    pytest.param("mistral wide heads", marks=pytest.mark.slow),
)
PREFIXES = (70, 33, 5, 128)
ITEMS = ((1, 2, 8, 31, 40, 3, 3, 9), (20,) * 9, (100, 7), (16, 5, 1))

Loaded = Callable[[str, DType], Engine]
Runs = Callable[..., WholeSteps]


@pytest.fixture(scope="module")
def whole_steps(checkpoint: Callable[[str], Path]) -> Runs:
    """Whole steps over a checkpoint, by its name and dtype. Tests share pools, and write what they read."""

    @cache
    def loaded(name: str, dtype: DType) -> WholeSteps:
        config = DecoderConfig.from_directory(checkpoint(name))
        return WholeSteps(weights.load(checkpoint(name), config, dtype)[0])

    return loaded


def prefixes(config: DecoderConfig) -> list[Unfilled]:
    """Prefixes whose blocks lie mixed up in the pool."""
    blocks = np.random.RandomState(0).permutation(SMALL.blocks - 1)
    found, used = [], 0
    for tokens in sequences(config, 1, PREFIXES):
        count = -(-len(tokens) // SMALL.block_tokens)
        found.append(Unfilled(tokens, table(blocks[used : used + count].tolist())))
        used += count
    return found


def work(config: DecoderConfig, found: list[Unfilled]) -> list[Behind]:
    """Items that see all of their prefix, or a token or two less."""
    return [
        Behind(
            prefix.table,
            items(sequences(config, 10 + n, lengths), [len(prefix.tokens) - i % 3 for i in range(len(lengths))]),
        )
        for n, (prefix, lengths) in enumerate(zip(found, ITEMS, strict=True))
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_prefill_and_extend_give_the_scores_of_programs_by_layer(name: str, engine: Loaded, whole_steps: Runs) -> None:
    config, whole = EVERY[name], whole_steps(name, "float32")
    filled = prefixes(config)
    by_layer = engine(name, "float32")
    states = whole.prefill(filled)
    np.testing.assert_allclose(
        whole.logprobs(states), engines.logprobs(by_layer, [prefix.tokens for prefix in filled]), atol=2e-5
    )
    for prefix, behind, hidden in zip(filled, work(config, filled), whole.extend(work(config, filled)), strict=True):
        rows = [item.tokens for item in behind.extensions]
        asked = chunk(0, rows, 0, range(config.vocabulary))
        asked = replace(asked, rows=Rows.pack(rows, [item.start for item in behind.extensions]))
        expected = engines.score(by_layer, [GroupWork("group", prefix.tokens, (asked,))])[0]
        np.testing.assert_allclose(whole.logprobs(hidden), engines.logprobs_of(expected), atol=2e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_sequences_have_the_scores_of_programs_by_layer(name: str, engine: Loaded, whole_steps: Runs) -> None:
    config, whole = EVERY[name], whole_steps(name, "float32")
    groups = []
    for n, (prefix, behind) in enumerate(zip(prefixes(config)[:3], work(config, prefixes(config)), strict=False)):
        buffer = ScoreBuffer.of(chunk(n, [item.tokens for item in behind.extensions], 0, (0,), Head.LOGITS))
        rows = [Row(item.tokens, item.start, buffer, i) for i, item in enumerate(behind.extensions)]
        groups.append((prefix.tokens, rows))
    (packed,) = pack_sequences(groups, 640, 64)
    found = whole.logprobs(whole.packed(*packed.arrays(640, 64)))
    for row, scores in zip(packed.rows, found, strict=False):
        tokens = np.concatenate([groups[row.buffer.chunk.id][0][: row.prefix_end], row.tokens])
        np.testing.assert_allclose(scores[None], engines.logprobs(engine(name, "float32"), [tokens]), atol=2e-5)


@pytest.fixture(params=["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def whole(request: pytest.FixtureRequest, whole_steps: Runs) -> WholeSteps:
    """Whole steps of the checkpoint whose heads are grouped and whose head is tied."""
    return whole_steps("tied", request.param)


TIED = EVERY["tied"]


def test_an_item_has_the_same_bits_alone_and_among_items_of_other_prefixes(whole: WholeSteps) -> None:
    filled = prefixes(TIED)
    whole.prefill(filled)
    asked = work(TIED, filled)
    together = whole.extend(asked)
    for one, states in zip(asked, together, strict=True):
        for item, state in zip(one.extensions, states, strict=True):
            (alone,) = whole.extend([Behind(one.table, [item])])
            assert np.array_equal(alone[0], state), f"{len(item.tokens)} tokens behind {item.start}"


def test_the_order_of_prefixes_and_items_does_not_change_a_bit(whole: WholeSteps) -> None:
    filled = prefixes(TIED)
    whole.prefill(filled)
    asked = work(TIED, filled)
    together = whole.extend(asked)
    for seed in range(3):
        random = np.random.RandomState(seed)
        orders = [random.permutation(len(one.extensions)) for one in asked]
        shuffled = [
            Behind(one.table, [one.extensions[n] for n in order]) for one, order in zip(asked, orders, strict=True)
        ]
        found = whole.extend(shuffled[::-1])[::-1]
        for states, order, expected in zip(found, orders, together, strict=True):
            assert np.array_equal(states, expected[order])


def test_items_of_other_lengths_and_other_content_do_not_change_a_bit(whole: WholeSteps) -> None:
    filled = prefixes(TIED)
    whole.prefill(filled)
    mine = work(TIED, filled)[0]
    (alone,) = whole.extend([mine])
    for seed, lengths in enumerate(((4,) * 20, (90,), (1,) * 31, (33, 17, 9, 5, 3, 2))):
        others = items(sequences(TIED, 50 + seed, lengths), [70] * len(lengths))
        (found,) = whole.extend([Behind(mine.table, [*others, *mine.extensions])])
        assert np.array_equal(found[len(others) :], alone)


def test_an_item_without_a_prefix_has_the_same_bits_beside_items_with_one(whole: WholeSteps) -> None:
    filled = prefixes(TIED)
    whole.prefill(filled)
    whole_rows = items(sequences(TIED, 7, (1, 30, 100, 64)), [0] * 4)
    (alone,) = whole.extend([Behind(table([]), whole_rows)])
    *_, found = whole.extend([*work(TIED, filled), Behind(table([]), whole_rows)])
    assert np.array_equal(found, alone)


def test_a_prefix_has_the_same_bits_alone_among_others_and_in_other_blocks(whole: WholeSteps) -> None:
    filled = prefixes(TIED)
    together = whole.prefill(filled)
    behind = whole.extend(work(TIED, filled))
    for prefix, state in zip(filled, together, strict=True):
        (alone,) = whole.prefill([Unfilled(prefix.tokens, table(list(range(SMALL.longest))))])
        assert np.array_equal(alone, state)
    elsewhere = [Unfilled(prefix.tokens, 14 - prefix.table) for prefix in filled]
    whole.prefill(elsewhere[::-1])
    for found, expected in zip(whole.extend(work(TIED, elsewhere)), behind, strict=True):
        assert np.array_equal(found, expected)


def test_a_prefix_that_goes_on_from_stored_blocks_has_the_same_bits(whole: WholeSteps) -> None:
    (tokens,) = sequences(TIED, 3, (200,))
    blocks = table([9, 2, 14, 1])
    (at_once,) = whole.prefill([Unfilled(tokens, blocks)])
    whole.prefill([Unfilled(tokens[:64], blocks)])
    (later,) = whole.prefill([Unfilled(tokens, blocks, done=64)])
    assert np.array_equal(at_once, later)


def test_a_boundary_between_prefix_and_item_changes_scores_by_rounding_alone(whole: WholeSteps) -> None:
    (tokens,) = sequences(TIED, 4, (100,))
    (expected,) = whole.prefill([Unfilled(tokens, table([0, 1, 2, 3]))])
    found = whole.extend([Behind(table([0, 1, 2, 3]), items([tokens[cut:]], [cut])) for cut in (1, 31, 32, 33, 99)])
    tolerance = 2e-5 if whole.decoder.head_kernel().dtype == np.float32 else 0.2
    for states in found:
        np.testing.assert_allclose(whole.logprobs(states)[0], whole.logprobs(expected[None])[0], atol=tolerance)
