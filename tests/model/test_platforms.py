"""What each platform is decided to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from safetensors.numpy import load_file

from demonstration.saving import save
from model import platforms
from model.architecture import weights
from model.attention.tpu.attention import TPUAttention
from model.attention.xla import XLAAttention
from model.platforms import Platform, may_gain_from_bf16
from scoring.layout import GroupWork, Head
from tests.model import engines
from tests.model.checkpoints import EVERY
from tests.model.devices import stand_in
from tests.model.engines import PLATFORM, chunk, logprobs, score


@pytest.mark.parametrize(
    ("vendor", "flags", "expected"),
    [
        ("GenuineIntel", "flags\t\t: fpu sse2 avx2 avx512f avx512_vnni", False),
        ("AuthenticAMD", "flags\t\t: fpu sse2 avx2", False),
        ("GenuineIntel", "flags\t\t: fpu sse2 avx2 avx512f avx512_bf16", False),
        ("AuthenticAMD", "flags\t\t: fpu sse2 avx2 avx512f avx512_bf16", True),
        ("GenuineIntel", "flags\t\t: fpu sse2 avx2 avx512_bf16 amx_bf16 amx_tile", True),
        ("AuthenticAMD", "flags\t\t: fpu sse2 avx512_bf16x", False),
        ("", "Features\t: fp asimd evtstrm aes bf16", True),
        ("", "", True),
    ],
    ids=[
        "AVX-512 without",
        "AVX2",
        "an Intel with",
        "an AMD with",
        "AMX",
        "a longer name",
        "ARM, which says it otherwise",
        "nothing known",
    ],
)
def test_an_x86_serves_bf16_where_its_products_are_faster(vendor: str, flags: str, expected: bool) -> None:
    cpuinfo = ["processor\t: 0", f"vendor_id\t: {vendor}", flags, "bugs\t\t: bf16 amx_bf16"]
    assert may_gain_from_bf16(cpuinfo) is expected


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("wanted", ["bfloat16", "float32"])
def test_an_explicit_dtype_is_served(wanted: Literal["bfloat16", "float32"], platform: str) -> None:
    assert Platform.of(stand_in(platform)).serving_dtype(wanted) == wanted


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("avx2", "float32"), ("avx2 amx_bf16", "bfloat16"), (None, "bfloat16")],
    ids=["no gain", "a gain", "nothing to read"],
)
def test_a_cpu_serves_the_faster_dtype(
    flags: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    if flags is not None:
        cpuinfo.write_text(f"vendor_id\t: GenuineIntel\nflags\t\t: {flags}\n")
    monkeypatch.setattr(platforms, "_PROCESSOR", cpuinfo)
    assert Platform.of(stand_in("cpu")).serving_dtype("auto") == expected


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_accelerators_serve_bf16(platform: str) -> None:
    assert Platform.of(stand_in(platform)).serving_dtype("auto") == "bfloat16"


def test_a_cpu_and_an_accelerator_differ_in_sizes_and_in_what_they_hold() -> None:
    cpu, tpu = (Platform.of(stand_in(name)) for name in ("cpu", "tpu"))
    assert (cpu.step_tokens(None), tpu.step_tokens(None), tpu.step_tokens(64)) == (256, 2_048, 64)
    assert [cpu.block_tokens(size) for size in (64, 256, 2_048)] == [64, 256, 2_048]
    assert [tpu.block_tokens(size) for size in (64, 256, 2_048)] == [64, 256, 256]
    assert [str(cpu.pool_dtype(dtype)) for dtype in ("bfloat16", "float32")] == ["uint16", "float32"]
    assert [str(tpu.pool_dtype(dtype)) for dtype in ("bfloat16", "float32")] == ["bfloat16", "float32"]


def test_a_device_says_how_much_memory_it_has_unless_it_is_given_or_is_the_host() -> None:
    assert Platform.of(stand_in("gpu", memory={"bytes_limit": 10})).memory == 10
    assert Platform.of(stand_in("tpu"), memory=20).memory == 20
    assert Platform.of(stand_in("tpu")).memory is None
    assert Platform.of(stand_in("cpu", memory={"bytes_limit": 10})).memory is None


def test_a_platform_is_that_of_the_device_and_not_of_this_machine() -> None:
    assert str(Platform.of(stand_in("tpu", "TPU v6e"))) == "tpu: TPU v6e"
    assert Platform.of(stand_in("tpu")).compiler_options == {}
    assert Platform.of(stand_in("cpu")).compiler_options


@pytest.mark.parametrize("name", ["tied", pytest.param("untied", marks=pytest.mark.slow)])
def test_an_embedding_in_rows_gives_the_scores_of_one_in_columns(
    name: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    in_rows = replace(PLATFORM, tied_as_rows=True)
    rows = [np.array([5, 3, 80, 7], np.int32), np.array([11], np.int32)]
    found, expected = (
        engines.load(checkpoint(name), "float32", platform=each, step_tokens=64) for each in (in_rows, PLATFORM)
    )
    np.testing.assert_allclose(logprobs(found, rows), logprobs(expected, rows), rtol=0, atol=2e-5)
    work = [GroupWork("key", rows[0], (chunk(0, rows, 4, (3, 17), Head.LOGITS),))]
    np.testing.assert_allclose(score(found, work)[0].logits, score(expected, work)[0].logits, rtol=0, atol=2e-5)
    found.check_model()
    decoder, _ = weights.load(checkpoint(name), EVERY[name], "float32", tied_as_rows=True)
    save(decoder, tmp_path)
    assert load_file(tmp_path / "model.safetensors").keys() == load_file(checkpoint(name) / "model.safetensors").keys()
    for tensor, value in load_file(checkpoint(name) / "model.safetensors").items():
        np.testing.assert_array_equal(load_file(tmp_path / "model.safetensors")[tensor], value)


@pytest.mark.parametrize(
    ("name", "dtype", "kernel"),
    [("tpu", "bfloat16", True), ("tpu", "float32", False), ("gpu", "bfloat16", False)],
)
def test_the_kernel_of_tpus_serves_bf16(name: str, dtype: str, kernel: bool) -> None:
    found = Platform.of(stand_in(name)).whole_step_attention(dtype, 128)
    assert isinstance(found, TPUAttention if kernel else XLAAttention)


@pytest.mark.parametrize(
    ("name", "dtype", "head_dim", "expected"),
    [
        ("tpu", "bfloat16", 64, 128),
        ("tpu", "bfloat16", 80, 128),
        ("tpu", "bfloat16", 128, 128),
        ("tpu", "bfloat16", 160, 256),
        ("tpu", "float32", 64, 64),
        ("gpu", "bfloat16", 64, 64),
        ("cpu", "bfloat16", 64, 64),
    ],
)
def test_a_head_takes_whole_lanes_in_the_pool_where_the_kernel_reads_it(
    name: str, dtype: str, head_dim: int, expected: int
) -> None:
    assert Platform.of(stand_in(name)).pool_head_dim(dtype, head_dim) == expected
