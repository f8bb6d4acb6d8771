"""Planted bugs, of the kinds that shared prefixes and packed sequences invite, exceed the algorithms' tolerance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax import Array

from model.attention.contract import AttentionOutput, PrefixBlocks
from model.attention.tiles import TiledAttention
from model.engine import Engine
from model.forward import Extension
from model.layerwise import self_attention
from model.layerwise.steps import Step
from model.packed_sequence import PackedSequence
from model.rows import Row
from model.running import extending
from scoring.layout import TokenIds
from scoring.planning.algorithms import AlgorithmSetting
from tests.model import engines
from tests.model.geometries import Group, Item

pytestmark = pytest.mark.usefixtures("unchecked_programs")
ROUNDING = 2e-5
NAME = "llama3 scaled"
RANDOM = np.random.RandomState(2)
GROUP = Group(
    tuple(RANDOM.randint(0, 90, 300).tolist()),
    tuple(Item(tuple(RANDOM.randint(0, 90, length).tolist())) for length in (5, 0, 8, 20, 40)),
)
"""Its prefix takes two blocks, the second in part; items of two length_buckets share a step."""


@pytest.fixture
def differs(checkpoint: Callable[[str], Path]) -> Callable[[AlgorithmSetting], bool]:
    """Whether an algorithm differs from serial scoring by more than fifty times the tolerance."""

    def scores(algorithm: AlgorithmSetting) -> np.ndarray:
        engine: Engine = engines.load(checkpoint(NAME), "float32", step_tokens=64, multi_item_algorithm=algorithm)
        return engines.logprobs_of(engines.score(engine, [GROUP.work("group", 0)])[0])

    def differ(algorithm: AlgorithmSetting) -> bool:
        return bool(np.abs(scores(algorithm) - scores("serial")).max() > 50 * ROUNDING)

    return differ


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["prefill_extend", "packed"])
def test_without_a_bug_nothing_differs(
    algorithm: AlgorithmSetting, differs: Callable[[AlgorithmSetting], bool]
) -> None:
    assert not differs(algorithm)


def test_an_item_that_sees_its_neighbours_last_token_is_noticed(
    differs: Callable[[AlgorithmSetting], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    put = PackedSequence._add

    def leaking(
        self: PackedSequence, tokens: TokenIds, position: int, prefix_range: tuple[int, int], begin: int
    ) -> None:
        put(self, tokens, position, prefix_range, max(0, begin - 1) if position else begin)

    monkeypatch.setattr(PackedSequence, "_add", leaking)
    assert differs("packed")


@pytest.mark.slow
def test_tokens_taken_for_those_of_another_length_bucket_are_noticed(
    differs: Callable[[AlgorithmSetting], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out = Step.of

    def confused(*arguments: Any) -> Step:
        step = lay_out(*arguments)
        return replace(
            step, self_attention=tuple(replace(own, slots=np.maximum(own.slots, 0)) for own in step.self_attention)
        )

    monkeypatch.setattr(Step, "of", confused)
    assert differs("prefill_extend")


@pytest.mark.slow
def test_an_item_that_begins_one_position_late_is_noticed(
    differs: Callable[[AlgorithmSetting], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    put = PackedSequence._add

    def late(self: PackedSequence, tokens: TokenIds, position: int, prefix_range: tuple[int, int], begin: int) -> None:
        put(self, tokens, position + 1 if position else 0, prefix_range, begin)

    monkeypatch.setattr(PackedSequence, "_add", late)
    assert differs("packed")


@pytest.mark.slow
def test_an_empty_item_scored_at_its_predecessor_is_noticed(
    differs: Callable[[AlgorithmSetting], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_row = PackedSequence.add_row

    def misread(self: PackedSequence, row: Row, prefix_begin: int) -> None:
        add_row(self, row, prefix_begin)
        self.logit_positions[-1] = self.length - 1

    monkeypatch.setattr(PackedSequence, "add_row", misread)
    assert differs("packed")


@pytest.mark.slow
def test_an_extension_without_the_prefixs_last_token_is_noticed(
    differs: Callable[[AlgorithmSetting], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    extension = extending._extension

    def short(*arguments: Any, **named: Any) -> Extension:
        found = extension(*arguments, **named)
        return replace(found, start=found.start - 1)

    monkeypatch.setattr(extending, "_extension", short)
    assert differs("prefill_extend")


@pytest.mark.slow
def test_prefix_blocks_in_the_wrong_order_are_noticed(
    differs: Callable[[AlgorithmSetting], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    attend_prefix = TiledAttention.attend_prefix

    def swapped(self: TiledAttention, queries: Array, prefix: PrefixBlocks, ends: Array) -> AttentionOutput:
        table = prefix.table.at[:2].set(prefix.table[:2][::-1])
        return attend_prefix(self, queries, prefix._replace(table=table), ends)

    monkeypatch.setattr(TiledAttention, "attend_prefix", swapped)
    assert differs("prefill_extend")


def test_attention_merged_without_weights_is_noticed(
    differs: Callable[[AlgorithmSetting], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def halves(one: AttentionOutput, other: AttentionOutput) -> AttentionOutput:
        return AttentionOutput((one.out + other.out) / 2, one.log_sum_exp)

    monkeypatch.setattr(self_attention, "merge", halves)
    assert differs("prefill_extend")
