"""``scoreline up --model DIR`` with a model of every family: from the folder to scores over HTTP."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreline.client import Client
from tests.end_to_end.small_models import ITEMS, LABELS, QUERY, add_weights, expected_scores
from tests.scoreline.running import REAL, Up
from tests.scoring.tokenizer_families import Family, llama3, mistral_v03, qwen2_5, qwen3

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES: dict[str, tuple[Callable[[Path], Family], dict[str, Any]]] = {
    "qwen3": (qwen3, {"architectures": ["Qwen3ForCausalLM"], "head_dim": 32, "tie_word_embeddings": True}),
    "qwen2": (qwen2_5, {"architectures": ["Qwen2ForCausalLM"], "rope_theta": 1e6, "tie_word_embeddings": True}),
    "llama": (llama3, {"architectures": ["LlamaForCausalLM"], "rope_theta": 5e5, "rope_scaling": LLAMA3_ROPE}),
    "mistral": (mistral_v03, {"architectures": ["MistralForCausalLM"], "sliding_window": None, "head_dim": 32}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_of_every_family_is_served_from_its_folder(name: str, tmp_path: Path) -> None:
    tokenizer, fields = FAMILIES[name]
    directory = add_weights(tokenizer(tmp_path / f"tiny-{name}").directory, **fields)
    up = Up(
        directory,
        tmp_path / "up",
        command=REAL,
        SCORELINE_MULTI_ITEM_ENABLE_STARTUP_WARMUP="false",
        SCORELINE_DTYPE="float32",
    )
    try:
        up.wait_until_ready()
        with Client(up.url) as client:
            (served,) = client.models()
            result = client.score(QUERY, ITEMS, labels=LABELS)
        assert served.id == f"tiny-{name}"
        np.testing.assert_allclose(result.scores, expected_scores(directory, QUERY, ITEMS, LABELS), rtol=1e-5)
        assert np.ptp(result.scores) > 1e-4
        assert up.end(signal.SIGTERM) == 0
    finally:
        up.close()
    assert "Traceback" not in up.output
