"""Configurations as they are published, with all of their fields, are read to the right geometry or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints.files import context_length
from demonstration.saving import config_fields, rope_fields, scaling_fields
from model.architecture.config import DecoderConfig
from model.architecture.configuration_reader import UnsupportedModelError
from model.architecture.families import FAMILIES
from model.architecture.rope import Llama3Scaling, Rope
from model.architecture.windows import Window
from tests.model import engines, references
from tests.model.architecture.test_public_checkpoints import PUBLIC
from tests.model.checkpoints import EVERY
from tests.model.references.gates import FLOAT32_LOGPROBS

_EVERY: dict[str, Any] = {"attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02, "use_cache": True}
_LLAMA: dict[str, Any] = _EVERY | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "bos_token_id": 128000,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}
_LLAMA3_ROPE = {
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
_MISTRAL: dict[str, Any] = _EVERY | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LLAMA_3_8B: dict[str, Any] = _LLAMA | {
    "eos_token_id": 128001,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_hidden_layers": 32,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "transformers_version": "4.40.0.dev0",
}
LLAMA_3_1_8B_INSTRUCT: dict[str, Any] = _LLAMA | {
    "eos_token_id": [128001, 128008, 128009],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_hidden_layers": 32,
    "rope_scaling": _LLAMA3_ROPE | {"factor": 8.0},
    "tie_word_embeddings": False,
    "transformers_version": "4.42.3",
}
LLAMA_3_2_1B: dict[str, Any] = _LLAMA | {
    "eos_token_id": 128001,
    "head_dim": 64,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_hidden_layers": 16,
    "rope_scaling": _LLAMA3_ROPE | {"factor": 32.0},
    "tie_word_embeddings": True,
    "transformers_version": "4.45.0.dev0",
}
LLAMA_2_7B: dict[str, Any] = _EVERY | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vocab_size": 32000,
}
MISTRAL_7B_V01: dict[str, Any] = _MISTRAL | {"rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 32000}
MISTRAL_7B_V03: dict[str, Any] = _MISTRAL | {"rope_theta": 1000000.0, "sliding_window": None, "vocab_size": 32768}
QWEN2_5_7B: dict[str, Any] = _EVERY | {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
_LLAMA_3_1_ROPE = Rope(5e5, Llama3Scaling(8.0, 1.0, 4.0, 8192))
_LLAMA_3_2_ROPE = Rope(5e5, Llama3Scaling(32.0, 1.0, 4.0, 8192))
PUBLISHED: dict[str, tuple[dict[str, Any], DecoderConfig]] = {
    "Llama-2-7B": (
        LLAMA_2_7B,
        DecoderConfig(32000, 4096, 32, 32, 32, 128, 11008, 4096, Rope(1e4), 1e-5, False, "llama"),
    ),
    "Llama-3-8B": (
        LLAMA_3_8B,
        DecoderConfig(128256, 4096, 32, 32, 8, 128, 14336, 8192, Rope(5e5), 1e-5, False, "llama"),
    ),
    "Llama-3.1-8B-Instruct": (
        LLAMA_3_1_8B_INSTRUCT,
        DecoderConfig(128256, 4096, 32, 32, 8, 128, 14336, 131072, _LLAMA_3_1_ROPE, 1e-5, False, "llama"),
    ),
    "Llama-3.2-1B": (
        LLAMA_3_2_1B,
        DecoderConfig(128256, 2048, 16, 32, 8, 64, 8192, 131072, _LLAMA_3_2_ROPE, 1e-5, True, "llama"),
    ),
    "Mistral-7B-v0.3": (
        MISTRAL_7B_V03,
        DecoderConfig(32768, 4096, 32, 32, 8, 128, 14336, 32768, Rope(1e6), 1e-5, False, "mistral"),
    ),
    "Qwen2.5-7B": (
        QWEN2_5_7B,
        DecoderConfig(152064, 3584, 28, 28, 4, 128, 18944, 131072, Rope(1e6), 1e-6, False, "qwen2"),
    ),
    "Qwen3-0.6B": (
        PUBLIC["Qwen/Qwen3-0.6B"],
        DecoderConfig(151936, 1024, 28, 16, 8, 128, 3072, 40960, Rope(1e6), 1e-6, True, "qwen3"),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_read(name: str) -> None:
    fields, expected = PUBLISHED[name]
    assert DecoderConfig.from_huggingface(fields) == expected
    assert context_length(fields) == expected.context


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_base_beside_both_forms_of_the_rotary_positions_is_read(name: str) -> None:
    """Libraries of different ages write both forms into one file."""
    fields, expected = PUBLISHED[name]
    both = fields | {"rope_parameters": rope_fields(expected.rope)}
    assert DecoderConfig.from_huggingface(both) == expected


@pytest.mark.parametrize("left_out", [False, True], ids=["named", "left out"])
def test_the_window_of_the_first_mistral_is_read(left_out: bool) -> None:
    """HuggingFace's default is the same window."""
    fields = {name: value for name, value in MISTRAL_7B_V01.items() if not (left_out and name == "sliding_window")}
    assert DecoderConfig.from_huggingface(fields).window == Window(4096, (True,) * 32)


def test_a_window_that_a_llama_names_is_refused_unless_it_is_as_long_as_the_context() -> None:
    fields, expected = PUBLISHED["Llama-3-8B"]
    assert DecoderConfig.from_huggingface(fields | {"sliding_window": 8192}) == expected
    with pytest.raises(UnsupportedModelError, match="sliding_window 4096 is not implemented for llama"):
        DecoderConfig.from_huggingface(fields | {"sliding_window": 4096})


def test_windows_that_are_left_out_are_huggingfaces() -> None:
    transformers = pytest.importorskip("transformers")
    for name, family in FAMILIES.items():
        defaults = transformers.AutoConfig.for_model(name, use_sliding_window=True)
        default = None if family.windows is None else family.windows.default
        assert default == getattr(defaults, "sliding_window", None), name


def test_a_checkpoint_with_the_fields_of_llama_3_2_scores_as_in_huggingface(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """The reference's model, whose positions are stretched, under the fields and the context of the published one."""
    name, context = "llama3 scaled", 131_072
    config = EVERY[name]
    assert isinstance(config.rope.scaling, Llama3Scaling)
    written = config_fields(config)
    fields = {field: written.get(field, value) for field, value in LLAMA_3_2_1B.items()}
    scaling = scaling_fields(config.rope.scaling)
    (tmp_path / "config.json").write_text(
        json.dumps(fields | {"max_position_embeddings": context, "rope_scaling": scaling})
    )
    (tmp_path / "model.safetensors").symlink_to(checkpoint(name) / "model.safetensors")
    assert DecoderConfig.from_directory(tmp_path) == replace(config, context=context)
    # Serving the reference's context takes the programs that other tests compile.
    engine = engines.load(tmp_path, "float32", context=config.context, step_tokens=64)
    found = engines.logprobs(engine, references.rows(name))
    assert np.abs(found - references.read(name).float32).max() <= FLOAT32_LOGPROBS
