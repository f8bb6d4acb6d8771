"""What is not implemented of a ``quantization_config`` is refused, and the refusal names the field."""

from __future__ import annotations

from typing import Any

import pytest

from model.architecture.configuration_reader import ConfigurationReader, UnsupportedModelError
from model.architecture.stored.reading import encoding_of
from tests.model.architecture.stored.cases import CASES

GROUP: dict[str, Any] = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
FP8: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
PACKED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": GROUP},
}


def of_group(**changes: Any) -> dict[str, Any]:
    return PACKED | {"config_groups": {"group_0": GROUP | {"weights": GROUP["weights"] | changes}}}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"load_in_4bit": True}, "quant_method None"),
        ({"quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes' is not implemented; known: fp8"),
        ({"quant_method": "nvfp4"}, "quant_method 'nvfp4'"),
        ({"quant_method": "modelopt"}, "quantization_config.quant_algo None is not implemented, only FP8 and"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_algo 'NVFP4'"),
        ("gptq", "quantization_config must be an object"),
        (GPTQ | {"bits": 3}, "quantization_config.bits 3"),
        (GPTQ | {"bits": None}, "lacks quantization_config.bits"),
        (GPTQ | {"group_size": 0}, "quantization_config.group_size"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        (GPTQ | {"format": "bitblas"}, "quantization_config.format 'bitblas'"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format"),
        (GPTQ | {"pack_dtype": "int64"}, "pack_dtype"),
        (GPTQ | {"dynamic": {"+:.*mlp.*": {"bits": 8}}}, "quantization_config.dynamic"),
        (AWQ | {"bits": 8}, "quantization_config.bits 8"),
        (AWQ | {"zero_point": False}, "zero_point False"),
        (AWQ | {"version": "gemv"}, "version 'gemv'"),
        (AWQ | {"backend": "llm-awq"}, "backend 'llm-awq'"),
        (FP8 | {"fmt": "e5m2"}, "fmt 'e5m2'"),
        (FP8 | {"weight_block_size": [128]}, "weight_block_size must be two integers"),
        (FP8 | {"kv_cache_scheme": "static"}, "kv_cache_scheme"),
        (FP8 | {"modules_to_convert": ["model.embed_tokens"]}, "modules_to_convert"),
        (PACKED | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
        (PACKED | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config.format"),
        (PACKED | {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config"),
        (PACKED | {"format": "nvfp4-pack-quantized"}, "quantization_config.format 'nvfp4-pack-quantized'"),
        (PACKED | {"format": "mixed-precision"}, "config_groups.group_0.format 'mixed-precision'"),
        (PACKED | {"ignore": "lm_head"}, "quantization_config.ignore must be a list of names"),
        (PACKED | {"ignore": ["re:("]}, r"quantization_config.ignore 're:\(' is no regular expression"),
        (PACKED | {"config_groups": {"W4A16": ["Linear"]}}, "config_groups.W4A16 must be an object"),
        (of_group(num_bits=3), "config_groups.group_0.weights.num_bits 3 of type 'int'"),
        (of_group(type="float"), "num_bits 8 of type 'float'"),
        (of_group(strategy="token"), "weights.strategy 'token'"),
        (of_group(strategy="group"), "lacks quantization_config.config_groups.group_0.weights.group_size"),
        (of_group(strategy="block"), "weights.block_structure"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(config: Any, named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        encoding_of(ConfigurationReader({"quantization_config": config}))


@pytest.mark.parametrize("name", CASES)
def test_what_is_implemented_is_read(name: str) -> None:
    assert encoding_of(ConfigurationReader({"quantization_config": CASES[name].config})) is not None


def test_a_checkpoint_that_names_no_format_is_plain() -> None:
    assert encoding_of(ConfigurationReader({})) is None
    assert encoding_of(ConfigurationReader({"quantization_config": None})) is None
