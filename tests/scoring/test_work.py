"""The measure of work, in tokens."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.shapes import QWEN3_06B
from model.compiling.workloads import Group, Workload
from scoring.layout import Chunk, ChunkWork, Continuations, GroupWork, Head, Rows
from scoring.work import ATTENTION_TOKENS, work, work_done, work_of_chunk, work_of_group, work_of_prefix


def group(prefix: int, *chunks: int, item: int = 20) -> GroupWork:
    """Return a group with one chunk for each number of items."""
    works = (
        ChunkWork(n, Rows.pack([[1] * item] * items, [prefix] * items), (0,), Head.LOGPROBS)
        for n, items in enumerate(chunks)
    )
    return GroupWork("group", np.ones(prefix, np.int32), tuple(works))


@pytest.mark.parametrize("asked", [(2_000, 500, 20), (300, 100, 20), (16_000, 200, 60), (50, 400, 30)], ids=str)
def test_work_is_proportional_to_the_operations_of_qwen3_0_6b(asked: tuple[int, int, int]) -> None:
    prefix, items, length = asked
    flop = Workload((Group(prefix, (length,) * items),)).necessary_flop(QWEN3_06B)
    expected = (flop.linear + flop.attention) / (2 * 440e6)
    assert work_done([group(prefix, items, item=length)], {0: 0}) == pytest.approx(expected, rel=0.02)


def test_a_token_behind_a_long_prefix_counts_as_more_work() -> None:
    assert work(0.0, 20.0) == 20.0
    assert work(float(ATTENTION_TOKENS), 20.0) == 40.0
    assert (
        work_of_chunk(Chunk(0, Rows.pack([[1] * 20] * 3, [0, ATTENTION_TOKENS, 2 * ATTENTION_TOKENS]))) == 20 + 40 + 60
    )


def test_an_empty_item_counts_as_one_token() -> None:
    assert work_of_chunk(Chunk(0, Rows.pack([[], []], [5, 5]))) == 2


def test_a_prefix_counts_once_or_not_at_all_if_it_was_cached() -> None:
    chunks = work_of_chunk(group(1_000, 3).chunks[0]) + work_of_chunk(group(1_000, 2).chunks[0])
    one = group(1_000, 3, 2)
    assert work_done([one], {0: 2_000, 1: 2_000}) == chunks + work_of_prefix(1_000)
    assert work_done([one], {0: 3_000, 1: 2_000}) == chunks


def test_the_price_of_a_job_includes_its_query_once() -> None:
    chunks = group(1_000, 3, 2).chunks
    assert work_of_group(1_000, chunks) == work_of_prefix(1_000) + sum(map(work_of_chunk, chunks))
    assert work_of_group(1_000, []) == 0


def test_targets_of_short_items_count_with_the_item() -> None:
    rows = Rows.pack([[1] * 20], [0])
    of_one_token = Continuations.pack([[1], [2]], [20, 20])
    assert work_of_chunk(Chunk(0, rows, of_one_token)) == work_of_chunk(Chunk(0, rows)) == 20
    assert work_of_chunk(Chunk(0, rows, Continuations.pack([[1] * 5], [20]))) == 24
    assert work_of_chunk(Chunk(0, rows, Continuations.pack([[1] * 5] * 4, [20] * 4))) == 20 + 4 * 4


def test_a_likelihood_counts_the_tokens_that_are_computed_for_it() -> None:
    rows = Rows.pack([[], []], [10, 10])
    assert work_of_chunk(Chunk(0, rows, Continuations.pack([[1] * 21, []], [10, 10]))) == 21
