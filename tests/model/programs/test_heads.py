"""The programs of heads."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
from flax import nnx

from model.architecture.projections import Norm
from model.buckets import HEAD_ROWS, LABEL_BUCKETS
from model.programs.label_head import lm_head
from model.programs.target_head import target_head
from scoring.layout import Head
from tests.model.checkpoints import EVERY
from tests.model.engines import PLATFORM

compiled = partial(jax.jit, compiler_options=dict(PLATFORM.compiler_options))
"""Compile a function as workers do, whose options could change bits."""


@pytest.mark.parametrize("vocabulary", [90, 256, 300])
def test_columns_that_are_read_by_tiles_are_those_that_are_gathered(vocabulary: int) -> None:
    """A vocabulary of less than a tile, of whole tiles, and of tiles and a part of one."""
    random, config = np.random.RandomState(0), EVERY["untied"]
    norm = nnx.graphdef(Norm(config.width, (), config, "float32"))
    shapes = (config.width,), (config.width, vocabulary), (5, config.width)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    labels = np.array([0, vocabulary - 1, 88, vocabulary - 2, 89, 88], np.int32)
    gathered, by_tiles = (
        compiled(lm_head(Head.LOGITS, norm, as_rows=False, by_tiles=wanted))(*arrays, labels)[0]
        for wanted in (False, True)
    )
    np.testing.assert_allclose(by_tiles, gathered, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("labels", LABEL_BUCKETS)
def test_a_softmax_has_the_bits_that_it_has_without_its_label_mass(labels: int) -> None:
    """The logits come from a product with the labels' columns alone, and the mass from that with all."""
    random, config = np.random.default_rng(0), EVERY["untied"]
    norm, kernel = np.ones(config.width, np.float32), random.standard_normal((config.width, 300), np.float32)
    hidden = random.standard_normal((HEAD_ROWS, config.width), np.float32)
    ids = random.integers(0, 300, labels, np.int32)
    graph = nnx.graphdef(Norm(config.width, (), config, "float32"))
    logits, logprobs = compiled(lm_head(Head.LOGITS, graph, as_rows=False))(norm, kernel, hidden, ids)
    own = compiled(lm_head(Head.LOGPROBS, graph, as_rows=False))(norm, kernel[:, ids], hidden, np.arange(labels))[0]
    assert np.asarray(logits).tobytes() == np.asarray(own).tobytes()
    whole = compiled(lm_head(Head.LOGPROBS, graph, as_rows=False))(norm, kernel, hidden, ids)[1]
    assert np.asarray(logprobs).tobytes() == np.asarray(whole).tobytes()


@pytest.mark.parametrize(
    ("width", "vocabulary", "dtype"),
    [
        (96, 300, "float32"),
        pytest.param(1_024, 32_768, "float32", marks=pytest.mark.matrix),
        pytest.param(1_024, 32_768, "bfloat16", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("as_rows", [False, True])
def test_a_target_has_the_bits_that_it_has_as_a_label(as_rows: bool, width: int, vocabulary: int, dtype: str) -> None:
    """Whatever the number of labels, which are padded to one of three sizes."""
    random = np.random.default_rng(0)
    norm = nnx.graphdef(Norm(width, (), EVERY["untied"], "float32"))
    shape = (vocabulary, width) if as_rows else (width, vocabulary)
    kernel = random.standard_normal(shape, np.float32).astype(dtype)
    hidden = random.standard_normal((HEAD_ROWS, width), np.float32)
    arrays = np.ones(width, np.float32), jax.numpy.asarray(kernel), hidden
    labels = random.integers(0, vocabulary, max(LABEL_BUCKETS), np.int32)
    by_labels = compiled(lm_head(Head.LOGPROBS, norm, as_rows=as_rows))
    expected = np.asarray(by_labels(*arrays, labels[: LABEL_BUCKETS[0]])[1])
    by_targets = compiled(target_head(norm, as_rows=as_rows))
    for count in LABEL_BUCKETS:
        targets = np.tile(labels[:count], (HEAD_ROWS, 1))
        found, greedy = map(np.asarray, by_targets(*arrays, targets))
        assert np.array_equal(found[:, : len(expected[0])].view(np.int32), expected.view(np.int32)), count
        default = np.asarray(by_labels(*arrays, labels[:count])[1])
        assert np.array_equal(found.view(np.int32), default.view(np.int32)), count
        assert not greedy[found < found.max(axis=1, keepdims=True)].any()


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.matrix)])
@pytest.mark.parametrize(("width", "vocabulary"), [(96, 300), pytest.param(1_024, 32_768, marks=pytest.mark.slow)])
def test_the_most_probable_token_changes_no_bit_of_the_other_scores(width: int, vocabulary: int, dtype: str) -> None:
    """Its own log-probability has the bits that it has as a label, or as a target. Of two such tokens, one is named."""
    random = np.random.default_rng(0)
    norm = nnx.graphdef(Norm(width, (), EVERY["untied"], "float32"))
    kernel = random.standard_normal((width, vocabulary), np.float32)
    kernel[:, vocabulary - 2] = kernel[:, 5] = 3 * kernel[:, 5]
    hidden = random.standard_normal((HEAD_ROWS, width), np.float32)
    arrays = np.ones(width, np.float32), jax.numpy.asarray(kernel.astype(dtype)), hidden
    every = np.arange(min(vocabulary, 4_096), dtype=np.int32)
    for head in Head:
        plain, with_top = (
            list(map(np.asarray, compiled(lm_head(head, norm, as_rows=False, top=top))(*arrays, every)))
            for top in (False, True)
        )
        assert [one.tobytes() for one in with_top[:2]] == [one.tobytes() for one in plain]
    labels = np.tile(np.arange(300, dtype=np.int32), (HEAD_ROWS, 1))
    plain, with_top = (
        list(map(np.asarray, compiled(target_head(norm, as_rows=False, top=top))(*arrays, labels)))
        for top in (False, True)
    )
    assert [one.tobytes() for one in with_top[:2]] == [one.tobytes() for one in plain]
    ids, logprobs = with_top[2:]
    by_target = np.asarray(compiled(target_head(norm, as_rows=False))(*arrays, ids)[0])
    assert logprobs.tobytes() == by_target.tobytes()
    assert set(np.flatnonzero(plain[1].all(axis=0)).tolist()) <= {5}
    assert (ids != vocabulary - 2).all(), "of equally probable tokens, the lowest id is named"
    assert (ids == 5).any()
    of_labels = np.asarray(compiled(lm_head(Head.LOGPROBS, norm, as_rows=False, top=True))(*arrays, every[:8])[2])
    assert of_labels.tobytes() == logprobs.tobytes()
