"""Workloads, and the operations that are necessary to score them."""

import numpy as np
import pytest

from benchmarks.shapes import SHAPES
from benchmarks.workloads import WORKLOADS, batches
from model.architecture.config import DecoderConfig
from model.architecture.rope import Rope
from tools.tpu.workloads import Group, Workload, alike

SMALL = DecoderConfig(
    vocabulary=97,
    width=10,
    layers=3,
    query_heads=6,
    kv_heads=2,
    head_dim=4,
    mlp_width=14,
    context=64,
    rope=Rope(1e4),
    norm_epsilon=1e-6,
    tied=False,
)


def counted(workload: Workload, config: DecoderConfig) -> int:
    """Operations, one product of matrices after another, for every token and every pair of tokens."""
    queries, keys = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
    layer = [(config.width, queries), (config.width, keys), (config.width, keys), (queries, config.width)]
    layer += [(config.width, config.mlp_width)] * 2 + [(config.mlp_width, config.width)]
    flop = 0
    for group in workload.groups:
        seen = list(range(1, group.query + 1))
        for length in group.items:
            seen += range(group.query + 1, group.query + length + 1)
            flop += 2 * config.width * config.vocabulary
        for keys_seen in seen:
            for _ in range(config.layers):
                flop += sum(2 * rows * columns for rows, columns in layer)
                score_and_sum = 2 * config.head_dim + 2 * config.head_dim
                flop += sum(score_and_sum for _ in range(config.query_heads) for _ in range(keys_seen))
    return flop


@pytest.mark.parametrize(
    "workload",
    [
        alike(7, 3, 2),
        alike(5, 1, 0),
        Workload((Group(4, (1, 0, 5, 2)),)),
        Workload((Group(3, (0,)), Group(6, (0,)), Group(1, (4, 4)))),
    ],
    ids=str,
)
def test_necessary_operations_are_those_counted_one_by_one(workload: Workload) -> None:
    assert workload.necessary_flop(SMALL).total == counted(workload, SMALL)


def test_an_empty_item_adds_a_row_of_the_head_and_nothing_else() -> None:
    one, two = (Workload((Group(9, items),)).necessary_flop(SMALL) for items in ((3,), (3, 0)))
    assert (one.linear, one.attention) == (two.linear, two.attention)
    assert two.head == 2 * one.head


def test_the_operations_of_the_target_are_those_worked_out_by_hand() -> None:
    flop = WORKLOADS["target"].necessary_flop(SHAPES["qwen3-0.6b"])
    assert flop.linear == pytest.approx(1.06e13, rel=0.01)
    assert flop.attention == pytest.approx(4.6e12 + 4.6e11 + 2e10, rel=0.02)
    assert flop.head == pytest.approx(1.6e11, rel=0.04)


def test_named_workloads_have_the_sizes_in_their_names() -> None:
    assert {name: str(workload) for name, workload in WORKLOADS.items()} == {
        "target": "2000 x (500 of 20)",
        "300x10x20": "300 x (10 of 20)",
        "300x100x20": "300 x (100 of 20)",
        "100x10x100": "100 x (10 of 100)",
        "8000x100x20": "8000 x (100 of 20)",
        "2000x5000x20": "2000 x (5000 of 20)",
        "ragged": "2000 x (200 of 1 to 200)",
        "reranking": "1000 times 300 x (1 of 0)",
        "few_shot": "20 times 1600 x (4 of 20), 1500 in common",
    }


def test_the_first_items_bring_the_queries_that_they_need() -> None:
    workload = Workload((Group(4, (1, 2, 3)), Group(5, (4,)), Group(6, (5,))))
    assert workload.first(4) == Workload((Group(4, (1, 2, 3)), Group(5, (4,))))
    assert workload.first(2) == Workload((Group(4, (1, 2)),))
    assert workload.first(100) == workload
    assert str(WORKLOADS["reranking"].first(7)) == "7 times 300 x (1 of 0)"


def test_the_engine_is_given_the_lengths_of_the_workload_and_different_queries() -> None:
    workload = Workload((Group(8, (2, 0)), Group(8, (5,))))
    work = workload.work(97)
    assert [len(group.prefix) for group in work] == [8, 8]
    assert not np.array_equal(work[0].prefix, work[1].prefix)
    assert [group.chunks[0].rows.lengths.tolist() for group in work] == [[2, 0], [5]]
    assert all((group.chunks[0].rows.prefix_ends == 8).all() for group in work)


def test_batches_hold_every_item_that_is_not_empty_within_the_limits() -> None:
    lengths = [5, 0, 1, 9, 3, 3, 30]
    found = list(batches(lengths, most=3, tokens=40, behind=10))
    assert sorted(n for batch in found for n in batch) == [0, 2, 3, 4, 5, 6]
    for batch in found:
        assert len(batch) <= 3
        assert len(batch) == 1 or len(batch) * (10 + max(lengths[n] for n in batch)) <= 40
