"""A quantised checkpoint of each kind that is read."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.model.architecture.stored.writers import (
    Array,
    Case,
    Quantise,
    awq,
    eight_bits,
    fp8,
    gptq,
    mxfp4,
    packed_bits,
)
from tests.model.checkpoints import Tensors

ATTENTION = r"model\.layers\..*self_attn\..*_proj"
RECURRENT = r"model\.layers\..*(_proj|in_proj_qkv|in_proj_z)"
ALL_LINEAR = r"(model\.layers\..*_proj|lm_head)"

_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
_MODEL_OPTIMIZER = {
    "quant_method": "modelopt",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}},
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "ignore": ["lm_head"],
}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}


def _compressed(format: str, weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    } | more


def _with_scales_of_activations(quantise: Quantise, suffix: str) -> Quantise:
    def also(module: str, weight: Array) -> tuple[Tensors, Array]:
        stored, meant = quantise(module, weight)
        return stored | {f"{module}.{suffix}": np.ones(1, np.float32)}, meant

    return also


def _with_biases(quantise: Quantise) -> Quantise:
    def also(module: str, weight: Array) -> tuple[Tensors, Array]:
        stored, meant = quantise(module, weight)
        return stored | {f"{module}.bias": np.zeros(len(weight), np.float16)}, meant

    return also


def _of_each_part(attention: Quantise, rest: Quantise) -> Quantise:
    return lambda module, weight: (attention if "self_attn" in module else rest)(module, weight)


_FLOAT: dict[str, Any] = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
_INT8: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
_INT4: dict[str, Any] = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}

_MIXED = {
    "attention": {"targets": ["re:.*self_attn.*"], "weights": _INT8, "format": "int-quantized"},
    "rest": {"targets": ["Linear"], "weights": _INT4, "format": "pack-quantized"},
}

CASES = {
    "fp8 blocks": Case(_FP8 | {"weight_block_size": [32, 48]}, fp8((32, 48), "weight_scale_inv")),
    "fp8 blocks of experts": Case(
        _FP8 | {"weight_block_size": [32, 48]}, fp8((32, 48), "weight_scale_inv"), model="qwen3 moe"
    ),
    "fp8 blocks of several projections": Case(
        _FP8 | {"weight_block_size": [32, 48]}, fp8((32, 48), "weight_scale_inv"), model="phi3"
    ),
    "fp8 blocks of recurrent layers": Case(
        _FP8 | {"weight_block_size": [24, 32], "modules_to_not_convert": ["linear_attn.in_proj_a"]},
        fp8((24, 32), "weight_scale_inv"),
        RECURRENT,
        model="qwen35",
    ),
    "fp8 blocks of key heads": Case(
        _FP8 | {"weight_block_size": [24, 32], "modules_to_not_convert": ["linear_attn.in_proj_ba"]},
        fp8((24, 32), "weight_scale_inv"),
        r".*linear_attn\.(in_proj_qkvz|out_proj)",
        model="qwen3 next",
    ),
    "int4 of several projections": Case(
        _compressed("pack-quantized", _INT4 | {"symmetric": False}), packed_bits(4, 32, symmetric=False), model="phi3"
    ),
    "int8 of recurrent layers": Case(
        _compressed("int-quantized", _INT8, ignore=["lm_head", "re:.*in_proj_[ab]$"]),
        eight_bits(None, symmetric=True),
        RECURRENT,
        model="qwen35",
    ),
    "awq of several projections": Case(_AWQ, awq(32), model="phi3"),
    "gptq of recurrent layers": Case(_GPTQ, gptq(4, 32, symmetric=False), RECURRENT, model="qwen35"),
    "awq of experts beside recurrent layers": Case(
        _AWQ | {"group_size": -1, "modules_to_not_convert": ["linear_attn", "self_attn", "shared_expert", "mlp.gate"]},
        awq(None),
        r".*mlp\.experts\..*_proj",
        model="qwen3 next",
    ),
    "fp8 of a shared mlp": Case(
        _FP8 | {"weight_block_size": [32, 48]},
        fp8((32, 48), "weight_scale_inv"),
        r"model\.layers\..*(_proj|_linear)",
        model="granite4",
    ),
    "mxfp4 of experts": Case(
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"]},
        mxfp4,
        r"model\.layers\..*experts\..*_proj",
        model="gpt-oss",
    ),
    "fp8 whole": Case(
        _FP8 | {"weight_block_size": None},
        _with_scales_of_activations(fp8(None, "weight_scale_inv", lambda s: s.reshape(())), "activation_scale"),
    ),
    "fp8 static": Case(
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        _with_scales_of_activations(fp8(None, "weight_scale", lambda s: s.reshape(1)), "input_scale"),
    ),
    "fbgemm": Case(
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
        fp8((1, 0), "weight_scale"),
        ATTENTION,
    ),
    "model optimizer": Case(
        _MODEL_OPTIMIZER | {"quant_algo": "FP8"},
        _with_scales_of_activations(
            _with_scales_of_activations(fp8(None, "weight_scale", lambda s: s.reshape(())), "input_scale"), "k_scale"
        ),
    ),
    "model optimizer by channel": Case(
        _MODEL_OPTIMIZER | {"quant_algo": "fp8_per_channel_per_token"}, fp8((1, 0), "weight_scale"), model="llama"
    ),
    "float by tensor": Case(
        _compressed("float-quantized", _FLOAT | {"strategy": "tensor"}),
        fp8(None, "weight_scale", lambda s: s.reshape(1)),
        model="llama",
    ),
    "float by channel": Case(
        _compressed("float-quantized", _FLOAT | {"strategy": "channel"}), fp8((1, 0), "weight_scale"), model="untied"
    ),
    "float by block": Case(
        _compressed("naive-quantized", _FLOAT | {"strategy": "block", "block_structure": [48, 32]}),
        fp8((48, 32), "weight_scale"),
    ),
    "int8": Case(_compressed("int-quantized", _INT8), eight_bits(None, symmetric=True), model="qwen2 tied"),
    "int8 with zero points": Case(
        _compressed("int-quantized", _INT8 | {"symmetric": False}, ignore=[]),
        eight_bits(None, symmetric=False),
        ALL_LINEAR,
        model="untied",
    ),
    "int4": Case(_compressed("pack-quantized", _INT4), packed_bits(4, 32, symmetric=True), model="mistral wide heads"),
    "int4 with zero points": Case(
        _compressed("pack-quantized", _INT4 | {"symmetric": False}, ignore=[]),
        packed_bits(4, 32, symmetric=False),
        ALL_LINEAR,
        model="untied",
    ),
    "int4 with zero points that are not packed": Case(
        _compressed("pack-quantized", _INT4 | {"symmetric": False}),
        packed_bits(4, 32, symmetric=False, zeros_packed=False),
    ),
    "int4 by channel": Case(
        _compressed("pack-quantized", _INT4 | {"strategy": "channel", "group_size": None, "symmetric": False}),
        packed_bits(4, None, symmetric=False),
    ),
    "int4 in an order": Case(
        _compressed("pack-quantized", _INT4 | {"actorder": "group"}), packed_bits(4, 32, symmetric=True, ordered=True)
    ),
    "int8 packed": Case(
        _compressed("pack-quantized", _INT8 | {"strategy": "group", "group_size": 16}),
        packed_bits(8, 16, symmetric=True),
    ),
    "some modules": Case(
        _compressed("int-quantized", _INT8, ignore=["lm_head", "re:.*mlp.*", "model.layers.0.self_attn.q_proj"]),
        eight_bits(None, symmetric=True),
        r"model\.layers\.([12]\.self_attn\..|0\.self_attn\.[kvo])_proj",
    ),
    "mixed": Case(
        _compressed("mixed-precision", {}, config_groups=_MIXED),
        _of_each_part(eight_bits(None, symmetric=True), packed_bits(4, 32, symmetric=True)),
    ),
    "awq": Case(_AWQ | {"modules_to_not_convert": None}, awq(32)),
    "awq by channel": Case(_AWQ | {"group_size": -1, "version": "GEMM"}, awq(None), model="qwen2 tied"),
    "awq attention": Case(_AWQ | {"modules_to_not_convert": ["mlp"]}, awq(32), ATTENTION),
    "gptq": Case(_GPTQ, _with_biases(gptq(4, 32, symmetric=True)), model="llama"),
    "gptq with zero points": Case(_GPTQ | {"sym": False}, gptq(4, 32, symmetric=False)),
    "gptq v2": Case(_GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"}, gptq(4, 32, symmetric=False, subtracted=0)),
    "gptq in an order": Case(_GPTQ | {"desc_act": True}, gptq(4, 32, symmetric=True, ordered=True)),
    "gptq 8 bits": Case(
        _GPTQ | {"bits": 8, "group_size": -1, "dynamic": {"-:.*mlp.*": {}}},
        gptq(8, None, symmetric=False, index=False, scale=ml_dtypes.bfloat16),
        ATTENTION,
    ),
    "gptq 8 bits in an order": Case(
        _GPTQ | {"bits": 8, "group_size": 16, "desc_act": True}, gptq(8, 16, symmetric=False, ordered=True)
    ),
}
