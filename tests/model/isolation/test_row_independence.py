"""A row's bits depend on its own tokens alone, not on its place, on other rows, or on the cut of the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model.engine import Engine
from scoring.layout import ChunkWork, GroupWork, Head
from tests.model import engines
from tests.model.checkpoints import CONFIGS, EVERY, sequences, tensors, write
from tests.model.engines import chunk, score

LABELS = (3, 17, 41)
OTHER_LABELS = (5, 6, 7, 8, 9, 10, 11, 12, 13)
LENGTHS = (1, 2, 8, 31, 32, 57, 64, 112)
NO_PREFIX = np.zeros(0, np.int32)
DEMONSTRATION = Path(__file__).parents[3] / "demonstration" / "model"
# The widths of Qwen3-0.6B: products this large take other paths than small ones.
WIDE = replace(
    CONFIGS["tied"], width=1024, layers=1, query_heads=16, kv_heads=8, head_dim=128, mlp_width=3072, vocabulary=512
)


@pytest.fixture(
    scope="module",
    params=[
        ("demonstration", "float32"),
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (("wide", "bfloat16"), ("qwen35", "float32"), ("gpt-oss", "float32"))
        ),
        *(
            pytest.param(each, marks=pytest.mark.matrix)
            for each in (
                ("demonstration", "bfloat16"),
                ("wide", "float32"),
                *((name, "float32") for name in ("gemma2", "gemma3", "qwen3 moe")),
                *((name, "bfloat16") for name in ("gemma2", "gemma3", "qwen35", "qwen35 moe", "qwen3 moe", "gpt-oss")),
            )
        ),
    ],
    ids="-".join,
)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, checkpoint: Callable[[str], Path]
) -> Engine:
    name, dtype = request.param
    if name == "demonstration":
        return engines.load(DEMONSTRATION, dtype)
    if name in EVERY:
        return engines.load(checkpoint(name), dtype)
    return engines.load(write(tmp_path_factory.mktemp("model"), WIDE, tensors(WIDE, seed=1)), dtype)


def bits(engine: Engine, rows: list[np.ndarray], head: Head = Head.LOGPROBS) -> np.ndarray:
    """The bits of the scores of one chunk of whole sequences by itself: int32 [outputs, N, M]."""
    return _bits(engine, [GroupWork("g", NO_PREFIX, (chunk(0, rows, 0, LABELS, head),))])


def _bits(engine: Engine, groups: list[GroupWork]) -> np.ndarray:
    found = score(engine, groups)[0]
    return np.stack([out for out in (found.logits, found.logprobs) if out is not None]).view(np.int32)


def of_vocabulary(engine: Engine, *chunks: ChunkWork) -> np.ndarray:
    """The log-probabilities of the most probable tokens of the first of these chunks: [N]."""
    found = score(engine, [GroupWork("g", NO_PREFIX, chunks)])[chunks[0].id].top_logprobs
    assert found is not None
    return found


def test_a_row_alone_has_the_bits_it_has_among_others(engine: Engine) -> None:
    rows = sequences(CONFIGS["untied"], 3, LENGTHS)
    together = bits(engine, rows)
    for n, row in enumerate(rows):
        assert np.array_equal(bits(engine, [row]), together[:, n : n + 1]), f"{len(row)} tokens"


@pytest.mark.parametrize("head", Head)
def test_the_most_probable_token_depends_on_its_row_alone_and_changes_nothing_else(head: Head, engine: Engine) -> None:
    rows = sequences(CONFIGS["untied"], 3, LENGTHS)
    wanted = chunk(0, rows, 0, LABELS, head, top=True)
    other = chunk(1, rows[::-1], 0, OTHER_LABELS, head, top=True)
    found = of_vocabulary(engine, wanted, other, chunk(2, rows, 0, LABELS, head))
    for n, row in enumerate(rows):
        alone = of_vocabulary(engine, chunk(0, [row], 0, LABELS, head, top=True))
        assert alone.tobytes() == found[n : n + 1].tobytes(), f"{len(row)} tokens"
    assert np.array_equal(_bits(engine, [GroupWork("g", NO_PREFIX, (wanted, other))]), bits(engine, rows, head))
    everything = score(engine, [GroupWork("g", NO_PREFIX, (chunk(0, rows, 0, range(engine.card.vocabulary)),))])[0]
    assert found.tobytes() == engines.logprobs_of(everything).max(axis=1).tobytes()


@pytest.mark.parametrize("head", Head)
def test_the_order_of_rows_does_not_change_a_bit(head: Head, engine: Engine) -> None:
    rows = sequences(CONFIGS["untied"], 4, tuple(np.random.RandomState(0).choice(LENGTHS[:7], 24)))
    order = np.random.RandomState(1).permutation(len(rows))
    shuffled = bits(engine, [rows[n] for n in order], head)
    assert np.array_equal(shuffled, bits(engine, rows, head)[:, order])


def test_rows_of_other_groups_in_a_step_do_not_change_a_bit(engine: Engine) -> None:
    rows = sequences(CONFIGS["untied"], 5, (3, 30, 60, 64))
    work = GroupWork("g", NO_PREFIX, (chunk(0, rows, 0, LABELS, Head.LOGPROBS),))
    others = [
        chunk(
            n,
            sequences(CONFIGS["untied"], 50 + n, (3, 32, 60)),
            0,
            (OTHER_LABELS, LABELS)[n % 2],
            list(Head)[n % 2],
        )
        for n in range(1, 8)
    ]
    groups = [GroupWork("a", NO_PREFIX, tuple(others[:4])), work, GroupWork("b", NO_PREFIX, tuple(others[4:]))]
    assert np.array_equal(_bits(engine, groups), _bits(engine, [work]))


def test_the_boundary_between_prefix_and_item_does_not_change_a_bit(engine: Engine) -> None:
    row = sequences(CONFIGS["untied"], 6, (60,))[0]
    whole = bits(engine, [row])
    for cut in (1, 20, 59, 60):
        work = chunk(0, [row[cut:]], cut, LABELS, Head.LOGPROBS)
        longer_prefix = np.concatenate([row[:cut], row[:5]])
        assert np.array_equal(_bits(engine, [GroupWork("g", longer_prefix, (work,))]), whole)


def test_another_rows_content_does_not_change_a_bit(engine: Engine) -> None:
    rows = sequences(CONFIGS["untied"], 7, (29, 32, 30))
    changed = [rows[0], sequences(CONFIGS["untied"], 8, (32,))[0], rows[2]]
    before, after = bits(engine, rows), bits(engine, changed)
    assert np.array_equal(before[:, [0, 2]], after[:, [0, 2]])
    assert not np.array_equal(before[:, 1], after[:, 1])


def test_scoring_again_gives_the_same_bits(engine: Engine) -> None:
    rows = sequences(CONFIGS["untied"], 9, LENGTHS)
    assert np.array_equal(bits(engine, rows), bits(engine, rows))


def test_items_that_fill_up_a_step_do_not_change_a_bit(engine: Engine) -> None:
    prefix, *items = sequences(CONFIGS["untied"], 10, (300, 1, 8, 9, 20, 40, 70, 100, 56, 130, 200))

    def behind(rows: list[np.ndarray]) -> np.ndarray:
        return _bits(engine, [GroupWork("g", prefix, (chunk(0, rows, len(prefix), LABELS, Head.LOGPROBS),))])

    alone_first = behind(items[:1])
    computed = engine.computed_tokens
    together = behind(items)
    assert engine.computed_tokens - computed <= 3 * 256, "more steps than necessary"
    assert np.array_equal(together[:, :1], alone_first)
    for n, item in enumerate(items):
        assert np.array_equal(behind([item]), together[:, n : n + 1]), f"{len(item)} tokens"
