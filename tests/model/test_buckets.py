"""Which programs there are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.buckets import LABELS, BodyKey, Buckets, HeadKey
from scoring.layout import Head

BUCKETS = Buckets.of(40_960, 256)


@given(tokens=st.integers(1, 40_960))
def test_every_length_has_a_program_that_holds_it_with_little_padding(tokens: int) -> None:
    key = BUCKETS.body(tokens)
    assert tokens <= key.length
    assert key.length <= max(32, 2 * tokens) if tokens <= 64 else key.length < 1.5 * tokens + 1


@given(one=st.integers(1, 40_960), other=st.integers(1, 40_960))
def test_a_length_has_one_row_count(one: int, other: int) -> None:
    first, second = BUCKETS.body(one), BUCKETS.body(other)
    assert first == second or first.length != second.length


@pytest.mark.parametrize("step_tokens", [1, 32, 256, 2048])
def test_a_step_has_at_least_one_row_and_no_more_tokens_than_asked(step_tokens: int) -> None:
    buckets = Buckets.of(2048, step_tokens)
    for length in buckets.lengths:
        key = buckets.body(length)
        assert key.rows == 1 or key.rows * key.length <= step_tokens


def test_lengths_reach_the_context_and_stop_there() -> None:
    assert Buckets.of(1024, 256).lengths == (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
    assert Buckets.of(1000, 256).lengths[-1] == 1024
    assert Buckets.of(20, 256).lengths == (32,)


def test_any_number_of_labels_has_a_bucket() -> None:
    assert [BUCKETS.head(Head.LOGITS, n).labels for n in (1, 8, 9, 256, 257, 1025)] == [8, 8, 64, 256, 512, 2048]


def test_the_warm_set_is_small_and_covers_short_sequences() -> None:
    warm = BUCKETS.warm_set()
    assert len(warm) == 8
    assert all(BUCKETS.body(tokens) in warm for tokens in range(1, 257))
    assert all(BUCKETS.head(head, labels) in warm for head in Head for labels in range(1, LABELS[0] + 1))
    assert {type(key) for key in warm} == {BodyKey, HeadKey}
