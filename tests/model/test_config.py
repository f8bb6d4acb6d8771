"""A configuration is read as HuggingFace reads it, or refused by the field's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from model.config import DecoderConfig, UnsupportedModelError
from tests.model.checkpoints import CONFIGS

FIELDS = CONFIGS["tied"].to_huggingface()


def read(**changes: Any) -> DecoderConfig:
    return DecoderConfig.from_huggingface(FIELDS | changes)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_what_is_written_reads_back_the_same(config: DecoderConfig) -> None:
    assert DecoderConfig.from_huggingface(config.to_huggingface()) == config


def test_the_rotary_base_is_read_from_its_new_place_first() -> None:
    assert read(rope_theta=1.0, rope_parameters={"rope_type": "default", "rope_theta": 5e5}).rope_theta == 5e5


def test_the_rotary_base_is_read_from_its_old_place_too() -> None:
    assert read(rope_theta=7e5, rope_parameters=None, rope_scaling=None).rope_theta == 7e5


def test_a_left_out_head_dim_is_huggingfaces_default() -> None:
    fields = {name: value for name, value in FIELDS.items() if name != "head_dim"}
    assert DecoderConfig.from_huggingface(fields).head_dim == 128


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'"),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, "architectures"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling: rope_type 'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}}, "rope_parameters: rope_type 'llama3'"),
        ({"rope_parameters": {"rope_theta": 1.0, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"head_dim": 31}, "head_dim 31"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": True}, "vocab_size"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        read(**changes)


@pytest.mark.parametrize("field", ["hidden_size", "rms_norm_eps", "num_key_value_heads"])
def test_a_missing_field_is_named(field: str) -> None:
    fields = {name: value for name, value in FIELDS.items() if name != field}
    with pytest.raises(UnsupportedModelError, match=f"lacks '{field}'"):
        DecoderConfig.from_huggingface(fields)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_missing_or_broken_file_is_one_clear_error(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UnsupportedModelError, match=r"config\.json"):
        DecoderConfig.from_directory(tmp_path)
