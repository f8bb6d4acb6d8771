"""The text part of checkpoints that take pictures, too: its configuration, and its tensors among all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from checkpoints.classification import FIELDS

Tensor = TypeVar("Tensor")

SAVED = "jev"
"""The ``model_type`` of a model with a decision head that transformers has saved: its body is its text part."""


class _TextPart(NamedTuple):
    """How a family of such checkpoints names its text part."""

    classes: Mapping[str, str]  # those of the whole model, and those of its text part that compute the same
    is_tied: bool | None  # whether the head is the embedding, where the whole model is silent; None: its text says so
    defaults: Mapping[str, Any]  # of HuggingFace, since published files leave out what is one


_TEXT_PARTS = {
    ("gemma3", "gemma3_text"): _TextPart(
        {
            "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
            "Gemma3ForSequenceClassification": "Gemma3TextForSequenceClassification",
        },
        True,
        {
            "model_type": "gemma3_text",
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-6,
        },
    ),
    ("qwen3_5", "qwen3_5_text"): _TextPart(
        {
            "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
            "Qwen3_5ForSequenceClassification": "Qwen3_5TextForSequenceClassification",
        },
        False,
        {
            "model_type": "qwen3_5_text",
            "vocab_size": 248_320,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 32_768,
            "rms_norm_eps": 1e-6,
        },
    ),
    ("qwen3_5_moe", "qwen3_5_moe_text"): _TextPart(
        {"Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM"},
        False,
        {
            "model_type": "qwen3_5_moe_text",
            "vocab_size": 248_320,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "max_position_embeddings": 32_768,
            "rms_norm_eps": 1e-6,
            "moe_intermediate_size": 512,
            "num_experts": 256,
            "num_experts_per_tok": 8,
        },
    ),
    # Where there are no pictures, its positions are those of Qwen3.
    ("qwen3_vl", "qwen3_vl_text"): _TextPart(
        {"Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM"},
        False,
        {
            "model_type": "qwen3",
            "vocab_size": 151_936,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "head_dim": 128,
            "max_position_embeddings": 128_000,
            "rms_norm_eps": 1e-6,
            "rope_theta": 500_000.0,
        },
    ),
    ("mistral3", "mistral"): _TextPart(
        {"Mistral3ForConditionalGeneration": "MistralForCausalLM"}, None, {"model_type": "mistral"}
    ),
    ("mistral3", "ministral3"): _TextPart(
        {"Mistral3ForConditionalGeneration": "Ministral3ForCausalLM"}, None, {"model_type": "ministral3"}
    ),
}
"""By the ``model_type`` of the whole model and that of its text part. A text part that names none has the first one."""

_OF_WHOLE = ("quantization_config", *FIELDS)
"""The fields of the whole model that say something of its text part or of its head."""

_PREFIXES = {"language_model.model.": "model.", "model.language_model.": "model.", "language_model.lm_head": "lm_head"}
"""How the names of the text part's tensors begin, in older and newer files, and how they begin in a model of text."""
_OTHER_PARTS = (
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
    "model.visual.",
)


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the text part's configuration, or the same ones where there is no other part."""
    if config.get("model_type") == SAVED and isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    text, kinds = config.get("text_config"), [kind for kind in _TEXT_PARTS if kind[0] == config.get("model_type")]
    if not kinds or not isinstance(text, dict):
        return config
    part = _TEXT_PARTS.get((kinds[0][0], str(text.get("model_type", kinds[0][1]))))
    if part is None:
        return config
    named = config.get("architectures")
    is_tied = text.get("tie_word_embeddings", False) if part.is_tied is None else part.is_tied
    of_whole = {name: config[name] for name in _OF_WHOLE if name in config} | {
        "architectures": [part.classes.get(str(name), name) for name in named] if isinstance(named, list) else named,
        "tie_word_embeddings": config.get("tie_word_embeddings", is_tied),
        "model_type": part.defaults["model_type"],
    }
    # HuggingFace does not read what the text part says of classes.
    of_text = {name: each for name, each in text.items() if name not in FIELDS}
    return {**part.defaults, **of_text, **of_whole}


def text_tensors(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the tensors of the text part by the names that they would have without the others."""
    renamed = {name: new for name in tensors if (new := _renamed(name)) != name}
    if not renamed:
        return tensors
    return {renamed.get(name, name): each for name, each in tensors.items() if not name.startswith(_OTHER_PARTS)}


def _renamed(name: str) -> str:
    for old, new in _PREFIXES.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
