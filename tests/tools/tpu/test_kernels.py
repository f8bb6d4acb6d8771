"""The TPU kernels compile for a v6e at the shapes of Qwen3 (0.6B, 8B and 32B), Llama-3.2-1B and Qwen3.5.

Tables are the longest.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from tools.tpu.targets import prepare_environment, target_named

import sys
target = target_named(sys.argv[4])
prepare_environment(target)
import jax.numpy as jnp
from model.layers.linear import OfStack, RMSNorm
from model.attention.contract import ItemSlots, StepPrefixes
from model.platforms import Platform
from tools.tpu.compiler import Compiler, shape
from model.layers.rotation import RotaryEmbedding

(H, D), K, T, S, N, B, L = map(int, sys.argv[1].split("x")), 8, 2048, 4096, 160, 256, 28
rows, own, slots, tile = shape((T,), "int32"), shape((T, K, D), "bfloat16"), shape((S,), "int32"), T // 128
attention = Platform.of(Compiler(target).devices[0], memory=1).whole_step_attention("bfloat16", D)
pool = shape((L, K, B, 256, attention.pool_head_dim(D)), "bfloat16")
table, counts = shape((tile, N), "int32"), shape((tile,), "int32")
queries, angles = shape((T, H, D), "bfloat16"), shape((T, D // 2), "float32")
W = int(sys.argv[3])
entering = shape((T, W), "float32"), shape((W,), "bfloat16")
behind = pool, pool, shape((), "int32"), table, counts, rows
def prefix(q, pool_keys, pool_values, layer, *tiles):
    return attention.prefix(StepPrefixes(256, *tiles))(q, pool_keys, pool_values, layer)
def extension(q, k, v, of, begins, at, pool_keys, pool_values, layer, *tiles):
    of_step = ItemSlots(of, begins, at), StepPrefixes(256, *tiles)
    return attention.extension(*of_step)(q, k, v, pool_keys, pool_values, layer)
def packed(q, k, v, ranges):
    return attention.packed(ranges)(q, k, v)
def rotation(projected, weight, cos, sin):
    return attention.rotation(RotaryEmbedding(cos, sin)).heads(projected, D, RMSNorm(weight, 1e-6), "bfloat16")
def projection(hidden, before, stack, own, weight, cos, sin):
    stacks, norm = [OfStack(one, jnp.int32(3)) for one in (stack, own, own)], RMSNorm(weight, 1e-6)
    rotation = attention.rotation(RotaryEmbedding(cos, sin))
    return rotation.project_qkv(hidden, RMSNorm(before, 1e-6), stacks, [norm, norm], D)
def gate(hidden, before, stack):
    of_stack = OfStack(stack, jnp.int32(0))
    return attention.gated(hidden, RMSNorm(before, 1e-6), of_stack, of_stack, "silu")
def store(pool, rows, layer, places):
    return attention.stored(pool, rows, layer, places)
match sys.argv[2]:
    case "prefix":
        function, arguments = prefix, (queries, *behind)
    case "extension":
        function, arguments = extension, (queries, own, own, slots, slots, rows, *behind)
    case "packed":
        function, arguments = packed, (queries, own, own, shape((T, 2, 2), "int32"))
    case "rotation":
        function, arguments = rotation, (shape((T, H * D), "float32"), shape((D,), "bfloat16"), angles, angles)
    case "projection":
        stacks = shape((L, W, H * D), "bfloat16"), shape((L, W, K * D), "bfloat16")
        function, arguments = projection, (*entering, *stacks, shape((D,), "bfloat16"), angles, angles)
    case "gate":
        function, arguments = gate, (*entering, shape((L, W, 3072), "bfloat16"))
    case "narrow gate":
        function, arguments = gate, (*entering, shape((L, W, 1216), "bfloat16"))
    case "store":
        function, arguments = store, (pool, own, shape((), "int32"), shape((tile, 2), "int32"))
Compiler(target).compile(function, arguments)
"""


@pytest.mark.compile
@pytest.mark.usefixtures("libtpu")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("heads", "program", "width", "target"),
    [
        *(
            (heads, program, 1024, "v6e")
            for heads in ("16x128", "32x128")
            for program in ("prefix", "extension", "packed")
        ),
        *((heads, program, 1024, "v6e") for heads in ("64x128", "32x256") for program in ("extension", "packed")),
        ("32x64", "extension", 1024, "v6e"),
        *(("16x128", program, 1024, "v6e") for program in ("rotation", "projection", "gate", "narrow gate", "store")),
        # A v5p has half the fast memory of a v6e.
        *(("40x128", program, 5120, target) for program in ("projection", "gate") for target in ("v5p", "v6e")),
        ("64x128", "projection", 8192, "v5p"),
    ],
)
def test_a_kernel_compiles(heads: str, program: str, width: int, target: str) -> None:
    """heads: query heads, and numbers of a head; width: of hidden states."""
    command = [sys.executable, "-c", PROGRAM, heads, program, str(width), target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
