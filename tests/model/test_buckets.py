"""Which programs there are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.buckets import (
    LABELS,
    SHORTEST_PACKED,
    WARM_LENGTH,
    Buckets,
    HeadKey,
    PrefillKey,
    RowsKey,
    StoreKey,
    packed_reads,
)
from scoring.layout import Head

BUCKETS = Buckets.of(40_960, 256)


@given(tokens=st.integers(1, 40_960))
def test_every_length_has_a_program_that_holds_it_with_little_padding(tokens: int) -> None:
    key = BUCKETS.rows(tokens)
    assert tokens <= key.length
    assert key.length < tokens + 4 or key.length <= 1.25 * tokens


@given(one=st.integers(1, 40_960), other=st.integers(1, 40_960))
def test_a_length_has_one_row_count(one: int, other: int) -> None:
    first, second = BUCKETS.rows(one), BUCKETS.rows(other)
    assert first == second or first.length != second.length


@pytest.mark.parametrize("step_tokens", [1, 32, 256, 2048])
def test_a_step_has_at_least_one_row_and_no_more_tokens_than_asked(step_tokens: int) -> None:
    buckets = Buckets.of(2048, step_tokens)
    for length in buckets.lengths:
        key = buckets.rows(length)
        assert key.rows == 1 or key.rows * key.length <= step_tokens


def test_lengths_reach_the_context_and_stop_there() -> None:
    short = (4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)
    assert Buckets.of(64, 256).lengths == short
    assert Buckets.of(200, 256).lengths == (*short, 80, 96, 112, 128, 160, 192, 224)
    assert Buckets.of(3, 256).lengths == (4,)


@given(tokens=st.integers(1, 8192), reads=st.integers(1, 1024), longest=st.sampled_from([100, 1000, 8192]))
def test_a_packed_sequence_has_a_program_that_holds_it(tokens: int, reads: int, longest: int) -> None:
    tokens, reads = min(tokens, longest), min(reads, packed_reads(longest))
    key = BUCKETS.packed(tokens, longest, reads, dense=False)
    assert key.tokens >= tokens
    assert key.reads >= reads
    assert key.tokens <= max(longest, SHORTEST_PACKED)
    assert key.tokens <= max(1.25 * max(tokens, 8 * reads), SHORTEST_PACKED)


def test_any_number_of_labels_has_a_bucket() -> None:
    assert [BUCKETS.head(Head.LOGITS, n).labels for n in (1, 8, 9, 256, 257, 1025)] == [8, 8, 64, 256, 512, 2048]


def test_the_warm_set_covers_prefixes_short_rows_and_few_labels() -> None:
    warm = BUCKETS.warm_set()
    assert len(warm) == 24
    assert all(BUCKETS.rows(tokens) in warm for tokens in range(1, WARM_LENGTH + 1))
    assert all(BUCKETS.head(head, labels) in warm for head in Head for labels in range(1, LABELS[0] + 1))
    assert {type(key) for key in warm} == {RowsKey, PrefillKey, StoreKey, HeadKey}
