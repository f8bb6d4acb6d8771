"""Bugs of the kinds that shared prefixes and packed sequences invite, planted: the gates of the algorithms see each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax import Array

from model import engine as engine_module
from model import programs
from model.attention.contract import Attended, PrefixBlocks
from model.attention.tiles import TiledAttention
from model.engine import Engine
from model.packed_sequence import Packed
from model.score_buffer import Row
from model.steps import Extension, Step
from scoring.layout import TokenIds
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
"""Its prefix takes two blocks, the second in part; items of two spans share a step."""


@pytest.fixture
def differs(checkpoint: Callable[[str], Path]) -> Callable[[str], bool]:
    """Whether an algorithm, as it is now, is further from serial scoring than the gate allows: fifty times as far."""

    def scores(algorithm: str) -> np.ndarray:
        engine: Engine = engines.load(checkpoint(NAME), "float32", step_tokens=64, multi_item_algorithm=algorithm)
        return engines.logprobs_of(engines.score(engine, [GROUP.work("group", 0)])[0])

    def differ(algorithm: str) -> bool:
        return bool(np.abs(scores(algorithm) - scores("serial")).max() > 50 * ROUNDING)

    return differ


@pytest.mark.parametrize("algorithm", ["prefill_extend", "packed"])
def test_without_a_bug_nothing_differs(algorithm: str, differs: Callable[[str], bool]) -> None:
    assert not differs(algorithm)


def test_an_item_that_sees_its_neighbours_last_token(
    differs: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Packed._put

    def leaking(self: Packed, tokens: TokenIds, position: int, prefix_range: tuple[int, int], begin: int) -> None:
        put(self, tokens, position, prefix_range, max(0, begin - 1) if position else begin)

    monkeypatch.setattr(Packed, "_put", leaking)
    assert differs("packed")


def test_an_item_whose_tokens_are_taken_for_those_of_another_span(
    differs: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out = Step.of

    def confused(*arguments: Any) -> Step:
        step = lay_out(*arguments)
        return replace(step, own=tuple(replace(own, slots=np.maximum(own.slots, 0)) for own in step.own))

    monkeypatch.setattr(Step, "of", confused)
    assert differs("prefill_extend")


def test_an_item_that_begins_one_position_late(differs: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    put = Packed._put

    def late(self: Packed, tokens: TokenIds, position: int, prefix_range: tuple[int, int], begin: int) -> None:
        put(self, tokens, position + 1 if position else 0, prefix_range, begin)

    monkeypatch.setattr(Packed, "_put", late)
    assert differs("packed")


def test_an_empty_item_read_off_its_predecessor(
    differs: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_row = Packed.put_row

    def misread(self: Packed, row: Row, prefix_begin: int) -> None:
        put_row(self, row, prefix_begin)
        self.places[-1] = self.length - 1

    monkeypatch.setattr(Packed, "put_row", misread)
    assert differs("packed")


def test_an_extension_that_misses_the_prefixs_last_token(
    differs: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    extension = engine_module._extension

    def short(row: Row, prefix: TokenIds) -> Extension:
        found = extension(row, prefix)
        return replace(found, start=found.start - 1)

    monkeypatch.setattr(engine_module, "_extension", short)
    assert differs("prefill_extend")


def test_prefix_blocks_in_the_wrong_order(differs: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    attend_prefix = TiledAttention.attend_prefix

    def swapped(self: TiledAttention, queries: Array, prefix: PrefixBlocks, ends: Array) -> Attended:
        table = prefix.table.at[:2].set(prefix.table[:2][::-1])
        return attend_prefix(self, queries, prefix._replace(table=table), ends)

    monkeypatch.setattr(TiledAttention, "attend_prefix", swapped)
    assert differs("prefill_extend")


def test_two_parts_of_attention_added_without_their_weights(
    differs: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def halves(one: Attended, other: Attended) -> Attended:
        return Attended((one.out + other.out) / 2, one.log_sum_exp)

    monkeypatch.setattr(programs, "merge", halves)
    assert differs("prefill_extend")
