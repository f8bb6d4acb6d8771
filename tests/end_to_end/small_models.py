"""Tiny models with a tokenizer, as repositories hold them, and the scores that the engine gives them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from checkpoints.files import read_model_card
from model.architecture.config import DecoderConfig
from model.engine import Engine
from model.platforms import Platform
from scoring.conversion import to_scores
from scoring.layout import ChunkWork, GroupWork, Head
from scoring.tokenizing.tokenization import TextTokenizer
from settings.engine import EngineSettings
from tests.model.checkpoints import tensors

QUERY, ITEMS, LABELS = "The answer is", [" Yes", " positive or negative: 12", ""], [" Yes", " No"]


def add_weights(directory: Path, *, seed: int = 7, **fields: Any) -> Path:
    """Complete a folder with a tokenizer and the beginnings of a config.json to a model."""
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
    }
    written = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(written | sizes | fields))
    save_file(tensors(DecoderConfig.from_directory(directory), seed=seed), directory / "model.safetensors")
    return directory


def expected_scores(
    directory: Path, query: str, items: list[str], labels: list[str], adapter: Path | None = None
) -> np.ndarray:
    """Return scores, float32 [items, labels], computed by the engine directly. adapter: merged into the weights."""
    tokenizer = TextTokenizer.load(directory)
    card = read_model_card(directory, None, None, tokenizer)
    prefix, rows = tokenizer.encode_rows(query, items)
    label_ids = tuple(tokenizer.single_token(label) for label in labels)
    group = GroupWork("only", prefix, (ChunkWork(0, rows, label_ids, Head.LOGPROBS),))
    platform = Platform.of(jax.devices()[0])
    engine = Engine.load(directory, EngineSettings(dtype="float32"), card, platform, adapter=adapter)
    (scored,) = engine.score([group], lambda: None)
    return to_scores(scored.scores, False)
