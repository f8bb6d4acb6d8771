"""Whole steps with the TPU's kernels, interpreted on a CPU, give the scores of whole steps in plain XLA."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from model.architecture import weights
from model.architecture.config import DecoderConfig
from model.attention.tpu.attention import TPUAttention
from tests.model.whole_steps.runs import WholeSteps
from tests.model.whole_steps.test_programs import items, prefixes

pytestmark = pytest.mark.slow

LOGPROBS = 0.2
"""The tolerance of log-probabilities in bf16, where one way rounds what the other does not."""


@pytest.mark.parametrize(
    "filled_up",
    [
        pytest.param(False, id="heads that fill the lanes"),
        pytest.param(True, id="heads of half the lanes", marks=pytest.mark.matrix),
    ],
)
def test_prefill_and_extend_with_kernels_give_the_scores_of_plain_xla(
    filled_up: bool, checkpoint: Callable[[str], Path]
) -> None:
    config = DecoderConfig.from_directory(checkpoint("tied"))
    decoder = weights.load(checkpoint("tied"), config, "bfloat16")[0]
    lanes = 2 * config.head_dim if filled_up else config.head_dim
    kernels = TPUAttention(interpret=pltpu.InterpretParams(), columns=64, lanes=lanes)
    plain, whole = WholeSteps(decoder), WholeSteps(decoder, attention=kernels)
    assert whole.pool.keys.shape[-1] == lanes
    found = prefixes(config)[:2]
    asked = list(chain(*items(config, found)[:2]))
    prefilled, expected = whole.prefill(found), plain.prefill(found)
    np.testing.assert_allclose(whole.logprobs(prefilled), plain.logprobs(expected), atol=LOGPROBS)
    extended, expected = whole.extend(asked), plain.extend(asked)
    np.testing.assert_allclose(whole.logprobs(extended), plain.logprobs(expected), atol=LOGPROBS)
    (alone,) = whole.extend(asked[-1:])
    assert np.array_equal(alone, extended[-1]), "an item has other bits in company than alone"
