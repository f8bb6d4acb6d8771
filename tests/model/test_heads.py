"""The programs of heads."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from flax import nnx

from model.architecture.decoder import Norm
from model.architecture.heads import lm_head
from scoring.layout import Head
from tests.model.checkpoints import EVERY


@pytest.mark.parametrize("vocabulary", [90, 256, 300])
def test_columns_that_are_read_by_tiles_are_those_that_are_gathered(vocabulary: int) -> None:
    """A vocabulary of less than a tile, of whole tiles, and of tiles and a part of one."""
    random, config = np.random.RandomState(0), EVERY["untied"]
    norm = nnx.graphdef(Norm(config.width, (), config, "float32"))
    shapes = (config.width,), (config.width, vocabulary), (5, config.width)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    labels = np.array([0, vocabulary - 1, 88, vocabulary - 2, 89, 88], np.int32)
    gathered, by_tiles = (
        jax.jit(lm_head(Head.LOGITS, norm, as_rows=False, by_tiles=wanted))(*arrays, labels)[0]
        for wanted in (False, True)
    )
    np.testing.assert_allclose(by_tiles, gathered, rtol=1e-5, atol=1e-5)
