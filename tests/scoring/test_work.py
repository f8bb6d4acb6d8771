"""What scoring takes, in tokens."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.shapes import QWEN3_06B
from benchmarks.workloads import Group, Workload
from scoring.layout import ChunkWork, GroupWork, Head, Rows
from scoring.work import ATTENTION_TOKENS, prefill_work, rows_work, work, work_done


def group(prefix: int, *chunks: int, item: int = 20) -> GroupWork:
    """Chunks of so many items behind a prefix."""
    works = (
        ChunkWork(n, Rows.pack([[1] * item] * items, [prefix] * items), (0,), Head.LOGPROBS)
        for n, items in enumerate(chunks)
    )
    return GroupWork("group", np.ones(prefix, np.int32), tuple(works))


@pytest.mark.parametrize("asked", [(2_000, 500, 20), (300, 100, 20), (16_000, 200, 60), (50, 400, 30)], ids=str)
def test_it_is_in_proportion_to_the_operations_of_the_model_that_it_was_set_by(asked: tuple[int, int, int]) -> None:
    prefix, items, length = asked
    flop = Workload((Group(prefix, (length,) * items),)).necessary_flop(QWEN3_06B)
    expected = (flop.linear + flop.attention) / (2 * 440e6)
    assert work_done([group(prefix, items, item=length)], {0: 0}) == pytest.approx(expected, rel=0.02)


def test_a_token_that_looks_back_at_a_long_prefix_counts_for_more() -> None:
    assert work(0.0, 20.0) == 20.0
    assert work(float(ATTENTION_TOKENS), 20.0) == 40.0
    assert rows_work(Rows.pack([[1] * 20] * 3, [0, ATTENTION_TOKENS, 2 * ATTENTION_TOKENS])) == 20 + 40 + 60


def test_an_empty_item_is_not_nothing() -> None:
    assert rows_work(Rows.pack([[], []], [5, 5])) == 2


def test_a_prefix_counts_once_and_not_at_all_where_it_was_there() -> None:
    chunks = rows_work(group(1_000, 3).chunks[0].rows) + rows_work(group(1_000, 2).chunks[0].rows)
    one = group(1_000, 3, 2)
    assert work_done([one], {0: 2_000, 1: 2_000}) == chunks + prefill_work(1_000)
    assert work_done([one], {0: 3_000, 1: 2_000}) == chunks
