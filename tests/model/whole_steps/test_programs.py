"""Programs of whole steps give the scores of the programs by layer, and the same bits whatever else is in a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from model.architecture import weights
from model.architecture.config import DecoderConfig
from model.engine import Engine
from model.forward import Extension
from model.packed_sequence import pack_sequences
from model.rows import Row
from model.score_buffer import ScoreBuffer
from model.whole_steps import decoder
from scoring.layout import ChunkWork, GroupWork, Head, Rows
from tests.model import engines
from tests.model.checkpoints import EVERY, sequences
from tests.model.engines import DType, chunk
from tests.model.references.gates import FLOAT32_LOGPROBS
from tests.model.whole_steps.runs import SMALL, Prefix, WholeSteps, table

FAMILIES = (
    "tied",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma2", "gemma3", "gpt-oss")),
    *(
        pytest.param(name, marks=pytest.mark.matrix)
        for name in ("untied", "mistral wide heads", "granite", "qwen2 yarn", "llama3 scaled", "llama biased")
    ),
    *(pytest.param(name, marks=pytest.mark.matrix) for name in ("olmo2 grouped", "phi4 mini", "olmo3", "qwen3 moe")),
)
RECURRENT = (
    "qwen35",
    *(pytest.param(name, marks=pytest.mark.matrix) for name in ("qwen35 in turn", "qwen35 moe", "qwen3 next")),
)
PREFIXES = (70, 33, 5, 128)
PACKED, READ = 640, 64
"""Tokens of a packed sequence, and those of them whose states are read."""
ITEMS = ((1, 2, 8, 31, 40, 3, 3, 9), (20,) * 9, (100, 7), (16, 5, 1))

Loaded = Callable[[str, DType], Engine]
Runs = Callable[..., WholeSteps]


@pytest.fixture(scope="module")
def engine(checkpoint: Callable[[str], Path]) -> Loaded:
    """Engines of programs by layer, in short steps, for which few programs are compiled."""

    @cache
    def loaded(name: str, dtype: DType) -> Engine:
        return engines.load(checkpoint(name), dtype, step_tokens=64)

    return loaded


@pytest.fixture(scope="module")
def whole_steps(checkpoint: Callable[[str], Path]) -> Runs:
    """Whole steps over a checkpoint, by its name and dtype. Tests share pools, and write what they read."""

    @cache
    def loaded(name: str, dtype: DType) -> WholeSteps:
        config = DecoderConfig.from_directory(checkpoint(name))
        return WholeSteps(weights.load(checkpoint(name), config, dtype)[0])

    return loaded


def prefixes(config: DecoderConfig) -> list[Prefix]:
    """Prefixes whose blocks lie mixed up in the pool."""
    blocks = np.random.RandomState(0).permutation(SMALL.blocks - 1)
    found, used = [], 0
    for tokens in sequences(config, 1, PREFIXES):
        count = -(-len(tokens) // SMALL.block_tokens)
        found.append(Prefix(tokens, table(blocks[used : used + count].tolist())))
        used += count
    return found


def items(config: DecoderConfig, found: list[Prefix]) -> list[list[Extension]]:
    """Items that see all of their prefix, or a token or two less, where no state is kept."""
    kinds = 3 if config.recurrence is None else 1
    return [
        prefix.items(sequences(config, 10 + n, lengths), [len(prefix.tokens) - i % kinds for i in range(len(lengths))])
        for n, (prefix, lengths) in enumerate(zip(found, ITEMS, strict=False))
    ]


@pytest.mark.parametrize("name", [*FAMILIES, *RECURRENT])
def test_prefill_and_extend_give_the_scores_of_programs_by_layer(name: str, engine: Loaded, whole_steps: Runs) -> None:
    config, whole = EVERY[name], whole_steps(name, "float32")
    filled = prefixes(config)
    by_layer = engine(name, "float32")
    states = whole.prefill(filled)
    expected = engines.logprobs(by_layer, [prefix.tokens for prefix in filled])
    # Either way may be so far from HuggingFace.
    close = 2e-5 if config.recurrence is None else 2 * FLOAT32_LOGPROBS
    np.testing.assert_allclose(whole.logprobs(states), expected, atol=close)
    asked = items(config, filled)
    found = whole.logprobs(whole.extend(list(chain(*asked))))
    for n, (prefix, of_prefix) in enumerate(zip(filled, asked, strict=True)):
        rows = Rows.pack([item.tokens for item in of_prefix], [item.start for item in of_prefix])
        work = ChunkWork(n, rows, tuple(range(config.vocabulary)), Head.LOGPROBS)
        scores = engines.score(by_layer, [GroupWork("group", prefix.tokens, (work,))])[n]
        np.testing.assert_allclose(found[: len(of_prefix)], engines.logprobs_of(scores), atol=close)
        found = found[len(of_prefix) :]


@pytest.mark.parametrize(
    # Without and with multipliers, windows, experts and sinks.
    "name",
    [
        "tied",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma2", "gemma3")),
        *(pytest.param(name, marks=pytest.mark.matrix) for name in ("granite", "gpt-oss", "qwen3 moe")),
    ],
)
def test_packed_sequences_have_the_scores_of_programs_by_layer(name: str, engine: Loaded, whole_steps: Runs) -> None:
    config, whole = EVERY[name], whole_steps(name, "float32")
    groups = []
    for n, (prefix, of_prefix) in enumerate(zip(prefixes(config)[:3], items(config, prefixes(config)), strict=False)):
        buffer = ScoreBuffer.of(chunk(n, [item.tokens for item in of_prefix], 0, (0,), Head.LOGITS))
        groups.append(
            (prefix.tokens, [Row(item.tokens, item.start, buffer, np.array([i])) for i, item in enumerate(of_prefix)])
        )
    (packed,) = pack_sequences(groups, PACKED, READ)
    found = whole.logprobs(whole.packed(*packed.arrays(PACKED, READ, config.window)))
    for row, scores in zip(packed.rows, found, strict=False):
        tokens = np.concatenate([groups[row.buffer.chunk.id][0][: row.begin], row.tokens])
        np.testing.assert_allclose(scores[None], engines.logprobs(engine(name, "float32"), [tokens]), atol=2e-5)


@pytest.fixture(
    params=[
        ("tied", "float32"),
        pytest.param(("tied", "bfloat16"), marks=pytest.mark.slow),
        ("qwen35", "float32"),
        pytest.param(("qwen35", "bfloat16"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def whole(request: pytest.FixtureRequest, whole_steps: Runs) -> WholeSteps:
    """Whole steps of a checkpoint whose heads are grouped and whose head is tied, and of one with recurrent layers."""
    name, dtype = request.param
    return whole_steps(name, dtype)


@pytest.fixture
def filled(whole: WholeSteps) -> list[Prefix]:
    """Prefixes that are in the pool."""
    found = prefixes(whole.decoder.config)
    whole.prefill(found)
    return found


@pytest.fixture
def asked(whole: WholeSteps, filled: list[Prefix]) -> list[Extension]:
    """Items of several prefixes, which take several steps."""
    return list(chain(*items(whole.decoder.config, filled)))


def test_an_item_has_the_same_bits_alone_and_among_items_of_other_prefixes(
    whole: WholeSteps, asked: list[Extension]
) -> None:
    for item, state in zip(asked, whole.extend(asked), strict=True):
        assert np.array_equal(whole.extend([item])[0], state), f"{len(item.tokens)} tokens behind {item.start}"


def test_the_order_of_prefixes_and_items_does_not_change_a_bit(whole: WholeSteps, asked: list[Extension]) -> None:
    expected = whole.extend(asked)
    for seed in range(3):
        order = np.random.RandomState(seed).permutation(len(asked))
        assert np.array_equal(whole.extend([asked[n] for n in order]), expected[order])


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 2e-5), pytest.param("bfloat16", 0.05, marks=pytest.mark.slow)]
)
def test_a_layer_that_computes_its_mlp_in_parts_has_the_same_states(
    dtype: DType, tolerance: float, whole_steps: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = whole_steps("tied", dtype)
    (tokens,) = sequences(whole.decoder.config, 5, (PACKED,))
    places = np.arange(PACKED, dtype=np.int32)
    ranges = np.stack([np.zeros((PACKED, 2), np.int32), np.stack([places * 0, places + 1], axis=1)], axis=1)
    read = places[:: PACKED // READ]
    expected = whole.packed(tokens, places, ranges, read)
    monkeypatch.setattr(decoder, "MLP_ROWS", 300)
    found = WholeSteps(whole.decoder).packed(tokens, places, ranges, read)
    np.testing.assert_allclose(whole.logprobs(found), whole.logprobs(expected), rtol=0, atol=tolerance)


def test_items_of_other_lengths_and_other_content_do_not_change_a_bit(whole: WholeSteps, filled: list[Prefix]) -> None:
    mine = items(whole.decoder.config, filled)[0]
    alone = whole.extend(mine)
    for seed, lengths in enumerate(((4,) * 20, (90,), (1,) * 31, (33, 17, 9, 5, 3, 2))):
        others = filled[0].items(sequences(whole.decoder.config, 50 + seed, lengths), [70] * len(lengths))
        assert np.array_equal(whole.extend([*others, *mine])[len(others) :], alone)


def test_an_item_without_a_prefix_has_the_same_bits_beside_items_with_one(
    whole: WholeSteps, asked: list[Extension]
) -> None:
    without = [Extension(row, 0) for row in sequences(whole.decoder.config, 7, (1, 30, 100, 64))]
    assert np.array_equal(whole.extend([*asked, *without])[len(asked) :], whole.extend(without))


def test_a_prefix_has_the_same_bits_alone_among_others_and_in_other_blocks(whole: WholeSteps) -> None:
    filled = prefixes(whole.decoder.config)
    together = whole.prefill(filled)
    behind = whole.extend(list(chain(*items(whole.decoder.config, filled))))
    for prefix, state in zip(filled, together, strict=True):
        (alone,) = whole.prefill([Prefix(prefix.tokens, table(list(range(SMALL.longest))))])
        assert np.array_equal(alone, state)
    elsewhere = [Prefix(prefix.tokens, SMALL.blocks - 2 - prefix.table) for prefix in filled]
    whole.prefill(elsewhere[::-1])
    assert np.array_equal(whole.extend(list(chain(*items(whole.decoder.config, elsewhere)))), behind)


def test_a_prefix_that_goes_on_from_stored_blocks_has_the_same_bits(whole: WholeSteps) -> None:
    (tokens,) = sequences(whole.decoder.config, 3, (200,))
    blocks = table([9, 2, 14, 1])
    (at_once,) = whole.prefill([Prefix(tokens, blocks)])
    whole.prefill([Prefix(tokens[:64], blocks)])
    (later,) = whole.prefill([Prefix(tokens, blocks, done=64)])
    assert np.array_equal(at_once, later)


def test_a_boundary_between_prefix_and_item_changes_scores_by_rounding_alone(whole: WholeSteps) -> None:
    (tokens,) = sequences(whole.decoder.config, 4, (100,))
    prefix = Prefix(tokens, table([0, 1]))
    (expected,) = whole.logprobs(whole.prefill([prefix]))
    cuts = (1, 31, 32, 33, 63, 64, 99) if whole.decoder.config.recurrence is None else (64,)
    tolerance = 2e-5 if whole.decoder.head_kernel().dtype == np.float32 else 0.2
    for found in whole.logprobs(whole.extend(prefix.items([tokens[cut:] for cut in cuts], cuts))):
        np.testing.assert_allclose(found, expected, atol=tolerance)
