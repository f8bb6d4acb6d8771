"""A model of every family: from its folder to scores over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreline.client import Client
from tests.end_to_end.deployment import KEY, Deployment
from tests.end_to_end.small_models import ITEMS, LABELS, QUERY, add_weights, expected_scores
from tests.scoring.tokenizing.tokenizer_families import Family, gemma3, gpt_oss, llama3, mistral_v03, qwen2_5, qwen3_5
from tests.services import RedisServer

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES: dict[str, tuple[Callable[[Path], Family], dict[str, Any]]] = {
    "qwen2": (qwen2_5, {"architectures": ["Qwen2ForCausalLM"], "rope_theta": 1e6, "tie_word_embeddings": True}),
    "llama": (llama3, {"architectures": ["LlamaForCausalLM"], "rope_theta": 5e5, "rope_scaling": LLAMA3_ROPE}),
    "mistral": (mistral_v03, {"architectures": ["MistralForCausalLM"], "sliding_window": None, "head_dim": 32}),
    "gemma3": (
        gemma3,
        {"architectures": ["Gemma3ForCausalLM"], "head_dim": 16, "sliding_window": 4, "sliding_window_pattern": 2},
    ),
    "gpt-oss": (
        gpt_oss,
        {
            "architectures": ["GptOssForCausalLM"],
            "head_dim": 16,
            "sliding_window": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_theta": 150_000,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
            "seed": 1,  # whose weights make the labels probable
        },
    ),
    "qwen3.5": (
        qwen3_5,
        {
            "architectures": ["Qwen3_5ForCausalLM"],
            "head_dim": 32,
            "full_attention_interval": 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
    ),
}
"""A Qwen3 is served by test_hub_model.py."""
FEW = ("gemma3", "qwen3.5")
"""Families of which a model is always served; `make matrix` serves those of the others."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.matrix) for name in FAMILIES]
)
def test_a_model_of_every_family_is_served_from_its_folder(
    name: str, tmp_path: Path, sqlite_url: str, redis_server: RedisServer
) -> None:
    """By the API and a worker. That `scoreline up` serves a model is shown by test_hub_model.py."""
    tokenizer, fields = FAMILIES[name]
    directory = add_weights(tokenizer(tmp_path / f"tiny-{name}").directory, **fields)
    deployment = Deployment(tmp_path, sqlite_url, redis_server.url, model=directory, dtype="float32")
    del deployment.environment["SCORELINE_MODEL_NAME"]
    with deployment:
        processes = [deployment.start_worker(), deployment.start_api()]
        with Client(str(deployment.client.base_url), api_key=KEY) as client:
            (served,) = client.models()
            result = client.score(QUERY, ITEMS, labels=LABELS)
        assert served.id == f"tiny-{name}"
        np.testing.assert_allclose(result.scores, expected_scores(directory, QUERY, ITEMS, LABELS), rtol=1e-5)
        assert np.ptp(result.scores) > 1e-4
        for process in processes:
            process.terminate()
        assert [process.wait(20) for process in processes] == [0, 0]
    assert "Traceback" not in deployment.log("worker") + deployment.log("api")
