"""PackedSequence sequences: what each token sees, by brute force, and how sequences are filled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.architecture.windows import Window
from model.packed_sequence import PackedSequence, pack_sequences
from model.rows import Row
from model.score_buffer import ScoreBuffer
from scoring.layout import TokenIds
from tests.model.geometries import Group, Item, several_groups
from tests.packed_rows import own_tokens

LONGEST = 1_500


def rows_of(groups: list[Group]) -> list[tuple[TokenIds, list[Row]]]:
    found = []
    for n, group in enumerate(groups):
        work = group.work(f"group {n}", n)
        buffer = ScoreBuffer.of(work.chunks[0])
        rows = work.chunks[0].rows
        pairs = zip(own_tokens(rows), rows.prefix_ends.tolist(), strict=True)
        found.append((work.prefix, [Row(own, end, buffer, np.array([i])) for i, (own, end) in enumerate(pairs)]))
    return found


def packed(groups: list[Group], longest: int = LONGEST, max_rows: int = 100) -> list[PackedSequence]:
    return list(pack_sequences(rows_of(groups), longest, max_rows))


@given(groups=several_groups)
def test_every_row_is_scored_at_a_token_that_sees_its_prefix_and_its_own_tokens_alone(
    groups: list[Group],
) -> None:
    for sequence in packed(groups):
        tokens, positions, ranges, places = sequence.arrays(LONGEST, 100)
        for row, place in zip(sequence.rows, places.tolist(), strict=False):
            seen = [k for begin, end in ranges[place] for k in range(begin, end)]
            prefix = np.array(groups[row.buffer.chunk.id].prefix, np.int32)[: row.begin]
            whole = np.concatenate([prefix, row.tokens])
            assert len(set(seen)) == len(seen)
            assert tokens[seen].tolist() == whole.tolist()
            assert positions[seen].tolist() == list(range(len(whole)))
            for k in seen:  # and so does each of these: attention is causal at every layer below
                deeper = [deep for begin, end in ranges[k] for deep in range(begin, end)]
                assert positions[deeper].tolist() == list(range(positions[k] + 1))
                assert set(deeper) <= set(seen)


@given(groups=several_groups, size=st.integers(1, 40))
def test_a_window_leaves_the_last_of_the_tokens_that_each_sees(groups: list[Group], size: int) -> None:
    for sequence in packed(groups):
        _, positions, ranges, within, _ = sequence.arrays(LONGEST, 100, Window(size, (True,)))
        for place in range(sequence.length):
            seen = [k for begin, end in ranges[place] for k in range(begin, end)]
            near = [k for begin, end in within[place] for k in range(begin, end)]
            assert near == [k for k in seen if positions[place] - positions[k] < size]
        assert not within[sequence.length :].any()


@given(groups=several_groups, longest=st.integers(270, 900), max_rows=st.integers(1, 8))
def test_every_row_is_packed_once_in_order_within_the_limits(groups: list[Group], longest: int, max_rows: int) -> None:
    sequences = packed(groups, longest, max_rows)
    found = [(row.buffer.chunk.id, int(row.places[0])) for sequence in sequences for row in sequence.rows]
    assert found == [(n, i) for n, group in enumerate(groups) for i in range(len(group.items))]
    assert all(sequence.length <= longest and len(sequence.rows) <= max_rows for sequence in sequences)


@given(groups=several_groups)
def test_a_prefix_is_shared_by_all_rows_behind_it_but_the_first(groups: list[Group]) -> None:
    sequences = packed(groups, longest=10_000)
    assert len(sequences) == 1
    buffers = {row.buffer.chunk.id: row.buffer for row in sequences[0].rows}
    for n, buffer in buffers.items():
        assert buffer.cached_tokens == sum(buffer.chunk.rows.prefix_ends[1:].tolist()), groups[n]


def test_padding_sees_nothing() -> None:
    (sequence,) = packed([Group((1, 2, 3), ())]) or [PackedSequence()]
    sequence.add_prefix(np.array([1, 2, 3], np.int32))
    _, _, ranges, places = sequence.arrays(8, 4)
    assert not ranges[3:].any()
    assert not places.any()


@pytest.mark.parametrize("limit", ["tokens", "rows"])
def test_a_prefix_is_repeated_where_its_rows_go_on(limit: str) -> None:
    group = Group((1, 2, 3, 4), tuple(Item((n, n)) for n in range(5)))
    sequences = packed([group], longest=8) if limit == "tokens" else packed([group], max_rows=2)
    assert [len(sequence.rows) for sequence in sequences] == [2, 2, 1]
    assert [sequence.tokens[0].tolist() for sequence in sequences] == [[1, 2, 3, 4]] * 3
