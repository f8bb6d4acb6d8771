"""Checkpoints that take pictures, too, are read as their text part."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoints.classification import Activation, Classes
from checkpoints.files import read_classes
from checkpoints.text_part import text_config, text_tensors
from model.architecture.config import DecoderConfig
from model.architecture.configuration_reader import UnsupportedModelError
from model.architecture.rope import LinearScaling, Rope, YarnScaling
from tools.tpu.shapes import QWEN35_08B as QWEN35_SHAPE

GEMMA_3_12B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "image_token_index": 262144,
    "text_config": {
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "model_type": "gemma3_text",
        "num_attention_heads": 16,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}
"""The published fields, which leave out what is HuggingFace's default."""

QWEN35_08B: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "image_token_id": 248056,
    "model_type": "qwen3_5",
    "text_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "dtype": "bfloat16",
        "eos_token_id": 248044,
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "initializer_range": 0.02,
        "intermediate_size": 3584,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 6,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": 8,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": 248320,
    },
    "tie_word_embeddings": True,
    "vision_config": {"depth": 12, "hidden_size": 768, "model_type": "qwen3_5"},
}
"""The published fields of the text part."""


def test_qwen35_is_read_as_its_text_part() -> None:
    assert DecoderConfig.from_huggingface(text_config(QWEN35_08B)) == QWEN35_SHAPE
    assert QWEN35_SHAPE.parameters / 1e9 == pytest.approx(0.752, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layer_types": ["full_attention"] * 24}, "layer_types must give linear_attention"),
        ({"layer_types": None, "full_attention_interval": 5}, "full_attention_interval must give linear_attention"),
        ({"layer_types": ["full_attention"] * 23 + ["linear_attention"]}, "end with full_attention"),
        ({"layer_types": ["linear_attention", "sliding_attention"] * 12}, "layer_types .* is not implemented"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layer_types has 2 entries for 24 layers"),
        ({"linear_num_value_heads": 24}, "linear_num_value_heads 24 is no multiple of linear_num_key_heads 16"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim must be an integer from 2 up"),
        ({"rope_parameters": {"partial_rotary_factor": 0.001}}, "partial_rotary_factor 0.001 of head_dim 256 makes no"),
        ({"head_dim": 36}, "partial_rotary_factor 0.25 of head_dim 36 makes no whole pairs"),
        ({"attn_output_gate": False}, "attn_output_gate False is not implemented"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type 'sigmoid' is not implemented"),
        ({"attention_bias": True}, "attention_bias True is not implemented"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_parameters.rope_type 'yarn'"),
        ({"rope_parameters": {"partial_rotary_factor": 1.5}}, "partial_rotary_factor 1.5 is more than the whole"),
        ({"quantization_config": {"quant_method": "bitnet"}}, "quant_method 'bitnet' is not implemented"),
    ],
)
def test_what_qwen35_does_not_have_is_refused_by_the_name_of_a_field(changes: dict[str, Any], named: str) -> None:
    fields = QWEN35_08B | {"text_config": QWEN35_08B["text_config"] | changes}
    if "quantization_config" in changes:
        fields = QWEN35_08B | changes
    with pytest.raises(UnsupportedModelError, match=named):
        DecoderConfig.from_huggingface(text_config(fields))


def test_each_so_many_eth_layer_has_attention_where_no_kinds_are_named() -> None:
    text = {name: value for name, value in QWEN35_08B["text_config"].items() if name != "layer_types"}
    assert DecoderConfig.from_huggingface(text_config(QWEN35_08B | {"text_config": text})) == QWEN35_SHAPE


MINISTRAL_3_8B: dict[str, Any] = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "image_token_index": 10,
    "model_type": "mistral3",
    "text_config": {
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 262144,
        "model_type": "ministral3",
        "num_attention_heads": 32,
        "num_hidden_layers": 34,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 16.0,
            "llama_4_scaling_beta": 0.1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 16384,
            "rope_theta": 1000000.0,
            "rope_type": "yarn",
        },
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": 131072,
    },
    "vision_config": {"hidden_size": 1024, "model_type": "pixtral"},
}


def test_ministral_3_is_read_up_to_the_context_behind_which_its_queries_grow() -> None:
    config = DecoderConfig.from_huggingface(text_config(MINISTRAL_3_8B))
    assert config.parameters / 1e9 == pytest.approx(8.49, rel=0.01)
    assert (config.family, config.context, config.tied, config.window) == ("ministral3", 16_384, False, None)
    assert config.rope == Rope(1e6, YarnScaling(16.0, 32.0, 1.0, 16_384, True, 1.0))


def test_the_text_of_a_mistral_says_whether_the_head_is_the_embedding_unless_the_whole_model_does() -> None:
    tied = MINISTRAL_3_8B | {"text_config": MINISTRAL_3_8B["text_config"] | {"tie_word_embeddings": True}}
    assert DecoderConfig.from_huggingface(text_config(tied)).tied
    assert not DecoderConfig.from_huggingface(text_config(tied | {"tie_word_embeddings": False})).tied


def test_a_mistral_that_takes_pictures_has_one_of_two_text_parts() -> None:
    text = MINISTRAL_3_8B["text_config"] | {"rope_parameters": None, "rope_theta": 1e9}
    of_small = {name: value for name, value in text.items() if name != "model_type"}
    config = DecoderConfig.from_huggingface(text_config(MINISTRAL_3_8B | {"text_config": of_small}))
    assert (config.family, config.context, config.rope) == ("mistral", 262_144, Rope(1e9))
    for kind, named in (("mistral4", "model_type 'mistral3'"), ("ministral3", "rope_scaling or rope_theta")):
        other = {name: value for name, value in text.items() if name != "rope_theta"} | {"model_type": kind}
        with pytest.raises(UnsupportedModelError, match=named):
            DecoderConfig.from_huggingface(text_config(MINISTRAL_3_8B | {"text_config": other}))


def test_the_fields_of_the_text_part_are_read_with_the_defaults_of_huggingface() -> None:
    config = DecoderConfig.from_huggingface(text_config(GEMMA_3_12B))
    assert config.parameters / 1e9 == pytest.approx(11.77, rel=0.01)
    assert (config.vocabulary, config.context, config.head_dim, config.tied) == (262_208, 131_072, 256, True)
    assert config.ropes == (Rope(1e6, LinearScaling(8.0)), Rope(1e4))
    assert config.window is not None
    assert (config.window.size, sum(config.window.layers)) == (1024, 40)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["Gemma3ForTokenClassification"]}, "architectures"),
        ({"model_type": "gemma3n"}, "model_type 'gemma3n'"),
        ({"text_config": "all of it"}, "model_type 'gemma3'"),
    ],
)
def test_another_model_is_refused_by_the_name_of_a_field(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        DecoderConfig.from_huggingface(text_config(GEMMA_3_12B | changes))


@pytest.mark.parametrize(
    ("fields", "architecture"),
    [(GEMMA_3_12B, "Gemma3ForSequenceClassification"), (QWEN35_08B, "Qwen3_5ForSequenceClassification")],
)
def test_the_whole_model_says_what_its_classes_are(fields: dict[str, Any], architecture: str) -> None:
    """HuggingFace does not read what the text part says of them."""
    text = fields["text_config"] | {"id2label": {"0": "on", "1": "off"}, "problem_type": "multi_label_classification"}
    whole = fields | {"architectures": [architecture], "text_config": text}
    assert read_classes(text_config(whole | {"num_labels": 4})) == Classes(
        ("LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3"), Activation.SOFTMAX
    )
    found = text_config(whole | {"id2label": {"0": "good", "1": "bad", "2": "neither"}})
    assert read_classes(found) == Classes(("good", "bad", "neither"), Activation.SOFTMAX)
    config = DecoderConfig.from_huggingface(found)
    assert (config.classes, config.tied) == (3, False)


@pytest.mark.parametrize(("whole", "text"), [(True, False), (False, True), (None, False)])
def test_the_whole_model_says_whether_the_head_is_the_embedding(whole: bool | None, text: bool) -> None:
    """As in HuggingFace. It is, where it does not say so."""
    fields = GEMMA_3_12B | {"text_config": GEMMA_3_12B["text_config"] | {"tie_word_embeddings": text}}
    fields |= {} if whole is None else {"tie_word_embeddings": whole}
    assert DecoderConfig.from_huggingface(text_config(fields)).tied == (whole is not False)


@pytest.mark.parametrize("prefixes", [("language_model.model.", ""), ("model.language_model.", "model.")])
def test_the_tensors_of_the_text_part_have_the_names_of_a_model_of_text(prefixes: tuple[str, str]) -> None:
    text, others = prefixes
    stored = {
        f"{text}layers.0.mlp.up_proj.weight": 1,
        f"{text}norm.weight": 2,
        f"{others}vision_tower.layers.0.mlp.fc1.weight": 3,
        f"{others}multi_modal_projector.weight": 4,
        "unknown.weight": 5,
    }
    expected = {"model.layers.0.mlp.up_proj.weight": 1, "model.norm.weight": 2, "unknown.weight": 5}
    assert text_tensors(stored) == expected


def test_the_tensors_of_a_model_of_text_keep_their_names() -> None:
    stored = {"model.norm.weight": 1, "vision_tower.weight": 2}
    assert text_tensors(stored) == stored
