"""The TPU kernels compile for a v6e at the shapes of Qwen3-0.6B and Qwen3-8B, with the longest table."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from model.compiling.targets import prepare_environment, target_named

target = target_named("v6e")
prepare_environment(target)
import sys
from model.attention.contract import ItemSlots
from model.attention.tpu.attention import TPUAttention
from model.compiling.compiler import Compiler, shape

H, K, D, T, S, N, B, L = int(sys.argv[1]), 8, 128, 2048, 4096, 160, 256, 28
rows, own, slots, tile = shape((T,), "int32"), shape((T, K, D), "bfloat16"), shape((S,), "int32"), T // 128
pool, table, counts = shape((L, K, B, 256, D), "bfloat16"), shape((tile, N), "int32"), shape((tile,), "int32")
queries, attention = shape((T, H, D), "float32"), TPUAttention()
behind = pool, pool, shape((), "int32"), table, counts, rows
def prefix(q, pool_keys, pool_values, layer, *tiles):
    return attention.prefix(256, *tiles)(q, pool_keys, pool_values, layer)
def extension(q, k, v, of, begins, at, pool_keys, pool_values, layer, *tiles):
    return attention.extension(ItemSlots(of, begins, at), 256, *tiles)(q, k, v, pool_keys, pool_values, layer)
def packed(q, k, v, ranges):
    return attention.packed(ranges)(q, k, v)
match sys.argv[2]:
    case "prefix":
        function, arguments = prefix, (queries, *behind)
    case "extension":
        function, arguments = extension, (queries, own, own, slots, slots, rows, *behind)
    case "packed":
        function, arguments = packed, (queries, own, own, shape((T, 2, 2), "int32"))
Compiler(target).compile(function, arguments)
"""


@pytest.mark.compile
@pytest.mark.usefixtures("libtpu")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("heads", [16, 32])
@pytest.mark.parametrize("program", ["prefix", "extension", "packed"])
def test_a_kernel_compiles_for_v6e(heads: int, program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(heads), program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
