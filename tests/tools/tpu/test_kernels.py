"""The TPU kernels compile for a v6e at the shapes of Qwen3 (0.6B, 8B and 32B), Llama-3.2-1B and Qwen3.5.

Tables are the longest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax.numpy as jnp
import pytest

from model.attention.contract import ItemSlots, StepPrefixes
from model.layers.linear import OfStack, RMSNorm
from model.layers.rotation import RotaryEmbedding
from model.platforms import Platform
from tools.tpu.compiler import Compiler, shape
from tools.tpu.targets import target_named

pytestmark = pytest.mark.compile

K, T, S, N, B, L = 8, 2048, 4096, 160, 256, 28
"""Heads of keys, rows, slots, blocks of a table, tokens of a block, and layers."""
TILES = T // 128

Program = tuple[Callable[..., Any], tuple[Any, ...]]
Compilers = Callable[[str], Compiler]


@pytest.fixture(scope="module")
def compilers(compiler: Compiler) -> Compilers:
    """Compilers by the name of their target, all in this process."""
    return cache(lambda name: Compiler(target_named(name)))


def programs(compiler: Compiler, H: int, D: int, W: int) -> dict[str, Program]:
    """Functions that call one kernel each, and their arguments."""
    attention: Any = Platform.of(compiler.devices[0], memory=1).whole_step_attention("bfloat16", D)
    rows, slots, layer = (shape(size, "int32") for size in ((T,), (S,), ()))
    queries, own = (shape((T, heads, D), "bfloat16") for heads in (H, K))
    pool = shape((L, K, B, 256, attention.pool_head_dim(D)), "bfloat16")
    behind = pool, pool, layer, shape((TILES, N), "int32"), shape((TILES,), "int32"), rows
    entering = shape((T, W), "float32"), shape((W,), "bfloat16")
    rotating = shape((D,), "bfloat16"), *[shape((T, D // 2), "float32")] * 2

    def prefix(q: Any, pool_keys: Any, pool_values: Any, layer: Any, *tiles: Any) -> Any:
        return attention.prefix(StepPrefixes(256, *tiles))(q, pool_keys, pool_values, layer)

    def extension(
        q: Any, k: Any, v: Any, of: Any, begins: Any, at: Any, pool_keys: Any, pool_values: Any, layer: Any, *tiles: Any
    ) -> Any:
        of_step = ItemSlots(of, begins, at), StepPrefixes(256, *tiles)
        return attention.extension(*of_step)(q, k, v, pool_keys, pool_values, layer)

    def packed(q: Any, k: Any, v: Any, ranges: Any) -> Any:
        return attention.packed(ranges)(q, k, v)

    def rotation(projected: Any, weight: Any, cos: Any, sin: Any) -> Any:
        return attention.rotation(RotaryEmbedding(cos, sin)).heads(projected, D, RMSNorm(weight, 1e-6), "bfloat16")

    def projection(hidden: Any, before: Any, stack: Any, own: Any, weight: Any, cos: Any, sin: Any) -> Any:
        stacks, norm = [OfStack(one, jnp.int32(3)) for one in (stack, own, own)], RMSNorm(weight, 1e-6)
        rotation = attention.rotation(RotaryEmbedding(cos, sin))
        return rotation.project_qkv(hidden, RMSNorm(before, 1e-6), stacks, [norm, norm], D)

    def gate(hidden: Any, before: Any, stack: Any) -> Any:
        of_stack = OfStack(stack, jnp.int32(0))
        return attention.gated(hidden, RMSNorm(before, 1e-6), of_stack, of_stack, "silu")

    def store(pool: Any, rows: Any, layer: Any, places: Any) -> Any:
        return attention.stored(pool, rows, layer, places)

    stacks = shape((L, W, H * D), "bfloat16"), shape((L, W, K * D), "bfloat16")
    return {
        "prefix": (prefix, (queries, *behind)),
        "extension": (extension, (queries, own, own, slots, slots, rows, *behind)),
        "packed": (packed, (queries, own, own, shape((T, 2, 2), "int32"))),
        "rotation": (rotation, (shape((T, H * D), "float32"), *rotating)),
        "projection": (projection, (*entering, *stacks, *rotating)),
        "gate": (gate, (*entering, shape((L, W, 3072), "bfloat16"))),
        "narrow gate": (gate, (*entering, shape((L, W, 1216), "bfloat16"))),
        "store": (store, (pool, own, layer, shape((TILES, 2), "int32"))),
    }


def more(*members: Any) -> Any:
    """Return members of the matrix whose kernel is compiled for more heads, or for less fast memory, as well."""
    return pytest.param(*members, marks=pytest.mark.matrix)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("heads", "program", "width", "target"),
    [
        more("16x128", "prefix", 1024, "v6e"),
        ("32x128", "prefix", 1024, "v6e"),
        *(
            (heads, program, 1024, "v6e")
            for heads in ("16x128", "64x128", "32x256")
            for program in ("extension", "packed")
        ),
        *(more("32x128", program, 1024, "v6e") for program in ("extension", "packed")),
        ("32x64", "extension", 1024, "v6e"),
        *(("16x128", program, 1024, "v6e") for program in ("rotation", "projection", "gate", "narrow gate", "store")),
        # A v5p has half the fast memory of a v6e.
        *(("40x128", program, 5120, "v5p") for program in ("projection", "gate")),
        *(more("40x128", program, 5120, "v6e") for program in ("projection", "gate")),
        ("64x128", "projection", 8192, "v5p"),
    ],
)
def test_a_kernel_compiles(heads: str, program: str, width: int, target: str, compilers: Compilers) -> None:
    """heads: query heads, and numbers of a head; width: of hidden states."""
    compiler = compilers(target)
    H, D = map(int, heads.split("x"))
    function, arguments = programs(compiler, H, D, width)[program]
    compiler.compile(function, arguments)
