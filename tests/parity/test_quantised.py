"""Quantised checkpoints against HuggingFace's code: its scores with the same weights, and its own reading of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from model.architecture.stored.tensors import open_files
from tests.model import engines
from tests.model.architecture.stored.cases import CASES
from tests.model.architecture.stored.writers import Case, fp8, write_quantised
from tests.model.checkpoints import sequences, write
from tests.model.references import huggingface
from tests.model.references.gates import FLOAT32_LOGPROBS

pytestmark = pytest.mark.parity

LENGTHS = (1, 3, 30, 65, 230)
# HuggingFace wants blocks that divide a weight.
_EVEN_BLOCKS = replace(
    CASES["fp8 blocks"],
    config=CASES["fp8 blocks"].config | {"weight_block_size": [16, 32]},
    quantise=fp8((16, 32), "weight_scale_inv"),
)
READ_BY_HUGGINGFACE: dict[str, Case] = {"fp8 blocks": _EVEN_BLOCKS} | {
    name: CASES[name]
    for name in (
        "fp8 whole",
        "float by tensor",
        "float by channel",
        "float by block",
        "int8",
        "int8 with zero points",
        "int4",
        "int4 by channel",
        "int8 packed",
        "some modules",
        "mxfp4 of experts",
    )
}
"""The formats that HuggingFace reads without a GPU, for those of compressed-tensors with that library."""


FEW = (
    "fp8 blocks",
    "fp8 blocks of experts",
    "float by channel",
    "int4 in an order",
    "awq",
    "gptq in an order",
    "mxfp4 of experts",
)
"""Formats whose scores are always compared; `make matrix` compares those of the others."""


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.matrix) for name in CASES]
)
def test_scores_of_quantised_weights_are_huggingfaces_with_the_same_weights(name: str, tmp_path: Path) -> None:
    config, meant = write_quantised(tmp_path / "quantised", CASES[name])
    plain = write(tmp_path / "plain", config, meant)
    # Long rows of recurrent layers are compared in test_recurrent_models: sums in another order add up in random ones.
    rows = sequences(config, 19, LENGTHS if config.recurrence is None else LENGTHS[:-1])
    ours = engines.logprobs(engines.load(tmp_path / "quantised", "float32"), rows)
    assert np.abs(ours - huggingface.logprobs(plain, rows, "float32")).max() <= FLOAT32_LOGPROBS


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.matrix) for name in READ_BY_HUGGINGFACE]
)
def test_huggingface_reads_the_same_scores_out_of_a_quantised_checkpoint(name: str, tmp_path: Path) -> None:
    case = READ_BY_HUGGINGFACE[name]
    config, _ = write_quantised(tmp_path, case)
    _widen_scales(tmp_path / "model.safetensors")
    rows = sequences(config, 19, LENGTHS)
    read: dict[str, Any] = {}
    if case.config["quant_method"] == "compressed-tensors":
        from transformers import CompressedTensorsConfig

        read["quantization_config"] = CompressedTensorsConfig(run_compressed=False)
    elif case.config["quant_method"] == "mxfp4":
        from transformers import Mxfp4Config  # type: ignore[attr-defined,unused-ignore]

        read["quantization_config"] = Mxfp4Config(dequantize=True)
    ours = engines.logprobs(engines.load(tmp_path, "float32"), rows)
    assert np.abs(ours - huggingface.logprobs(tmp_path, rows, "float32", **read)).max() <= FLOAT32_LOGPROBS


def _widen_scales(path: Path) -> None:
    """Store scales in float32. HuggingFace computes weights in the dtype of their scales, here always in float32."""
    with open_files(path.parent, [path]) as tensors:
        stored = {name: np.array(tensor[...]) for name, tensor in tensors.items()}
    save_file(
        {
            name: tensor.astype(np.float32) if tensor.dtype == ml_dtypes.bfloat16 else tensor
            for name, tensor in stored.items()
        },
        path,
        metadata={"format": "pt"},
    )
