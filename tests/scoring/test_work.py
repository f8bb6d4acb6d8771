"""The measure of work, in tokens."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.shapes import QWEN3_06B
from model.compiling.workloads import Group, Workload
from scoring.layout import ChunkWork, GroupWork, Head, Rows
from scoring.work import ATTENTION_TOKENS, work, work_done, work_of_group, work_of_prefix, work_of_rows


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
    assert work_of_rows(Rows.pack([[1] * 20] * 3, [0, ATTENTION_TOKENS, 2 * ATTENTION_TOKENS])) == 20 + 40 + 60


def test_an_empty_item_counts_as_one_token() -> None:
    assert work_of_rows(Rows.pack([[], []], [5, 5])) == 2


def test_a_prefix_counts_once_or_not_at_all_if_it_was_cached() -> None:
    chunks = work_of_rows(group(1_000, 3).chunks[0].rows) + work_of_rows(group(1_000, 2).chunks[0].rows)
    one = group(1_000, 3, 2)
    assert work_done([one], {0: 2_000, 1: 2_000}) == chunks + work_of_prefix(1_000)
    assert work_done([one], {0: 3_000, 1: 2_000}) == chunks


def test_the_price_of_a_job_includes_its_query_once() -> None:
    one = group(1_000, 3, 2)
    rows = [chunk.rows for chunk in one.chunks]
    assert work_of_group(1_000, rows) == work_of_prefix(1_000) + sum(map(work_of_rows, rows))
    assert work_of_group(1_000, []) == 0
