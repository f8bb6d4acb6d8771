"""Whole steps by the way of cuDNN, with XLA in its place, give the scores of whole steps in plain XLA."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from model.architecture import weights
from model.architecture.config import DecoderConfig
from model.attention.cudnn import CuDNNAttention
from tests.model.attention.test_cudnn import by_xla
from tests.model.whole_steps.runs import WholeSteps
from tests.model.whole_steps.test_programs import items, prefixes

LOGPROBS = 0.2
"""The tolerance of log-probabilities in bf16, where one way rounds what the other does not."""


@pytest.mark.matrix
def test_prefill_and_extend_by_the_way_of_cudnn_give_the_scores_of_plain_xla(
    checkpoint: Callable[[str], Path],
) -> None:
    config = DecoderConfig.from_directory(checkpoint("tied"))
    decoder = weights.load(checkpoint("tied"), config, "bfloat16")[0]
    tiles = CuDNNAttention(fused=by_xla, prefix_keys=128, item_rows=32)
    plain, whole = WholeSteps(decoder), WholeSteps(decoder, attention=tiles)
    found = prefixes(config)[:2]
    asked = list(chain(*items(config, found)[:2]))
    prefilled, expected = whole.prefill(found), plain.prefill(found)
    np.testing.assert_allclose(whole.logprobs(prefilled), plain.logprobs(expected), atol=LOGPROBS)
    extended, expected = whole.extend(asked), plain.extend(asked)
    np.testing.assert_allclose(whole.logprobs(extended), plain.logprobs(expected), atol=LOGPROBS)
    (alone,) = whole.extend(asked[-1:])
    assert np.array_equal(alone, extended[-1]), "an item has other bits in company than alone"
