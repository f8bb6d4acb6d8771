"""The measure of work, in tokens."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.shapes import QWEN3_06B
from scoring.layout import ChunkWork, Continuations, GroupWork, Head, Rows
from scoring.planning.folds import ATTENTION_TOKENS, work
from scoring.work import SHORTEST_SHARED, chunk_of, work_of_each_row, work_of_group, work_of_prefix
from tests.work_done import work_done
from tools.tpu.workloads import Group, Workload


def work_of(rows: Rows, continuations: Continuations | None = None) -> int:
    return chunk_of(0, rows, continuations).work


def group(prefix: int, *chunks: int, item: int = 20) -> GroupWork:
    """Return a group with one chunk for each number of items."""
    works = (
        ChunkWork(n, Rows.pack([[1] * item] * items, [prefix] * items), (0,), Head.LOGPROBS)
        for n, items in enumerate(chunks)
    )
    return GroupWork("group", np.ones(prefix, np.int32), tuple(works))


@pytest.mark.parametrize("asked", [(2_000, 500, 20), (300, 100, 20), (16_000, 200, 60), (64, 400, 30)], ids=str)
def test_work_is_proportional_to_the_operations_of_qwen3_0_6b(asked: tuple[int, int, int]) -> None:
    prefix, items, length = asked
    flop = Workload((Group(prefix, (length,) * items),)).necessary_flop(QWEN3_06B)
    expected = (flop.linear + flop.attention) / (2 * 440e6)
    assert work_done([group(prefix, items, item=length)], {0: 0}) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("query", "items", "length"), [(50, 400, 30), (63, 1, 5), (1, 9, 10)])
def test_a_query_that_is_too_short_to_be_shared_counts_with_each_item(query: int, items: int, length: int) -> None:
    """Workers compute it with each item: see :func:`scoring.planning.algorithms.choose`."""
    one = group(query, items, item=length)
    flop = Workload((Group(0, (query + length,) * items),)).necessary_flop(QWEN3_06B)
    price = work_of_group(query, [chunk_of(0, chunk.rows) for chunk in one.chunks])
    assert price == work_done([one], {0: 0}) == items * (query + length)
    assert price == pytest.approx((flop.linear + flop.attention) / (2 * 440e6), rel=0.03)


def test_a_query_is_shared_from_a_number_of_tokens_on() -> None:
    assert (work_of_prefix(SHORTEST_SHARED - 1), work_of_prefix(SHORTEST_SHARED)) == (0, 65)
    rows = Rows.pack([[1] * 10, []] * 2, [SHORTEST_SHARED - 1] * 2 + [SHORTEST_SHARED] * 2)
    behind = work(float(SHORTEST_SHARED), 1.0)
    assert work_of_each_row(rows, None, SHORTEST_SHARED) == pytest.approx([73, 63, 10 * behind, 1])


def test_a_token_behind_a_long_prefix_counts_as_more_work() -> None:
    assert work(0.0, 20.0) == 20.0
    assert work(float(ATTENTION_TOKENS), 20.0) == 40.0
    assert work_of(Rows.pack([[1] * 20] * 3, [0, ATTENTION_TOKENS, 2 * ATTENTION_TOKENS])) == 20 + 40 + 60


def test_an_empty_item_counts_as_one_token() -> None:
    assert work_of(Rows.pack([[], []], [70, 70])) == 2


def test_a_prefix_counts_once_or_not_at_all_if_it_was_cached() -> None:
    chunks = sum(work_of(group(1_000, rows).chunks[0].rows) for rows in (3, 2))
    one = group(1_000, 3, 2)
    assert work_done([one], {0: 2_000, 1: 2_000}) == chunks + work_of_prefix(1_000)
    assert work_done([one], {0: 3_000, 1: 2_000}) == chunks


def test_a_beginning_that_was_cached_counts_for_nothing() -> None:
    one = group(1_000, 3, 2)
    chunks = sum(work_of(chunk.rows) for chunk in one.chunks)
    assert work_done([one], {0: 2_600, 1: 2_000}) == chunks + work_of_prefix(1_000) - work_of_prefix(600)


def test_the_price_of_a_job_includes_its_query_once() -> None:
    chunks = [chunk_of(0, chunk.rows) for chunk in group(1_000, 3, 2).chunks]
    assert work_of_group(1_000, chunks) == work_of_prefix(1_000) + sum(chunk.work for chunk in chunks)
    assert work_of_group(1_000, []) == 0


def test_targets_of_short_items_count_with_the_item() -> None:
    rows = Rows.pack([[1] * 20], [0])
    of_one_token = Continuations.pack([[1], [2]], [20, 20])
    assert work_of(rows, of_one_token) == work_of(rows) == 20
    assert work_of(rows, Continuations.pack([[1] * 5], [20])) == 24
    assert work_of(rows, Continuations.pack([[1] * 5] * 4, [20] * 4)) == 20 + 4 * 4


def test_a_likelihood_counts_the_tokens_that_are_computed_for_it() -> None:
    rows = Rows.pack([[], []], [64, 64])
    behind = work(64.0, 20.0)
    assert work_of(rows, Continuations.pack([[1] * 21, []], [64, 64])) == round(behind + 1)


def test_a_likelihood_behind_a_short_query_counts_the_query_with_each_item() -> None:
    rows = Rows.pack([[], []], [10, 10])
    assert work_of(rows, Continuations.pack([[1] * 21, [1] * 31], [10, 10])) == 10 + 20 + 10 + 30


def test_a_label_that_merges_with_a_lone_item_counts_what_it_is_read_behind() -> None:
    """It is read at the end of a branch, and there is no row besides."""
    rows = Rows.pack([[1] * 9], [14])
    assert work_of(rows, Continuations.pack([[1]], [22])) == 22
