"""Public checkpoints, by the fields of their ``config.json``: each is served, or refused by the name of a field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkpoints.text_part import text_config
from model.architecture.config import DecoderConfig
from model.architecture.configuration_reader import UnsupportedModelError

PUBLIC: dict[str, dict[str, Any]] = {
    one["name"]: one["config"]
    for line in (Path(__file__).parent / "public_configurations.jsonl").read_text(encoding="utf-8").splitlines()
    if (one := json.loads(line))
}
"""Configurations by the names of their checkpoints. Where each was found stands beside it."""

SERVED = {
    "Qwen/Qwen3-0.6B": 0.6,
    "Qwen/Qwen3-1.7B": 1.7,
    "Qwen/Qwen3-8B": 8.2,
    "Qwen/Qwen3-32B": 32.8,
    "Qwen/Qwen3-32B-FP8": 32.8,
    "meta-llama/Meta-Llama-3.1-8B": 8.0,
    "meta-llama/Meta-Llama-3.1-70B": 70.6,
    "meta-llama/Meta-Llama-3.1-405B": 406.0,
    "microsoft/phi-4": 14.7,
    "Qwen/Qwen3.5-27B": 27.0,
    "Qwen/Qwen3.5-35B-A3B": 35.0,
    "Qwen/Qwen3-VL-2B-Instruct": 1.7,
    "Qwen/Qwen3-30B-A3B": 30.5,
    "openai/gpt-oss-20b": 20.9,
    "openai/gpt-oss-120b": 116.8,
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": 480.0,
}
"""Those that are served, and how many billions of parameters their publishers say that they have.

Qwen3-VL-2B has those of Qwen3-1.7B beside what sees pictures."""

BY_FIELD = {"Qwen/Qwen3-32B-FP8-Static-PerTensor": "quantization_config.quant_method None"}
"""Those of a served family that are refused. All others are refused by their family."""


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_checkpoint_is_served_or_refused_by_the_name_of_a_field(name: str) -> None:
    fields = text_config(PUBLIC[name])
    if name in SERVED:
        assert DecoderConfig.from_huggingface(fields).parameters / 1e9 == pytest.approx(SERVED[name], rel=0.02)
        return
    named = BY_FIELD.get(name, f"model_type '{fields['model_type']}' is not implemented")
    with pytest.raises(UnsupportedModelError, match=named):
        DecoderConfig.from_huggingface(fields)


def test_every_configuration_has_its_source() -> None:
    lines = (Path(__file__).parent / "public_configurations.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(PUBLIC) == 30
    assert SERVED.keys() | BY_FIELD.keys() <= PUBLIC.keys()
    assert all(json.loads(line)["source"].startswith("github.com/") for line in lines)
