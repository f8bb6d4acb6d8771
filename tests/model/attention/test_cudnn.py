"""Attention by cuDNN without a GPU: what is lowered for one, and what is computed with XLA in the place of cuDNN."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax._src.cudnn import fused_attention_stablehlo as private
from structlog.testing import capture_logs

from model.attention.contract import AttentionOutput, ItemSlots, StepPrefixes
from model.attention.cudnn import UNSEEN, CuDNNAttention, by_cudnn, cudnn_or_xla, refusal
from model.attention.xla import XLAAttention
from model.platforms import Platform
from tests.model.attention.attention_steps import (
    BF16,
    BLOCK,
    Extension,
    Packed,
    Prefixes,
    assert_close,
    computed,
    quickly,
    scaled,
    segments,
)
from tests.model.devices import stand_in


def by_xla(queries: Array, keys: Array, values: Array, lengths: Array, bias: Array) -> tuple[Array, Array]:
    """Compute what cuDNN computes. Rows that see nothing are NaN, since cuDNN promises nothing of them."""
    B, H, Q, D = queries.shape
    K, S = keys.shape[1:3]
    grouped = queries.reshape(B, K, H // K, Q, D).astype(jnp.float32)
    scores = jnp.einsum("bkgqd,bksd->bkgqs", grouped, keys.astype(jnp.float32)) * D**-0.5
    scores += bias[:, :, None].astype(jnp.float32)
    scores = jnp.where(jnp.arange(S) < lengths[:, None, None, None, None], scores, -jnp.inf)
    log_sum_exp = jax.nn.logsumexp(scores, axis=-1)
    weights = jnp.exp(scores - log_sum_exp[..., None]).astype(queries.dtype)
    out = jnp.einsum("bkgqs,bksd->bkgqd", weights, values, preferred_element_type=jnp.float32)
    blind = (bias == UNSEEN).all(axis=-1)[:, :, None]
    out, log_sum_exp = jnp.where(blind[..., None], jnp.nan, out), jnp.where(blind, jnp.nan, log_sum_exp)
    return out.reshape(queries.shape).astype(queries.dtype), log_sum_exp.reshape(B, H, Q)


FEW_KEYS = CuDNNAttention(fused=by_xla, prefix_keys=2 * BLOCK, packed_queries=192)
"""A call sees two blocks of a prefix, so that three take two calls."""
ALL_KEYS = CuDNNAttention(fused=by_xla)


@partial(quickly, static_argnums=0)
def attend_prefixes(attention: CuDNNAttention, *arguments: Any) -> AttentionOutput:
    *pool, table, counts, ends = arguments
    attend: Callable[..., AttentionOutput] = attention.prefix(StepPrefixes(BLOCK, table, counts, ends))
    return attend(*pool)


def of_prefixes(step: Prefixes, attention: CuDNNAttention = FEW_KEYS) -> AttentionOutput:
    return computed(attend_prefixes, attention, *step.arguments)


@quickly
def attend_items(queries: Any, keys: Any, values: Any, items: ItemSlots, *others: Any) -> AttentionOutput:
    *pool, table, counts, ends = others
    attend: Callable[..., AttentionOutput] = FEW_KEYS.extension(items, StepPrefixes(BLOCK, table, counts, ends))
    return attend(queries, keys, values, *pool)


def of_items(step: Extension) -> AttentionOutput:
    return computed(attend_items, *step.arguments)


RAGGED = Prefixes.of(
    [[3, 1, 4], [3, 1, 4], [], [7, 2], [3, 5, 8]],
    [[*range(33, 49)], [1, 0, 16, 17, 15, 48, *[40] * 10], [0] * 16, [20] * 16, [5] * 15 + [48]],
)


@pytest.mark.parametrize("attention", [FEW_KEYS, ALL_KEYS], ids=["in two calls", "in one call"])
def test_ragged_tiles_of_several_prefixes_agree_with_float64(attention: CuDNNAttention) -> None:
    assert_close(of_prefixes(RAGGED, attention), RAGGED.expected(scaled))


def test_rows_that_see_nothing_are_zero_behind_minus_infinity() -> None:
    found = of_prefixes(RAGGED)
    blind = RAGGED.ends == 0
    assert not np.asarray(found.out)[blind].any()
    assert np.isneginf(np.asarray(found.log_sum_exp)[blind]).all()


def test_a_row_has_the_same_bits_whatever_others_of_the_step_see() -> None:
    """Behind prefixes that take more calls, and beside rows of its tile that see more of its prefix."""
    alone = Prefixes.of([[3, 1, 4], *[[]] * 4], [[20, *[0] * 15], *[[0] * 16] * 4])
    beside = Prefixes.of([[3, 1, 4], *[[7, 2, 5]] * 4], [[20, *[48] * 15], *[[48] * 16] * 4])
    found, again = (of_prefixes(step) for step in (alone, replace(beside, queries=alone.queries)))
    assert np.array_equal(found.out[0], again.out[0])
    assert np.array_equal(found.log_sum_exp[0], again.log_sum_exp[0])


ROWS, SLOTS = 640, 1280
MANY = [300, 130, 129, 20, 17, 8, 3, 1, 1, 2]  # tokens of items
ENDS = np.random.RandomState(4).randint(0, 3 * BLOCK + 1, ROWS).astype(np.int32)
ENDS[[5, 77, *range(256, 384)]] = 0  # a tile without a prefix among them
STEP = Extension.of(MANY, ROWS, SLOTS, ENDS)


@pytest.mark.parametrize("lengths", [MANY, [20] * 32], ids=["some longer than a tile", "all short"])
def test_items_of_all_lengths_see_their_prefixes_and_themselves(lengths: list[int]) -> None:
    step = Extension.of(lengths, ROWS, SLOTS, ENDS)
    found = of_items(step)
    assert np.isfinite(found.out).all()
    assert_close(found, step.expected(scaled))


def test_an_item_has_the_same_bits_behind_and_beside_others() -> None:
    """Its slot stands elsewhere in a tile, and beside one that takes several tiles."""
    ends = np.full(ROWS, 41, np.int32)
    one, other = Extension.of([20, 20], ROWS, SLOTS, ends), Extension.of([300, 17, 20], ROWS, SLOTS, ends, seed=1)
    parts = other.items.queries, other.items.keys, other.items.values
    for part, original in zip(parts, (one.items.queries, one.items.keys, one.items.values), strict=True):
        part[317:337] = original[:20]
    same = replace(one.prefixes, table=np.tile(one.prefixes.table[:1], (ROWS // 128, 1)))
    found = of_items(replace(one, prefixes=same))
    again = of_items(Extension(other.items, replace(same, queries=other.items.queries)))
    assert np.array_equal(found.out[:20], again.out[317:337])
    assert np.array_equal(found.log_sum_exp[:20], again.log_sum_exp[317:337])


def test_a_packed_sequence_sees_prefixes_and_segments() -> None:
    step = Packed.of(segments(300, [20, 1, 100, 33, 7], 500))
    queries, keys, values, ranges = step.arguments
    found = computed(quickly(lambda *part: FEW_KEYS.packed(ranges)(*part)), queries, keys, values)
    assert_close(found, step.expected(scaled))
    assert np.isneginf(found.log_sum_exp[461:]).all(), "rows of no item see nothing"


Lowered = Callable[..., list[str]]


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jax's entry take this machine for one with a Hopper GPU and a recent cuDNN."""
    monkeypatch.setattr(private, "check_cudnn_version", lambda: 91_000)
    monkeypatch.setattr(private, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(private, "is_cuda_compute_capability_equal", lambda capability: False)


def calls_for_cuda(function: Callable[..., Any], *shapes: Any) -> list[tuple[str, list[str], list[str]]]:
    """Lower for CUDA. Returns for each call of cuDNN its target, and the types of what it takes and returns."""
    text = jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
    found = re.findall(r'custom_call @"?(__cudnn[^"( ]*)"?\(.*: \((.*)\) -> \((.*)\)', text)
    return [(target, re.findall(r"<(.*?)>", taken), re.findall(r"<(.*?)>", given)) for target, taken, given in found]


def shape(dtype: Any, *sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)  # type: ignore[no-untyped-call]


POOL = shape(BF16, 28, 8, 129, 256, 128)
TILES = shape(jnp.int32, 16, 160), shape(jnp.int32, 16), shape(jnp.int32, 2_048)
QUERIES, KEYS = shape(BF16, 2_048, 16, 128), shape(BF16, 2_048, 8, 128)


@pytest.mark.usefixtures("a_gpu")
def test_a_step_of_items_is_lowered_to_cudnn_with_statistics_in_float32() -> None:
    """A jax whose private entry is another one fails here."""

    def extension(table: Array, counts: Array, ends: Array, *rest: Array) -> AttentionOutput:
        attend = CuDNNAttention().extension(ItemSlots(*rest[:3]), StepPrefixes(256, table, counts, ends))
        return attend(*rest[3:])

    slots = shape(jnp.int32, 4_096), shape(jnp.int32, 4_096), shape(jnp.int32, 2_048)
    of_layer = QUERIES, KEYS, KEYS, POOL, POOL, shape(jnp.int32)
    found = calls_for_cuda(extension, *TILES, *slots, *of_layer)
    key, bias, length = ("{}x8x{}x128xbf16", "{}x1x128x{}xbf16", "{}xi32")

    def expected(tiles: int, keys: int) -> tuple[str, list[str], list[str]]:
        queries, statistics = f"{tiles}x16x128x128xbf16", f"{tiles}x16x128xf32"
        of_keys = [key.format(tiles, keys)] * 2
        taken = [queries, *of_keys, bias.format(tiles, keys), length.format(tiles), length.format(tiles)]
        return "__cudnn$fmhaScaleBiasSoftmax", taken, [queries, statistics, "0xui8"]

    own, prefix = expected(32, 128), expected(16, 2_048)
    assert sorted(found) == sorted([own, own, prefix, prefix]), "the first call, and that of the loop"


@pytest.mark.usefixtures("a_gpu")
def test_a_packed_sequence_is_lowered_to_cudnn() -> None:
    found = calls_for_cuda(
        lambda ranges, *parts: CuDNNAttention().packed(ranges)(*parts), shape(jnp.int32, 2_000, 2, 2),
        shape(BF16, 2_000, 16, 128), *[shape(BF16, 2_000, 8, 128)] * 2,
    )  # fmt: skip
    assert [taken[3] for _, taken, _ in found] == ["1x1x1024x2048xbf16", "1x1x1024x2048xbf16"]
    assert {statistics for _, _, (_, statistics, _) in found} == {"1x16x1024xf32"}


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Forget what cuDNN has refused."""
    cudnn_or_xla.cache_clear()
    yield
    cudnn_or_xla.cache_clear()


def entry(returned: Callable[[Array, Array], tuple[Array, ...]]) -> Callable[..., tuple[Array, ...]]:
    """An entry that is called like jax's, computes by XLA, and returns something else."""

    def dot_product_attention(
        query: Array, key: Array, value: Array, *, bias: Array, kv_seqlen: Array, q_seqlen: Array, scale: float,
        mask_type: private.MaskType, qkv_layout: str, return_residual: bool,
    ) -> tuple[Array, ...]:  # fmt: skip
        assert (mask_type, qkv_layout, return_residual) == (private.MaskType.PADDING, "BNTH", True)
        return returned(*by_xla(query, key, value, kv_seqlen, bias))

    return dot_product_attention


@pytest.mark.usefixtures("forgotten")
def test_a_gpu_whose_cudnn_computes_attention_is_served_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "dot_product_attention", entry(lambda *both: both))
    found = Platform.of(stand_in("gpu")).whole_step_attention("bfloat16", 128)
    assert found == CuDNNAttention(fused=by_cudnn)


CHANGED = {
    "statistics in bf16": (entry(lambda out, found: (out, found.astype(BF16))), "the private entry of jax returns"),
    "another layout": (entry(lambda out, found: (out.swapaxes(1, 2), found)), "the private entry of jax returns"),
    "other arguments": (lambda query, key, value: None, "TypeError: "),
}


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("change", CHANGED)
def test_a_changed_entry_makes_a_worker_compute_by_xla_and_say_so_once(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed, reason = CHANGED[change]
    monkeypatch.setattr(private, "dot_product_attention", changed)
    platform = Platform.of(stand_in("gpu"))
    with capture_logs() as logs:
        assert [platform.whole_step_attention("bfloat16", 128) for _ in range(2)] == [XLAAttention()] * 2
    (line,) = logs
    assert line["log_level"] == "warning"
    assert line["reason"].startswith(reason)


def test_without_cudnn_it_is_refused() -> None:
    assert refusal(BF16, 128) == "RuntimeError: cuDNN is not detected."


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize(
    ("dtype", "head_dim", "hopper", "reason"),
    [
        ("float32", 128, True, "Q must be fp16/bf16"),
        ("bfloat16", 100, True, "multiple of 8"),
        ("bfloat16", 256, False, "The head dim must be <= 128"),
    ],
)
def test_what_cudnn_refuses_is_refused(
    dtype: str, head_dim: int, hopper: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "check_compute_capability", lambda capability: hopper)
    found = refusal(jnp.dtype(dtype), head_dim)
    assert found is not None
    assert reason in found


def test_the_compiler_takes_the_options_of_a_gpu() -> None:
    """It refuses options that it does not know, on every platform."""
    options = dict(Platform.of(stand_in("gpu")).compiler_options)
    assert options
    jax.jit(lambda number: number + 1).lower(1).compile(compiler_options=options)
