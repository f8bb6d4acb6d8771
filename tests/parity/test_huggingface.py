"""Scores against HuggingFace's implementation, computed side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from demonstration.saving import config_fields, save
from demonstration.whole_sequences import logits
from model.architecture.config import DecoderConfig
from model.architecture.decoder import Decoder
from tests.model import engines, references
from tests.model.checkpoints import CONFIGS, EVERY, VARIANTS, sequences, tensors, write
from tests.model.references import SEED, huggingface
from tests.model.references.gates import FLOAT32_LOGPROBS, OF_PROCESSORS, assert_bfloat16

pytestmark = pytest.mark.parity

DEMONSTRATION = Path(__file__).parents[2] / "demonstration" / "model"
FRESH_LENGTHS = (1, 3, 29, 32, 64, 250, 256, 700)
FAMILY_LENGTHS = (1, 3, 30, 32, 230, 250)
LABELS = (2, 19, 47, 88)
SAVED = ("tied", "gemma3", "qwen35", "qwen3 moe")
"""Checkpoints that are always saved and read by HuggingFace; `make matrix` saves the others."""
SHAPES = {
    "one head": replace(CONFIGS["untied"], query_heads=1, kv_heads=1, head_dim=64),
    "every head its own keys": replace(CONFIGS["tied"], query_heads=4, kv_heads=4),
    "deep": replace(CONFIGS["untied"], layers=6, width=48),
    "long": replace(CONFIGS["tied"], context=4096),
}


@pytest.mark.parametrize("name", EVERY)
def test_stored_references_agree_with_huggingface(name: str, tmp_path: Path) -> None:
    config = EVERY[name]
    directory = write(tmp_path, config, tensors(config, SEED))
    found = huggingface.logprobs(directory, references.rows(name), "float32")
    np.testing.assert_allclose(found, references.read(name).float32, atol=OF_PROCESSORS)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [11, pytest.param(12, marks=pytest.mark.matrix)])
def test_float32_logprobs_are_huggingfaces(shape: str, seed: int, tmp_path: Path) -> None:
    config = SHAPES[shape]
    directory = write(tmp_path, config, tensors(config, seed))
    rows = sequences(config, seed, (*FRESH_LENGTHS, config.context) if shape == "long" else FRESH_LENGTHS)
    ours = engines.logprobs(engines.load(directory, "float32"), rows)
    assert np.abs(ours - huggingface.logprobs(directory, rows, "float32")).max() <= FLOAT32_LOGPROBS


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_scores_are_as_close_as_huggingfaces_own(shape: str, tmp_path: Path) -> None:
    config = SHAPES[shape]
    directory = write(tmp_path, config, tensors(config, 13))
    rows = sequences(config, 13, FRESH_LENGTHS)
    float32, bfloat16 = (huggingface.logprobs(directory, rows, dtype) for dtype in ("float32", "bfloat16"))
    assert_bfloat16(engines.logprobs(engines.load(directory, "bfloat16"), rows), float32, bfloat16, LABELS)


def test_the_demonstration_model_scores_as_in_huggingface() -> None:
    config = DecoderConfig.from_directory(DEMONSTRATION)
    rows = sequences(config, 5, (3, 30, 32, 60, 130))
    ours = engines.logprobs(engines.load(DEMONSTRATION, "float32"), rows)
    assert np.abs(ours - huggingface.logprobs(DEMONSTRATION, rows, "float32")).max() <= FLOAT32_LOGPROBS


FIRST_OF_FAMILIES = {config.family: name for name, config in reversed(VARIANTS.items())}.values()
"""All variants are compared with what HuggingFace gave when the references were stored (tests/model/references)."""


@pytest.mark.parametrize(
    "name",
    [name if name in FIRST_OF_FAMILIES else pytest.param(name, marks=pytest.mark.matrix) for name in VARIANTS],
)
def test_every_familys_float32_logprobs_are_huggingfaces(name: str, tmp_path: Path) -> None:
    config = VARIANTS[name]
    directory = write(tmp_path, config, tensors(config, 11))
    rows = sequences(config, 11, FAMILY_LENGTHS)
    ours = engines.logprobs(engines.load(directory, "float32"), rows)
    assert np.abs(ours - huggingface.logprobs(directory, rows, "float32")).max() <= FLOAT32_LOGPROBS


@pytest.mark.parametrize("name", ["qwen2 tied", "qwen2 yarn", "llama3 scaled", "llama biased", "mistral wide heads"])
def test_a_sharded_checkpoint_that_huggingface_saves_is_loaded(name: str, tmp_path: Path) -> None:
    config = VARIANTS[name]
    huggingface.resave(write(tmp_path / "ours", config, tensors(config, 17)), tmp_path / "theirs", "60KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    rows = sequences(config, 17, (3, 30))
    ours = engines.logprobs(engines.load(tmp_path / "theirs", "float32"), rows)
    assert np.abs(ours - huggingface.logprobs(tmp_path / "theirs", rows, "float32")).max() <= FLOAT32_LOGPROBS


@pytest.mark.parametrize(
    "name", [name if name in SAVED else pytest.param(name, marks=pytest.mark.matrix) for name in EVERY]
)
def test_huggingface_loads_a_checkpoint_that_a_decoder_saves(name: str, tmp_path: Path) -> None:
    config = EVERY[name]
    decoder = Decoder(config, rngs=nnx.Rngs(3))
    save(decoder, tmp_path)
    row = sequences(config, 4, (40,))[0]
    ours = nnx.log_softmax(logits(decoder, jnp.asarray(row[None]))[0, -1])
    theirs = huggingface.logprobs(tmp_path, [row], "float32")[0]
    np.testing.assert_allclose(ours, theirs, atol=FLOAT32_LOGPROBS)


_VISION = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_WHOLE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gemma3": (
        "gemma3",
        "gemma3_text",
        {"vision_config": _VISION | {"image_size": 28, "patch_size": 14}, "mm_tokens_per_image": 4},
    ),
    "ministral3": (
        "mistral3",
        "ministral3",
        {"vision_config": _VISION | {"model_type": "pixtral", "head_dim": 8, "image_size": 28, "patch_size": 14}},
    ),
    "mistral with a window": ("mistral3", "mistral", {"vision_config": {"model_type": "pixtral"} | _VISION}),
    "tied": (
        "qwen3_vl",
        "qwen3_vl_text",
        {
            "vision_config": {
                "depth": 1,
                "hidden_size": 16,
                "intermediate_size": 32,
                "num_heads": 2,
                "out_hidden_size": 64,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0],
            }
        },
    ),
}
"""Models that take pictures, by the checkpoint that is their text part: their kinds, and their other fields."""


@pytest.mark.parametrize(
    ("name", "older_names"), [*((name, False) for name in _WHOLE), ("gemma3", True), ("ministral3", True)]
)
def test_the_text_part_of_a_model_that_takes_pictures_is_huggingfaces(
    name: str, older_names: bool, tmp_path: Path
) -> None:
    import torch  # type: ignore[import-not-found,unused-ignore]
    from transformers import AutoConfig, AutoModelForImageTextToText

    kind, kind_of_text, others = _WHOLE[name]
    text = config_fields(EVERY[name]) | {"pad_token_id": 0, "model_type": kind_of_text}
    tied = {"tie_word_embeddings": EVERY[name].tied}
    config = AutoConfig.for_model(kind, text_config=text, image_token_index=95, image_token_id=95, **others, **tied)
    whole: Any = AutoModelForImageTextToText.from_config(config)  # type: ignore[no-untyped-call]
    whole.train(False)
    weights_of_text = {each: torch.tensor(value) for each, value in tensors(EVERY[name], SEED).items()}
    if "lm_head.weight" in weights_of_text:
        whole.lm_head.load_state_dict({"weight": weights_of_text.pop("lm_head.weight")})
    whole.model.language_model.load_state_dict(
        {each.removeprefix("model."): value for each, value in weights_of_text.items()}
    )
    whole.save_pretrained(tmp_path)
    if older_names:
        path = tmp_path / "model.safetensors"
        stored = {_older(each): value for each, value in load_file(path).items()}
        save_file(stored, path, metadata={"format": "pt"})
    rows = sequences(EVERY[name], 15, FAMILY_LENGTHS)
    rows = [np.minimum(row, 94) for row in rows]
    ours = engines.logprobs(engines.load(tmp_path, "float32"), rows)
    with torch.inference_mode():
        logits = [whole(torch.tensor(row[None].astype(np.int64))).logits[0, -1] for row in rows]
    assert np.abs(ours - torch.log_softmax(torch.stack(logits), dim=-1).numpy()).max() <= FLOAT32_LOGPROBS


def _older(name: str) -> str:
    """Return the name of a tensor in the files that were published first."""
    if name.startswith("model.language_model."):
        return name.replace("model.language_model.", "language_model.model.", 1)
    return f"language_model.{name}" if name.startswith("lm_head.") else name.removeprefix("model.")
