"""Which programs there are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.buckets import LABELS, ROW_FLOOR, SHORTEST_PACKED, Buckets, OwnKey, PackedKey, Span, packed_reads
from scoring.layout import Head

BUCKETS = Buckets.of(256)
STEPS = (64, 128, 256, 2048)


def test_steps_double_from_the_row_floor_and_spans_from_the_shortest() -> None:
    assert BUCKETS.sizes == (64, 128, 256)
    assert [span.length for span in BUCKETS.spans] == [8, 16, 32, 64, 128, 256]
    assert Buckets.of(64).sizes == (64,)
    assert Buckets.of(2048, one_size=True).sizes == (2048,)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_no_larger_than_its_tokens_need(step: int) -> None:
    buckets = Buckets.of(step)
    for tokens in range(1, step + 1):
        size = buckets.size(tokens)
        assert tokens <= size
        assert size == ROW_FLOOR or size < 2 * tokens


@pytest.mark.parametrize("step", STEPS)
def test_an_item_has_one_span_and_a_step_has_room_for_all_items_of_a_span_that_fit(step: int) -> None:
    buckets = Buckets.of(step)
    for tokens in range(1, step + 1):
        span = buckets.span(tokens)
        assert tokens <= span.length
        assert span.length == 8 or span.length < 2 * tokens
        assert span.rows == buckets.reads or span.rows >= step // tokens


@given(tokens=st.integers(1, 8192), reads=st.integers(1, 1024), longest=st.sampled_from([100, 1000, 8192]))
def test_a_packed_sequence_has_programs_that_hold_it(tokens: int, reads: int, longest: int) -> None:
    tokens, reads = min(tokens, longest), min(reads, packed_reads(longest))
    size, room = BUCKETS.packed(tokens, longest, reads)
    assert tokens <= size <= max(longest, SHORTEST_PACKED)
    assert reads <= room
    assert size <= max(1.25 * max(tokens, 8 * reads), SHORTEST_PACKED)


def test_any_number_of_labels_has_a_bucket() -> None:
    assert [BUCKETS.head(Head.LOGITS, n).labels for n in (1, 8, 9, 256, 257, 1025)] == [8, 8, 64, 256, 512, 2048]


@pytest.mark.parametrize("one_size", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_the_core_scores_anything_that_has_few_labels(step: int, one_size: bool) -> None:
    buckets = Buckets.of(step, one_size=one_size)
    core = buckets.core(blocks=7)
    assert len(set(core)) == len(core)
    assert {OwnKey(span.length, span.rows, last) for span in buckets.spans for last in (False, True)} <= set(core)
    assert {buckets.head(head, labels) for head in Head for labels in range(1, LABELS[0] + 1)} <= set(core)
    assert not any(isinstance(key, PackedKey) for key in core)
    rest = buckets.rest(blocks=7)
    assert not set(core) & set(rest)
    assert all(buckets._of_size(size, 7)[0] in {*core, *rest} for size in buckets.sizes)


def test_the_whole_table_is_small() -> None:
    assert len(BUCKETS.core(8)) == 25
    assert len(BUCKETS.rest(8)) == 9
    assert BUCKETS.spans[0] == Span(8, 64)
