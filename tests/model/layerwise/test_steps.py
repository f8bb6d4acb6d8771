"""How items are laid out in steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.buckets import Buckets, LengthBucket
from model.forward import Extension
from model.layerwise.steps import SelfAttentionBatch, Step, filled
from tests.model.extensions import extensions, paths, shapes_with_tails, with_tails

BUCKETS = Buckets.of(256)
several = st.builds(
    Buckets.of, st.sampled_from([64, 256, 1024]), one_size=st.booleans(), max_rows=st.sampled_from([None, 1, 5])
)
some_lengths = st.lists(st.integers(1, 1024), min_size=1, max_size=40)


def steps(extensions: list[Extension], buckets: Buckets) -> Iterator[tuple[tuple[Extension, ...], Step]]:
    """What steps are filled with, and the steps."""
    return ((together, Step.of(together, buckets)) for together in filled(extensions, buckets))


def bucket_of(length: int, buckets: Buckets) -> LengthBucket:
    """The shortest bucket for an item."""
    return next(bucket for bucket in buckets.length_buckets if length <= bucket.length)


def items(own: SelfAttentionBatch, buckets: Buckets) -> Iterator[tuple[int, int, int]]:
    """Where in its step each item begins, its tokens, and its logit_index."""
    for start, length, logit_index in zip(
        own.places[:, 0].tolist(), own.lengths.tolist(), own.logit_indices.tolist(), strict=True
    ):
        if logit_index < buckets.step_tokens:
            yield start, length, logit_index


@given(lengths=some_lengths, buckets=several)
def test_every_extension_is_in_one_step_and_its_tokens_are_beside_one_another(
    lengths: list[int], buckets: Buckets
) -> None:
    asked = extensions([min(length, buckets.step_tokens) for length in lengths])
    laid_out = list(steps(asked, buckets))
    laid = [extension for together, _ in laid_out for extension in together]
    assert sorted(map(id, laid)) == sorted(map(id, asked))
    for together, step in laid_out:
        assert len(step.tokens) in buckets.step_sizes
        assert len(together) <= buckets.max_rows
        found = [item for batch in step.self_attention for item in items(batch, buckets)]
        assert sorted(logit_index for _, _, logit_index in found) == list(range(len(together)))
        for start, length, logit_index in found:
            extension = together[logit_index]
            assert np.array_equal(step.tokens[start : start + length], extension.tokens)
            assert np.array_equal(step.positions[start : start + length], extension.start + np.arange(length))
            assert (step.prefix_ends[start : start + length] == extension.start).all()
            assert step.logit_positions[logit_index] == start + length - 1


@given(lengths=some_lengths, buckets=several)
def test_every_token_has_a_slot_in_its_own_item_alone(lengths: list[int], buckets: Buckets) -> None:
    for _, step in steps(extensions([min(length, buckets.step_tokens) for length in lengths]), buckets):
        assert len({batch.bucket for batch in step.self_attention}) == len(step.self_attention)
        for batch in step.self_attention:
            expected = np.full(buckets.step_tokens, -1)
            for row, (start, length, _) in enumerate(items(batch, buckets)):
                assert bucket_of(length, buckets) == batch.bucket
                expected[start : start + length] = row * batch.bucket.length + np.arange(length)
            assert np.array_equal(batch.slots, expected)


@given(shapes=shapes_with_tails, buckets=several)
def test_a_tail_sees_what_it_continues_and_itself_alone(shapes: list[tuple[int, list[int]]], buckets: Buckets) -> None:
    asked = with_tails([shape for shape in shapes if shape[0] + sum(shape[1]) <= buckets.step_tokens])
    for together, step in steps(asked, buckets):
        own, taken = np.full(len(step.tokens), -1), list[list[tuple[int, int]]]()
        for batch in step.self_attention:
            assert len(batch.places) == batch.bucket.rows
            for row, (places, length) in enumerate(zip(batch.places, batch.lengths.tolist(), strict=True)):
                seen = places[:length]
                taken += [list(zip(step.tokens[seen].tolist(), step.positions[seen].tolist(), strict=True))] * bool(
                    length
                )
                assert not length or bucket_of(length, buckets) == batch.bucket
                slots = row * batch.bucket.length + np.arange(length)
                is_own = batch.slots[seen] == slots
                assert (own[seen[is_own]] == -1).all(), "a token has one slot"
                own[seen[is_own]] = 1
        assert (own == 1).sum() == sum(len(extension.tokens) for extension in together)
        assert sorted(taken) == sorted(path for extension in together for path in paths(extension))


def test_items_of_different_lengths_share_steps() -> None:
    uniform = np.random.default_rng(0).integers(1, 201, 200).tolist()
    computed = sum(len(step.tokens) for _, step in steps(extensions(uniform), BUCKETS))
    assert computed <= 1.03 * sum(uniform)


@pytest.mark.parametrize("length", [1, 20, 100, 256])
def test_items_of_one_length_keep_their_order(length: int) -> None:
    asked = extensions([length] * 30)
    assert [extension for together, _ in steps(asked, BUCKETS) for extension in together] == asked


def test_a_piece_of_a_prefix_is_a_step_of_its_own() -> None:
    (piece,) = extensions([200])
    step = Step.of([piece], BUCKETS)
    assert len(step.tokens) == 256
    assert [batch.bucket.length for batch in step.self_attention] == [256]
