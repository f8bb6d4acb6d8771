"""Checkpoints that take pictures, too, are read as their text part."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoints.text_part import text_config, text_tensors
from model.architecture.config import DecoderConfig
from model.architecture.configuration_reader import UnsupportedModelError
from model.architecture.rope import LinearScaling, Rope

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
        ({"architectures": ["Gemma3ForSequenceClassification"]}, "architectures"),
        ({"model_type": "gemma3n"}, "model_type 'gemma3n'"),
        ({"text_config": "all of it"}, "model_type 'gemma3'"),
    ],
)
def test_another_model_is_refused_by_the_name_of_a_field(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        DecoderConfig.from_huggingface(text_config(GEMMA_3_12B | changes))


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
