"""What is decided by platform: here, in which dtype a model is served."""

from __future__ import annotations

from typing import Literal

import pytest

from model.platforms import emulates_bf16, serving_dtype


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("flags\t\t: fpu sse2 avx2 avx512f avx512_vnni", True),
        ("flags\t\t: fpu sse2 avx2 avx512f avx512_bf16", False),
        ("flags\t\t: fpu sse2 avx2 amx_bf16 amx_tile", False),
        ("flags\t\t: fpu sse2 avx512_bf16x", True),
        ("Features\t: fp asimd evtstrm aes bf16", False),
        ("", False),
    ],
    ids=["AVX-512 without", "AVX-512 with", "AMX", "a longer name", "ARM, which says it otherwise", "nothing known"],
)
def test_an_x86_without_bf16_instructions_emulates_them(flags: str, expected: bool) -> None:
    assert emulates_bf16(["processor\t: 0", flags, "bugs\t\t: bf16"]) is expected


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("wanted", ["bfloat16", "float32"])
def test_a_dtype_that_is_asked_for_is_served(wanted: Literal["bfloat16", "float32"], platform: str) -> None:
    assert serving_dtype(wanted, platform) == wanted


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_accelerators_serve_bf16(platform: str) -> None:
    assert serving_dtype("auto", platform) == "bfloat16"
