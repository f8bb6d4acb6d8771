"""The other implementations that benchmarks time compute right scores."""

import numpy as np
import torch  # type: ignore[import-not-found,unused-ignore]

from benchmarks.checkpoint import random_tensors
from benchmarks.huggingface import HuggingFace
from benchmarks.shapes import SHAPES
from model.compiling.workloads import Group, Workload

BF16_NOISE = 1.0
"""Tolerance of log-probabilities around -40, where bf16 numbers are a quarter apart."""


def test_huggingface_scores_the_same_behind_a_cached_query_and_serially() -> None:
    config = SHAPES["demonstration"]
    tensors = random_tensors(config, seed=0)
    weights = {name: torch.tensor(tensor.astype(np.float32)) for name, tensor in tensors.items()}
    peer = HuggingFace("demonstration", weights)
    groups = Workload((Group(300, (20, 0, 3, 20, 40)), Group(90, (0,)), Group(50, (7, 7)))).sequences(config.vocabulary)
    serial = peer.serial(groups)
    assert serial.std(axis=0).min() > 2 * BF16_NOISE, "wrong scores would show"
    np.testing.assert_allclose(peer.cached(groups), serial, rtol=0, atol=BF16_NOISE)
