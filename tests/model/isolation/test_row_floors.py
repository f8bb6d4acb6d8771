"""From the row floor up, the number of rows of a product does not change the bits of any row.

No library promises that. So it is measured here for every program whose shape depends on the size of a step.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.shapes import QWEN3_06B, SHAPES
from model.architecture.config import DecoderConfig
from model.buckets import ROW_FLOOR, Buckets
from model.executable_table import ExecutableTable
from model.layerwise.decoder import LayerwiseDecoder
from model.layerwise.embed import EmbedKey
from model.layerwise.output_mlp import OutputMLPKey
from model.layerwise.prefix_attention import PrefixAttentionKey
from model.layerwise.qkv import QKVKey
from model.platforms import Platform
from tests.model.checkpoints import CONFIGS, random_decoder
from tests.model.devices import stand_in
from tests.model.engines import PLATFORM, DType, unchecked

MODELS: dict[str, DecoderConfig] = {
    "untied": CONFIGS["untied"],
    "demonstration": SHAPES["demonstration"],
    # Products this large take other paths than small ones.
    "qwen3-0.6b": replace(QWEN3_06B, layers=2, vocabulary=512),
}
BUCKETS = Buckets.of(256)
BLOCKS = 3


def test_platforms_and_steps_without_equal_bits_have_one_step_size() -> None:
    cpu, gpu = Platform.of(stand_in("cpu")), Platform.of(stand_in("gpu"))
    assert cpu.has_row_floor(256)
    assert not cpu.has_row_floor(512)
    assert not gpu.has_row_floor(64)


@pytest.mark.skipif(not PLATFORM.has_row_floor(BUCKETS.step_tokens), reason="steps have one size here")
@pytest.mark.parametrize("dtype", [pytest.param("bfloat16", marks=pytest.mark.slow), "float32"])
@pytest.mark.parametrize(
    "name", ["demonstration", *(pytest.param(name, marks=pytest.mark.slow) for name in ("untied", "qwen3-0.6b"))]
)
def test_a_smaller_step_gives_every_row_the_bits_of_a_larger_step(name: str, dtype: DType) -> None:
    config = replace(MODELS[name], layers=1)
    decoder = LayerwiseDecoder(random_decoder(config, dtype, seed=3), PLATFORM, BUCKETS, BLOCKS)
    table = ExecutableTable(decoder, PLATFORM, unchecked)
    random = np.random.RandomState(0)
    tokens = random.randint(0, config.vocabulary, BUCKETS.step_tokens).astype(np.int32)
    ends = random.randint(0, BLOCKS * BUCKETS.step_tokens, BUCKETS.step_tokens).astype(np.int32)
    pool = [jnp.asarray(random.randint(15_000, 16_500, part.shape).astype(np.uint16)) for part in decoder.pool(BLOCKS)]
    if dtype == "float32":
        pool = [jnp.asarray(random.standard_normal(part.shape), jnp.float32) for part in decoder.pool(BLOCKS)]
    blocks = np.arange(BLOCKS, dtype=np.int32)
    read = np.arange(ROW_FLOOR, dtype=np.int32)[::-1].copy()

    def outputs(size: int) -> dict[str, np.ndarray]:
        layer = decoder.layers[0]
        entered = table[EmbedKey(size)](*decoder.embedding, tokens[:size], ends[:size])
        projected = table[QKVKey(size)](*layer, *entered)
        reading = table[QKVKey(size, BUCKETS.logit_rows)](*layer, *entered, read)
        seen = table[PrefixAttentionKey(size, BLOCKS)](projected[0], *pool, blocks, ends[:size])
        left = table[OutputMLPKey(size)](*layer, entered[0], seen[0])
        found = {"entered": entered, "projected": projected, "reading": reading, "seen": seen, "left": left}
        return {
            f"{what} {n}": np.asarray(part).astype(np.float32)[:ROW_FLOOR]
            for what, parts in found.items()
            for n, part in enumerate(parts)
        }

    whole = outputs(BUCKETS.step_tokens)
    for size in BUCKETS.step_sizes[:-1]:
        for what, found in outputs(size).items():
            np.testing.assert_array_equal(found.view(np.int32), whole[what].view(np.int32), err_msg=f"{what} at {size}")
