"""From the row floor up, the number of rows of a product does not change the bits of any row.

No library promises that. So it is measured here for every program whose shape depends on the size of a step.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.shapes import QWEN3_06B, SHAPES
from model.architecture.config import DecoderConfig
from model.architecture.experts import Mixture
from model.architecture.recurrence import Recurrence
from model.buckets import ROW_FLOOR, Buckets
from model.executable_table import ExecutableTable
from model.forward import Extension
from model.layers.linear import project
from model.layerwise.decoder import LayerwiseDecoder
from model.layerwise.embed import EmbedKey
from model.layerwise.output_mlp import OutputMLPKey
from model.layerwise.prefix_attention import PrefixAttentionKey
from model.layerwise.qkv import QKVKey
from model.layerwise.recurrence import RecurrenceKey, RecurrentInputsKey, RecurrentOutputKey
from model.layerwise.steps import Step
from model.platforms import Platform
from tests.model.adapters.folders import add_low_rank
from tests.model.checkpoints import CONFIGS, EVERY, random_decoder
from tests.model.devices import stand_in
from tests.model.engines import PLATFORM, DType, unchecked
from tools.tpu.shapes import QWEN3_30B_A3B, QWEN35_08B

MODELS: dict[str, DecoderConfig] = {
    "untied": CONFIGS["untied"],
    "demonstration": SHAPES["demonstration"],
    # Products this large take other paths than small ones.
    "qwen3-0.6b": replace(QWEN3_06B, layers=1, vocabulary=512),
    # Sums of a row of so many numbers, too.
    "a width of 4,096": replace(
        QWEN3_06B, width=4_096, layers=1, query_heads=32, kv_heads=8, mlp_width=512, vocabulary=512
    ),
    "as wide as 30B-A3B": replace(QWEN3_30B_A3B, vocabulary=512, mixture=Mixture(16, 8, normalised=True)),
    "128 experts": replace(QWEN3_30B_A3B, mlp_width=64, vocabulary=512),
}
RECURRENT = {
    "as wide as 0.8B": replace(QWEN35_08B, layers=2, recurrence=Recurrence((True, False), value_heads=16)),
    "as wide as 9B": replace(QWEN35_08B, layers=2, width=4_096, recurrence=Recurrence((True, False))),
}
BUCKETS = Buckets.of(256)
BLOCKS = 3


def test_platforms_and_steps_without_equal_bits_have_one_step_size() -> None:
    cpu, gpu = Platform.of(stand_in("cpu")), Platform.of(stand_in("gpu"))
    assert cpu.has_row_floor(256)
    assert not cpu.has_row_floor(512)
    assert not gpu.has_row_floor(64)


@pytest.mark.skipif(not PLATFORM.has_row_floor(BUCKETS.step_tokens), reason="steps have one size here")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("demonstration", "float32"),
        *(
            pytest.param(name, dtype, marks=pytest.mark.slow)
            for name, dtype in (
                ("a width of 4,096", "float32"),
                ("qwen3-0.6b with an adapter of rank 16", "bfloat16"),
                ("128 experts", "float32"),
            )
        ),
        *(
            pytest.param(name, dtype, marks=pytest.mark.matrix)
            for name, dtypes in {
                "demonstration": ["bfloat16"],
                "untied": ["float32", "bfloat16"],
                "qwen3-0.6b": ["float32", "bfloat16"],
                "a width of 4,096": ["bfloat16"],
                "qwen3-0.6b with an adapter of rank 16": ["float32"],
                "a width of 4,096 with an adapter of rank 16": ["float32"],
                "as wide as 30B-A3B": ["float32"],
            }.items()
            for dtype in dtypes
        ),
    ],
)
def test_a_smaller_step_gives_every_row_the_bits_of_a_larger_step_at_any_place(name: str, dtype: DType) -> None:
    model, _, rank = name.partition(" with an adapter of rank ")
    config = replace(MODELS[model], layers=1)
    random_weights = random_decoder(config, dtype, seed=3)
    if rank:
        add_low_rank(random_weights, int(rank))
    decoder = LayerwiseDecoder(random_weights, PLATFORM, BUCKETS, BLOCKS)
    table = ExecutableTable(decoder, PLATFORM, unchecked)
    random = np.random.RandomState(0)
    tokens = random.randint(0, config.vocabulary, BUCKETS.step_tokens).astype(np.int32)
    ends = random.randint(0, BLOCKS * BUCKETS.step_tokens, BUCKETS.step_tokens).astype(np.int32)
    pool = [jnp.asarray(random.randint(15_000, 16_500, part.shape).astype(np.uint16)) for part in decoder.pool(BLOCKS)]
    if dtype == "float32":
        pool = [jnp.asarray(random.standard_normal(part.shape), jnp.float32) for part in decoder.pool(BLOCKS)]
    blocks = np.arange(BLOCKS, dtype=np.int32)
    read = np.arange(ROW_FLOOR, dtype=np.int32)[::-1].copy()

    def outputs(size: int, first: int = 0) -> dict[str, np.ndarray]:
        layer, own = decoder.layers[0], slice(first, first + size)
        entered = table[EmbedKey(size)](*decoder.embedding, tokens[own], ends[own])
        projected = table[QKVKey(size)](*layer, *entered)
        reading = [np.asarray(part) for part in table[QKVKey(size, BUCKETS.logit_rows)](*layer, *entered, read)]
        seen = table[PrefixAttentionKey(size, BLOCKS)](projected[0], *pool, blocks, ends[own])
        left = table[OutputMLPKey(size)](*layer, entered[0], *seen)
        found = {"entered": entered, "projected": projected, "beside": reading[1:3], "seen": seen, "left": left}
        if first == 0:  # Those that are read are counted from the beginning of a step.
            found["read"] = [part[:ROW_FLOOR] for part in reading[::3]]
        return {
            f"{what} {n}": np.asarray(part).astype(np.float32)
            for what, parts in found.items()
            for n, part in enumerate(parts)
        }

    whole = outputs(BUCKETS.step_tokens)
    for size in BUCKETS.step_sizes[:-1]:
        for first in range(0, BUCKETS.step_tokens, size):
            for what, found in outputs(size, first).items():
                same = found[:size].tobytes() == whole[what][first : first + size].tobytes()
                assert same, f"{what} at {size} from {first}"


@pytest.mark.skipif(not PLATFORM.has_row_floor(BUCKETS.step_tokens), reason="steps have one size here")
@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("as wide as 0.8B", marks=pytest.mark.matrix), "as wide as 9B"])
def test_a_recurrent_layer_of_a_smaller_step_gives_every_row_the_bits_of_a_larger_step(name: str) -> None:
    config = replace(RECURRENT[name], vocabulary=512, mlp_width=512)
    decoder = LayerwiseDecoder(random_decoder(config, "float32", seed=3), PLATFORM, BUCKETS, BLOCKS)
    table = ExecutableTable(decoder, PLATFORM, unchecked)
    random, rows = np.random.RandomState(0), BUCKETS.step_tokens
    hidden, out = (
        random.standard_normal(shape.shape).astype(np.float32)
        for shape in (decoder.hidden(rows), decoder.recurred(rows))
    )
    before = random.standard_normal(decoder.state()[0].shape).astype(np.float32)
    windows = random.randint(0, ROW_FLOOR, (rows, decoder.recurrence.inputs)).astype(np.int32)

    def outputs(size: int) -> list[np.ndarray]:
        layer = decoder.recurrent_layers[0]
        given = table[RecurrentInputsKey(size)](*layer, hidden[:size], before, windows[:size], np.int32(5))
        left = table[RecurrentOutputKey(size)](*layer, hidden[:size], out)
        return [np.asarray(part)[:ROW_FLOOR].view(np.int32) for part in (*given, *left)]

    whole = outputs(rows)
    for size in BUCKETS.step_sizes[:-1]:
        for number, (found, expected) in enumerate(zip(outputs(size), whole, strict=True)):
            np.testing.assert_array_equal(found, expected, err_msg=f"output {number} at {size}")


@pytest.mark.skipif(not PLATFORM.has_row_floor(BUCKETS.step_tokens), reason="steps have one size here")
@pytest.mark.parametrize(
    "name",
    [
        "small",
        pytest.param("as wide as 0.8B", marks=pytest.mark.slow),
        pytest.param("as wide as 9B", marks=pytest.mark.matrix),
    ],
)
def test_a_recurrence_gives_the_same_bits_wherever_a_sequence_is_cut_at_a_grain(name: str) -> None:
    config = replace(({"small": EVERY["qwen35"]} | RECURRENT)[name], vocabulary=512, mlp_width=512)
    decoder = LayerwiseDecoder(random_decoder(config, "float32", seed=3), PLATFORM, BUCKETS, BLOCKS)
    table = ExecutableTable(decoder, PLATFORM, unchecked)
    random, tokens = np.random.RandomState(0), BUCKETS.step_tokens - 6
    convolved, decay, rate = (
        random.standard_normal(shape.shape).astype(np.float32) for shape in decoder.recurrent_inputs(tokens)
    )
    given = convolved, -np.exp(2 * decay - 2), 1 / (1 + np.exp(-2 * rate))
    out = np.zeros(decoder.recurred(tokens).shape, np.float32)
    before = 0.3 * random.standard_normal(decoder.state()[1].shape).astype(np.float32)

    def cut(*places: int) -> tuple[bytes, bytes]:
        read, state = list[np.ndarray](), before
        for begin, end in zip((0, *places), (*places, tokens), strict=True):
            piece = Extension(np.zeros(end - begin, np.int32), begin, stored=np.zeros(1, np.int32))
            (batch,) = Step.of([piece], BUCKETS).self_attention
            key = RecurrenceKey(batch.bucket.length, 1, keeps=True)
            indices = batch.places[:1], batch.lengths[:1], batch.slots
            own = (np.roll(part, -begin, axis=0) for part in given)
            found, (state,) = map(np.asarray, table[key](*decoder.recurrent_layers[0], *own, out, state, *indices))
            read.append(found[: end - begin])
        return np.concatenate(read).tobytes(), state.tobytes()

    whole = cut()
    for places in ((64,), (128,), (192,), (64, 128), (64, 192), (128, 192), (64, 128, 192)):
        assert cut(*places) == whole, places


@pytest.mark.skipif(not PLATFORM.has_row_floor(BUCKETS.step_tokens), reason="steps have one size here")
@pytest.mark.parametrize("columns", [1, 4, 8, 15, 16, 24])
def test_a_product_of_few_columns_has_the_same_bits_in_any_number_of_rows(columns: int) -> None:
    """A router of few experts has such products, and so have recurrent layers of few heads, and adapters."""
    random, rows = np.random.RandomState(columns), BUCKETS.step_tokens
    values, kernel = random.standard_normal((rows, 1_024)), random.standard_normal((1_024, columns))
    product = jax.jit(project)
    whole = np.asarray(product(values.astype(np.float32), kernel.astype(np.float32)))
    for size in BUCKETS.step_sizes[:-1]:
        found = np.asarray(product(values[:size].astype(np.float32), kernel.astype(np.float32)))
        np.testing.assert_array_equal(found.view(np.int32), whole[:size].view(np.int32))
