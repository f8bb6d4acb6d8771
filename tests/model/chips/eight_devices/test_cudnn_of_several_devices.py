"""On several GPUs, each calls cuDNN for its own heads: lowered for CUDA on a CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import Array

from model.attention.cudnn import CuDNNAttention
from model.chips.mesh import Chips
from tests.model.attention.attention_steps import BF16
from tests.model.attention.test_cudnn import a_gpu, calls_for_cuda, shape

__all__ = ["a_gpu"]
CHIPS = 4


@pytest.mark.usefixtures("a_gpu")
def test_each_device_calls_cudnn_for_its_own_heads() -> None:
    def packed(ranges: Array, queries: Array, keys: Array, values: Array) -> tuple[Array, Array]:
        found = CuDNNAttention().packed(ranges)(queries, keys, values)
        return found.out, found.log_sum_exp

    chips = Chips.of(jax.devices()[:CHIPS])
    of_queries, of_keys = ("rows", "heads", "head_dim"), ("rows", "key_heads", "head_dim")
    program = chips.program(packed, 4, [(), of_queries, of_keys, of_keys], [of_queries, ("rows", "heads")])
    keys = [shape(BF16, 2_000, 8, 128)] * 2
    found = calls_for_cuda(program, shape(jnp.int32, 2_000, 2, 2), shape(BF16, 2_000, 16, 128), *keys)
    assert {taken[0] for _, taken, _ in found} == {"1x4x1024x128xbf16"}
    assert {taken[1] for _, taken, _ in found} == {"1x2x2048x128xbf16"}
    assert {statistics for _, _, (_, statistics, _) in found} == {"1x4x1024xf32"}
