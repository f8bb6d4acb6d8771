"""Configurations are read as in HuggingFace, or refused by the name of a field."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from checkpoints.files import CheckpointError
from demonstration.saving import config_fields, rope_fields
from model.architecture.config import Caps, DecoderConfig
from model.architecture.configuration_reader import UnsupportedModelError
from model.architecture.rope import LinearScaling, Llama3Scaling, LongScaling, Rope, Still, YarnScaling
from model.architecture.windows import KINDS, Window
from tests.model.checkpoints import CONFIGS, EVERY

FIELDS = config_fields(CONFIGS["tied"])
LLAMA = config_fields(EVERY["llama"])
MISTRAL = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
GRANITE = {"model_type": "granite", "architectures": ["GraniteForCausalLM"]}
GRANITE4 = config_fields(EVERY["granite4"])
PHI3 = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"]}
GEMMA3: dict[str, Any] = {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_act": None,
    "max_position_embeddings": 1024,
    "rope_parameters": None,
    "rope_theta": None,
}
GEMMA2 = config_fields(EVERY["gemma2"]) | {"hidden_act": "gelu_pytorch_tanh"}
OLMO3 = GEMMA3 | {"model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"], "query_pre_attn_scalar": None}
GEMMA = config_fields(EVERY["gemma"]) | {"hidden_act": None}
EXAONE4 = config_fields(EVERY["exaone4"])
SMOLLM3 = config_fields(EVERY["smollm3"])
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def read(**changes: Any) -> DecoderConfig:
    return DecoderConfig.from_huggingface(FIELDS | changes)


@pytest.mark.parametrize("config", EVERY.values(), ids=EVERY)
def test_a_configuration_that_is_written_reads_back_the_same(config: DecoderConfig) -> None:
    assert DecoderConfig.from_huggingface(config_fields(config)) == config


def test_the_rotary_base_is_read_from_its_new_place_first() -> None:
    assert read(rope_theta=1.0, rope_parameters={"rope_type": "default", "rope_theta": 5e5}).rope == Rope(5e5)


def test_the_rotary_base_is_read_from_its_old_place_too() -> None:
    assert read(rope_theta=7e5, rope_parameters=None, rope_scaling=None).rope == Rope(7e5)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Caps(0.7, 14.0)),
        ({"attn_logit_softcapping": 50, "final_logit_softcapping": None}, Caps(50.0, None)),
        ({"attn_logit_softcapping": None}, Caps(None, 14.0)),
        ({"architectures": ["Gemma2ForSequenceClassification"]}, Caps(0.7, None)),
    ],
)
def test_the_caps_of_gemma2_are_read_and_null_means_none(changes: dict[str, Any], expected: Caps) -> None:
    assert DecoderConfig.from_huggingface(GEMMA2 | changes).caps == expected


def test_gemma2_has_huggingfaces_caps_and_windows_where_its_file_names_none() -> None:
    left_out = ("attn_logit_softcapping", "final_logit_softcapping", "sliding_window", "layer_types")
    fields = {name: each for name, each in GEMMA2.items() if name not in left_out}
    config = DecoderConfig.from_huggingface(fields | {"max_position_embeddings": 8192})
    assert (config.caps, config.window) == (Caps(50.0, 30.0), Window(4096, (True, False)))


def test_the_first_llama_checkpoints_name_no_rotary_base_and_no_key_heads() -> None:
    left_out = ("rope_theta", "rope_parameters", "num_key_value_heads", "head_dim")
    fields = {name: value for name, value in LLAMA.items() if name not in left_out}
    config = DecoderConfig.from_huggingface(fields)
    assert (config.rope, config.kv_heads, config.head_dim) == (Rope(10_000.0), config.query_heads, 16)


PHI4_MINI = PHI3 | {
    "head_dim": None,
    "hidden_size": 3072,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "original_max_position_embeddings": 4096,
    "partial_rotary_factor": 0.75,
    "rope_parameters": None,
    "rope_scaling": {"long_factor": [32.0] * 48, "short_factor": [1] * 48, "type": "longrope"},
    "sliding_window": 262_144,
}


def test_long_positions_of_a_phi_are_served_up_to_their_original_context() -> None:
    config = read(**PHI4_MINI)
    magnitude = math.sqrt(1 + math.log(32) / math.log(4096))
    assert config.rope == Rope(10_000.0, LongScaling((1.0,) * 48, 4096, magnitude), turned=0.75)
    assert (config.context, config.window, config.rope.pairs(config.head_dim)) == (4096, None, 48)


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_rope_scaling_is_read_from_both_fields_under_both_names(key: str) -> None:
    scaling = {key: "linear", "factor": 2.0}
    old = read(rope_theta=1e4, rope_scaling=scaling, rope_parameters=None)
    new = read(rope_parameters=scaling | {"rope_theta": 1e4})
    assert old.rope == new.rope == Rope(1e4, LinearScaling(2.0))


def test_the_rope_scaling_of_llama_3_1_is_read() -> None:
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }
    config = DecoderConfig.from_huggingface(LLAMA | {"rope_theta": 5e5, "rope_scaling": scaling})
    assert config.rope == Rope(5e5, Llama3Scaling(8.0, 1.0, 4.0, 8192))


def test_what_a_yarn_configuration_leaves_out_is_huggingfaces_default() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    config = read(rope_theta=1e6, rope_scaling=scaling, rope_parameters=None)
    assert config.rope == Rope(1e6, YarnScaling(4.0, 32.0, 1.0, 256, True, 0.1 * math.log(4.0) + 1.0))
    assert config.context == 1024


def test_yarn_may_give_its_magnitude_by_two_scales() -> None:
    scaling = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 256, "rope_theta": 1e4}
    config = read(rope_parameters=scaling | {"mscale": 1.0, "mscale_all_dim": 0.5})
    assert config.rope.magnitude == pytest.approx((0.1 * math.log(40) + 1) / (0.05 * math.log(40) + 1))


def test_granite_4_micro_has_the_published_number_of_parameters() -> None:
    """Its sizes are those of github.com/generative-computing/granite-switch, tests/shared/granite4_equivalence.py."""
    sizes = {"vocab_size": 100_352, "hidden_size": 2560, "num_hidden_layers": 40, "num_attention_heads": 40}
    more = {"num_key_value_heads": 8, "shared_intermediate_size": 8192, "layer_types": ["attention"] * 40}
    found = DecoderConfig.from_huggingface(GRANITE4 | sizes | more | {"head_dim": None, "tie_word_embeddings": True})
    assert found.parameters == 3_402_836_480


def test_a_left_out_head_dim_is_huggingfaces_default() -> None:
    fields = {name: value for name, value in FIELDS.items() if name != "head_dim"}
    assert DecoderConfig.from_huggingface(fields).head_dim == 128


@pytest.mark.parametrize(
    "unused",
    [
        {"use_sliding_window": False, "sliding_window": 64},
        {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3},
        {"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 0},
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None},
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 2048},
    ],
)
def test_a_sliding_window_that_is_not_in_use_is_none(unused: dict[str, Any]) -> None:
    assert read(**unused).window is None


LOCAL = Rope(10_000.0)


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        (
            {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 2},
            Window(512, (False, False, True)),
        ),
        (
            {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}
            | {"sliding_window": 64},
            Window(64, (False, True, False)),
        ),
        ({**MISTRAL, "sliding_window": 512}, Window(512, (True,) * 3)),
        ({**PHI3, "sliding_window": 512}, Window(512, (True,) * 3)),
        ({**GEMMA3, "sliding_window": 512, "sliding_window_pattern": 2}, Window(512, (True, False, True), LOCAL)),
        ({**GEMMA3, "num_hidden_layers": 6}, Window(1024, (True,) * 5 + (False,), LOCAL)),
        ({**GEMMA3, "layer_types": ["full_attention"] * 3}, Window(1024, (False,) * 3, LOCAL)),
    ],
)
def test_sliding_windows_are_those_of_huggingface(fields: dict[str, Any], window: Window) -> None:
    config = read(**fields)
    assert config.window == window
    assert DecoderConfig.from_huggingface(config_fields(config)) == config


@pytest.mark.parametrize("fields", [GEMMA3, OLMO3])
@pytest.mark.parametrize("changes", [{}, {"num_hidden_layers": 9}, {"rope_theta": 3e5}])
def test_defaults_by_kinds_of_layers_are_those_of_huggingface(fields: dict[str, Any], changes: dict[str, Any]) -> None:
    given: dict[str, Any] = {name: value for name, value in (FIELDS | fields | changes).items() if value is not None}
    given = {name: value for name, value in given.items() if name not in ("rope_parameters", "use_sliding_window")}
    asked = transformers.AutoConfig.for_model(**given)
    config = DecoderConfig.from_huggingface(given)
    assert config.window is not None
    assert [tuple(KINDS)[one] for one in config.window.layers] == asked.layer_types
    assert config.window.size == min(asked.sliding_window, config.context)
    assert [rope.theta for rope in (config.rope, config.ropes[-1])] == [
        asked.rope_parameters[kind]["rope_theta"] for kind in KINDS
    ]


def test_old_and_new_forms_of_the_positions_of_two_kinds_of_layers_are_the_same() -> None:
    stretched, local = Rope(2e6, LinearScaling(8.0)), Rope(3e4)
    before = {"rope_theta": 2e6, "rope_local_base_freq": 3e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    old = read(**GEMMA3 | before)
    of_kinds = {"full_attention": rope_fields(stretched), "sliding_attention": rope_fields(local)}
    new = read(**GEMMA3 | {"rope_parameters": of_kinds})
    assert old == new
    assert old.ropes == (stretched, local)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'"),
        ({"model_type": "mixtral"}, "model_type 'mixtral'"),
        ({"model_type": None}, "model_type None"),
        ({"architectures": ["Qwen3ForTokenClassification"]}, "architectures"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0"),
        ({"query_pre_attn_scalar": 256}, "query_pre_attn_scalar 256"),
        ({"residual_multiplier": 0.22}, "residual_multiplier 0.22"),
        ({"lm_head_bias": True}, "lm_head_bias True"),
        ({**PHI3, "rope_scaling": {"type": "yarn"}, "rope_parameters": None}, "rope_scaling.rope_type 'yarn'"),
        ({**PHI3, "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": None}, "only 'default'"),
        ({**GRANITE, "architectures": ["GraniteForSequenceClassification"]}, "architectures"),
        ({**GRANITE4, "num_local_experts": None}, "num_local_experts None is not implemented, only 0"),
        ({**GRANITE4, "position_embedding_type": "nope"}, "position_embedding_type 'nope'"),
        ({**GRANITE4, "layer_types": ["mamba", "attention"]}, r"layer_types \['mamba', 'attention'\] is not"),
        ({**GRANITE4, "layer_types": None}, "config.json lacks layer_types"),
        ({**GRANITE4, "layer_types": ["attention"]}, "layer_types has 1 entries for 2 layers"),
        ({**GRANITE4, "layers_block_type": ["mamba"] * 2}, "layers_block_type"),
        ({**GRANITE4, "quantization_config": {"quant_method": "mxfp4"}}, "'mxfp4' is not implemented for granitemoe"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({**GEMMA3, "query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be an integer from 1 up"),
        ({**GEMMA2, "attn_logit_softcapping": 0}, "attn_logit_softcapping must be a positive number"),
        ({**GEMMA2, "final_logit_softcapping": "30"}, "final_logit_softcapping must be a positive number"),
        ({**GEMMA3, "use_bidirectional_attention": True}, "use_bidirectional_attention True"),
        ({**GEMMA3, "final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0"),
        ({**GEMMA3, "hidden_activation": "silu"}, "hidden_activation 'silu'"),
        ({**GEMMA3, "layer_types": ["full_attention"]}, "layer_types has 1 entries for 3 layers"),
        ({**GEMMA3, "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        (
            {**GEMMA3, "rope_parameters": {"rope_theta": 1e6}},
            "rope_parameters must have a section full_attention or sliding_attention",
        ),
        ({**GEMMA3, "rope_scaling": {"rope_type": "linear"}}, "lacks rope_scaling.factor"),
        ({**OLMO3, "sliding_window_pattern": 2}, "sliding_window_pattern 2 is not implemented, only 4"),
        (EXAONE4 | {"sliding_window_pattern": "LLLG", "layer_types": None}, "sliding_window_pattern must be an int"),
        ({**GEMMA, "query_pre_attn_scalar": 24}, "query_pre_attn_scalar 24"),
        ({**GEMMA, "hidden_act": "silu"}, "hidden_act 'silu'"),
        ({**GEMMA, "hidden_activation": "gelu"}, "hidden_activation 'gelu'"),
        (EXAONE4 | {"attention_bias": True}, "attention_bias True"),
        (SMOLLM3 | {"use_sliding_window": True}, "use_sliding_window True"),
        (SMOLLM3 | {"rope_theta": None, "rope_parameters": None}, "config.json lacks rope_theta"),
        (SMOLLM3 | {"no_rope_layers": [1, 1]}, "no_rope_layers must be 3 numbers, each 0 or 1"),
        (SMOLLM3 | {"no_rope_layers": [1, 2, 1]}, "no_rope_layers must be 3 numbers, each 0 or 1"),
        ({**MISTRAL, "layer_types": ["sliding_attention"] * 3}, "layer_types"),
        ({**MISTRAL, "attention_bias": True}, "attention_bias True"),
        ({"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "layer_types"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantization_config.quant_method 'bitsandbytes'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_scaling.rope_type 'dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1.0}}, "rope_parameters.rope_type 'longrope'"),
        ({"rope_parameters": {"rope_theta": 1.0, "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        (PHI4_MINI | {"rope_scaling": {"type": "longrope"}}, "config.json lacks rope_scaling.short_factor"),
        (
            PHI4_MINI | {"rope_scaling": {"type": "longrope", "short_factor": [1] * 47}},
            "short_factor has 47 numbers for 48 pairs of a head",
        ),
        (
            PHI4_MINI | {"rope_scaling": {"type": "longrope", "short_factor": [1, 0]}},
            r"rope_scaling.short_factor\[1\] must be a positive number",
        ),
        (
            PHI4_MINI | {"rope_scaling": {"type": "longrope", "short_factor": "one"}},
            "rope_scaling.short_factor must be a list of positive numbers, not 'one'",
        ),
        (
            PHI3 | {"rope_scaling": LLAMA3},
            "rope_scaling.rope_type 'llama3' is not implemented, only 'default', 'longrope'",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ({"rope_scaling": {"type": "linear"}}, "lacks rope_scaling.factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor must be a positive number"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "attn_factor": 0.88}}, "rope_scaling.attn_factor 0.88"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "low_freq_factor 4 is not below high_freq_factor 4"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"head_dim": 31}, "head_dim 31"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": True}, "vocab_size"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps must be a positive number"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps must be a positive number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        read(**changes)


def test_the_first_gemma_means_the_gate_by_tanh_where_it_says_gelu() -> None:
    """HuggingFace reads it so, and has another default for the head."""
    fields = GEMMA | {"hidden_act": "gelu", "hidden_activation": None, "tie_word_embeddings": None}
    assert DecoderConfig.from_huggingface(fields) == replace(EVERY["gemma"], tied=True)


def test_layers_without_positions_are_those_without_a_window_where_there_is_one() -> None:
    whole = {"sliding_window": None, "sliding_window_pattern": None, "layer_types": ["full_attention"] * 2}
    moving = Rope(10_000.0, Llama3Scaling(8.0, 1.0, 4.0, 64))
    config = DecoderConfig.from_huggingface(EXAONE4 | whole)
    assert (config.rope, config.window) == (moving, None)
    longer = DecoderConfig.from_huggingface(EXAONE4 | {"sliding_window": 5000})
    assert (longer.rope.scaling, longer.window) == (Still(), Window(1024, (True, False), moving))


def test_each_so_many_eth_layer_has_no_positions_where_no_list_says_so() -> None:
    fields = SMOLLM3 | {"no_rope_layers": None, "no_rope_layer_interval": 2, "tie_word_embeddings": None}
    config = DecoderConfig.from_huggingface(fields)
    assert (config.windowed, config.reach, config.tied) == ((True, False, True), config.context, True)


@pytest.mark.parametrize("field", ["hidden_size", "rms_norm_eps", "vocab_size", "max_position_embeddings"])
def test_a_missing_field_is_named(field: str) -> None:
    fields = {name: value for name, value in FIELDS.items() if name != field}
    with pytest.raises(CheckpointError, match=f"lacks {field}"):
        DecoderConfig.from_huggingface(fields)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_missing_or_broken_file_is_one_clear_error(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        DecoderConfig.from_directory(tmp_path)
