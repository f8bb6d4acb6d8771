"""Packing rows and serialising them loses nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoring.layout import Continuations, LabelScores, Rows
from tests.packed_rows import own_tokens

TOKEN = st.integers(0, 2**31 - 1)
ROWS = st.lists(st.tuples(st.lists(TOKEN, max_size=6), TOKEN), max_size=12)


def pack(rows: list[tuple[list[int], int]]) -> Rows:
    return Rows.pack([tokens for tokens, _ in rows], [end for _, end in rows])


def unpack(rows: Rows) -> list[tuple[list[int], int]]:
    return [(own.tolist(), int(end)) for own, end in zip(own_tokens(rows), rows.prefix_ends, strict=True)]


@given(ROWS)
def test_packing_and_unpacking_gives_the_same_rows(rows: list[tuple[list[int], int]]) -> None:
    packed = pack(rows)
    assert unpack(packed) == rows
    assert len(packed) == len(rows)
    assert packed.tokens.dtype == packed.lengths.dtype == packed.prefix_ends.dtype == np.int32


@given(ROWS)
def test_rows_survive_serialisation(rows: list[tuple[list[int], int]]) -> None:
    data = pack(rows).to_bytes()
    assert unpack(Rows.from_bytes(data)) == rows
    assert Rows.from_bytes(data).to_bytes() == data


def test_rows_are_stored_as_little_endian_int32() -> None:
    """Every release must read the bytes that another one wrote."""
    data = Rows.pack([[1, 256], []], [7, 8]).to_bytes()
    assert data.hex(" ", 4) == "02000000 02000000 00000000 07000000 08000000 01000000 00010000"


@given(st.lists(ROWS, max_size=4))
def test_joined_rows_keep_their_order(parts: list[list[tuple[list[int], int]]]) -> None:
    joined = Rows.join([pack(part) for part in parts])
    assert unpack(joined) == [row for part in parts for row in part]


def test_sequence_lengths_count_the_prefix() -> None:
    assert Rows.pack([[1, 2], [], [3]], [5, 5, 0]).sequence_lengths.tolist() == [7, 5, 1]


@pytest.mark.parametrize(
    ("tokens", "lengths", "ends", "reason"), [([1], [1], [0, 0], "prefix ends"), ([1, 2], [1], [0], "lengths sum")]
)
def test_rows_with_inconsistent_lengths_are_refused(
    tokens: list[int], lengths: list[int], ends: list[int], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Rows(*(np.array(values, np.int32) for values in (tokens, lengths, ends)))


def test_damaged_bytes_are_refused() -> None:
    data = Rows.pack([[1, 2], [3]], [5, 5]).to_bytes()
    with pytest.raises(ValueError, match="lengths sum"):
        Rows.from_bytes(data[:-4])
    with pytest.raises(ValueError, match="multiple of element size"):
        Rows.from_bytes(data[:-1])


@pytest.mark.parametrize(
    ("logits", "logprobs", "row"),
    [
        ([0.0, -np.inf, 3e38], [0.0, -np.inf, -1.0], None),
        ([0.0, 1.0, np.nan], None, 2),
        ([0.0, np.inf, np.nan], None, 1),
        ([0.0, 1.0, 2.0], [-1.0, np.nan, -1.0], 1),
        ([np.nan, 1.0, 2.0], [-1.0, -1.0, np.inf], 0),
    ],
)
def test_the_first_row_with_an_impossible_score_is_found(
    logits: list[float], logprobs: list[float] | None, row: int | None
) -> None:
    def column(values: list[float]) -> np.ndarray:
        return np.array(values, np.float32)[:, None]

    assert LabelScores(column(logits), None if logprobs is None else column(logprobs)).impossible_row() == row


def test_no_rows_have_no_impossible_score() -> None:
    assert LabelScores(np.zeros((0, 2), np.float32), None).impossible_row() is None


CONTINUATION = st.tuples(st.lists(TOKEN, max_size=4), st.integers(1, 2**31 - 1), st.integers(1, 2**31 - 1))


def unpack_continuations(continuations: Continuations) -> list[tuple[list[int], int, int]]:
    ends = np.cumsum(continuations.lengths).tolist()
    starts = [0, *ends][: len(ends)]
    targets = [continuations.tokens[start:end].tolist() for start, end in zip(starts, ends, strict=True)]
    return list(zip(targets, continuations.kept.tolist(), continuations.divisors.tolist(), strict=True))


def pack_continuations(given: list[tuple[list[int], int, int]]) -> Continuations:
    return Continuations.pack(
        [targets for targets, _, _ in given], [kept for _, kept, _ in given], [divisor for _, _, divisor in given]
    )


@given(st.lists(CONTINUATION, max_size=8))
def test_continuations_survive_packing_and_serialisation(given: list[tuple[list[int], int, int]]) -> None:
    packed = pack_continuations(given)
    assert unpack_continuations(packed) == given
    assert unpack_continuations(Continuations.from_bytes(packed.to_bytes())) == given
    assert packed.tokens.dtype == packed.lengths.dtype == packed.kept.dtype == packed.divisors.dtype == np.int32


@given(st.integers(1, 3), st.data())
def test_the_continuations_of_some_rows_are_those_that_belong_to_them(labels: int, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.lists(CONTINUATION, min_size=labels, max_size=labels), min_size=1, max_size=5))
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    packed = pack_continuations([one for row in rows for one in row])
    before, inside, behind = (
        packed.of_rows(first, last, len(rows)) for first, last in ((0, start), (start, stop), (stop, len(rows)))
    )
    assert unpack_continuations(inside) == [one for row in rows[start:stop] for one in row]
    assert Continuations.join([before, inside, behind]).to_bytes() == packed.to_bytes()


def test_continuations_are_stored_as_little_endian_int32() -> None:
    """Every release must read the bytes that another one wrote."""
    data = Continuations.pack([[1, 256], []], [7, 8], [2, 1]).to_bytes()
    assert data.hex(" ", 4) == ("02000000 02000000 00000000 07000000 08000000 02000000 01000000 01000000 00010000")


@pytest.mark.parametrize(
    ("tokens", "lengths", "kept", "divisors", "reason"),
    [
        ([1], [1], [1, 1], [1], "numbers of kept tokens"),
        ([1], [1], [1], [1, 1], "2 divisors"),
        ([1, 2], [1], [1], [1], "lengths sum"),
        ([1], [1], [0], [1], "keeps no token"),
        ([1], [1], [1], [0], "less than 1"),
        ([], [1, -1], [1, 1], [1, 1], "negative length"),
    ],
)
def test_inconsistent_continuations_are_refused(
    tokens: list[int], lengths: list[int], kept: list[int], divisors: list[int], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Continuations(*(np.array(values, np.int32) for values in (tokens, lengths, kept, divisors)))
