"""The dtype in which a model is served on each platform."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from model import platforms
from model.platforms import may_gain_from_bf16, serving_dtype


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
    assert serving_dtype(wanted, platform) == wanted


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
    platforms._may_gain_from_bf16.cache_clear()
    try:
        assert serving_dtype("auto", "cpu") == expected
    finally:
        platforms._may_gain_from_bf16.cache_clear()


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_accelerators_serve_bf16(platform: str) -> None:
    assert serving_dtype("auto", platform) == "bfloat16"
