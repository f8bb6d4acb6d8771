"""Packed sequences: what each token sees, by brute force, and how sequences are filled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.packed_sequence import Packed, pack
from model.score_buffer import Row, Sheet
from scoring.layout import TokenIds
from tests.model.geometries import Group, Item, several_groups

LONGEST = 1_500


def rows_of(groups: list[Group]) -> list[tuple[TokenIds, list[Row]]]:
    found = []
    for n, group in enumerate(groups):
        work = group.work(f"group {n}", n)
        sheet = Sheet.blank(work.chunks[0])
        rows = work.chunks[0].rows
        ends = rows.prefix_ends.tolist()
        found.append((work.prefix, [Row(rows.row(i), end, sheet, i) for i, end in enumerate(ends)]))
    return found


def packed(groups: list[Group], longest: int = LONGEST, most_rows: int = 100) -> list[Packed]:
    return list(pack(rows_of(groups), longest, most_rows))


@given(groups=several_groups)
def test_every_row_reads_off_a_token_that_sees_its_prefix_and_its_own_tokens_and_nothing_else(
    groups: list[Group],
) -> None:
    for sequence in packed(groups):
        tokens, positions, ranges, places = sequence.arrays(LONGEST, 100)
        for row, place in zip(sequence.rows, places.tolist(), strict=False):
            seen = [k for begin, end in ranges[place] for k in range(begin, end)]
            prefix = np.array(groups[row.sheet.chunk.id].prefix, np.int32)[: row.prefix_end]
            whole = np.concatenate([prefix, row.tokens])
            assert len(set(seen)) == len(seen)
            assert tokens[seen].tolist() == whole.tolist()
            assert positions[seen].tolist() == list(range(len(whole)))
            for k in seen:  # and so does each of these: attention is causal at every layer below
                deeper = [deep for begin, end in ranges[k] for deep in range(begin, end)]
                assert positions[deeper].tolist() == list(range(positions[k] + 1))
                assert set(deeper) <= set(seen)


@given(groups=several_groups, longest=st.integers(270, 900), most_rows=st.integers(1, 8))
def test_every_row_is_packed_once_in_order_within_the_limits(groups: list[Group], longest: int, most_rows: int) -> None:
    sequences = packed(groups, longest, most_rows)
    found = [(row.sheet.chunk.id, row.index) for sequence in sequences for row in sequence.rows]
    assert found == [(n, i) for n, group in enumerate(groups) for i in range(len(group.items))]
    assert all(sequence.length <= longest and len(sequence.rows) <= most_rows for sequence in sequences)


@given(groups=several_groups)
def test_a_prefix_is_shared_by_all_rows_behind_it_but_the_first(groups: list[Group]) -> None:
    sequences = packed(groups, longest=10_000)
    assert len(sequences) == 1
    sheets = {row.sheet.chunk.id: row.sheet for row in sequences[0].rows}
    for n, sheet in sheets.items():
        assert sheet.cached_tokens == sum(sheet.chunk.rows.prefix_ends[1:].tolist()), groups[n]


def test_padding_sees_nothing() -> None:
    (sequence,) = packed([Group((1, 2, 3), ())]) or [Packed()]
    sequence.put_prefix(np.array([1, 2, 3], np.int32))
    _, _, ranges, places = sequence.arrays(8, 4)
    assert not ranges[3:].any()
    assert not places.any()


@pytest.mark.parametrize("limit", ["tokens", "rows"])
def test_a_prefix_is_repeated_where_its_rows_go_on(limit: str) -> None:
    group = Group((1, 2, 3, 4), tuple(Item((n, n)) for n in range(5)))
    sequences = packed([group], longest=8) if limit == "tokens" else packed([group], most_rows=2)
    assert [len(sequence.rows) for sequence in sequences] == [2, 2, 1]
    assert [sequence.tokens[0].tolist() for sequence in sequences] == [[1, 2, 3, 4]] * 3
