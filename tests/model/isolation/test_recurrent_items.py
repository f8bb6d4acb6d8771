"""What an item reads in a recurrent layer has the same bits at any place of a step, whatever stands beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from model.architecture.recurrence import Recurrence
from model.buckets import Buckets
from model.executable_table import ExecutableTable
from model.forward import Extension
from model.layerwise.decoder import LayerwiseDecoder
from model.layerwise.recurrence import RecurrenceKey
from model.layerwise.steps import Step
from tests.model.checkpoints import random_decoder
from tests.model.engines import PLATFORM, unchecked
from tools.tpu.shapes import QWEN35_08B

BUCKETS = Buckets.of(256)


@pytest.fixture(scope="module", params=[pytest.param("as wide as 0.8B", marks=pytest.mark.matrix), "as wide as 9B"])
def table(request: pytest.FixtureRequest) -> ExecutableTable[LayerwiseDecoder]:
    """Heads as in published models, of which the larger ones share keys."""
    sizes = Recurrence((True, False), value_heads=16 if request.param == "as wide as 0.8B" else 32)
    config = replace(QWEN35_08B, layers=2, width=256, mlp_width=128, vocabulary=64, recurrence=sizes)
    decoder = LayerwiseDecoder(random_decoder(config, "float32", seed=3), PLATFORM, BUCKETS, 3)
    return ExecutableTable(decoder, PLATFORM, unchecked)


@pytest.mark.parametrize(
    "lengths",
    [
        [5, 8, 1, 7, 8, 6],
        pytest.param([13, 9, 16, 11, 10], marks=pytest.mark.matrix),
        [20, 17, 32, 29, 20, 23],
        pytest.param([33, 64, 47, 50], marks=pytest.mark.matrix),
        pytest.param([70, 101], marks=pytest.mark.matrix),
    ],
    ids=str,
)
def test_an_item_reads_the_same_bits_alone_and_among_others(
    lengths: list[int], table: ExecutableTable[LayerwiseDecoder]
) -> None:
    decoder, random = table.decoder, np.random.RandomState(sum(lengths))
    size = BUCKETS.step_tokens
    parts = [random.standard_normal(part.shape).astype(np.float32) for part in decoder.recurrent_inputs(size)]
    given = parts[0], -np.exp(2 * parts[1] - 2), 1 / (1 + np.exp(-parts[2]))
    state = random.standard_normal(decoder.state()[1].shape).astype(np.float32)
    nothing = np.zeros(decoder.recurred(size).shape, np.float32)

    def read(lengths: list[int], tokens: tuple[np.ndarray, ...]) -> np.ndarray:
        """What the tokens of items read, which stand one behind another."""
        step = Step.of([Extension(np.zeros(length, np.int32), 0) for length in lengths], BUCKETS)
        (batch,) = step.self_attention
        key = RecurrenceKey(batch.bucket.length, batch.bucket.rows)
        indices = batch.places, batch.lengths, batch.slots
        (found,) = table[key](*decoder.recurrent_layers[0], *tokens, nothing, state, *indices)
        return np.asarray(found).view(np.int32)

    together = read(lengths, given)
    for begin, length in zip(np.cumsum(lengths) - lengths, lengths, strict=True):
        own = slice(begin, begin + length)
        # Alone at the beginning of a step, whose other tokens are others.
        alone = read([length], tuple(np.concatenate([part[own], part[::-1][: size - length]]) for part in given))
        np.testing.assert_array_equal(alone[:length], together[own])
