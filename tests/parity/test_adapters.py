"""Adapters against PEFT: scores of a base with a merged adapter, computed side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import peft  # type: ignore[import-not-found,unused-ignore]
import pytest
import torch  # type: ignore[import-not-found,unused-ignore]
from transformers import AutoModelForCausalLM

from tests.model import engines
from tests.model.checkpoints import VARIANTS, sequences, tensors, write
from tests.model.references import SEED, huggingface
from tests.model.references.gates import FLOAT32_LOGPROBS

pytestmark = pytest.mark.parity

LENGTHS = (1, 3, 30, 65, 230)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("llama biased", {"target_modules": ["q_proj", "v_proj"], "r": 8, "lora_alpha": 16}),
        ("qwen2 tied", {"target_modules": "all-linear", "r": 6, "lora_alpha": 3, "use_rslora": True}),
        (
            "mistral",
            {
                "target_modules": r".*layers\.1\..*_proj",
                "r": 4,
                "rank_pattern": {"down_proj": 2, "layers.1.mlp.gate_proj": 3},
                "alpha_pattern": {"down_proj": 9},
                "modules_to_save": ["lm_head", "embed_tokens"],
            },
        ),
        ("qwen3 biased", {"target_modules": ["o_proj", "lm_head"], "layers_to_transform": [1]}),
        (
            "phi3",
            {
                "target_modules": ["qkv_proj", "gate_up_proj", "down_proj"],
                "r": 4,
                "rank_pattern": {"qkv_proj": 6},
                "alpha_pattern": {"gate_up_proj": 5},
            },
        ),
    ],
)
def test_scores_are_those_of_the_merged_model(name: str, fields: dict[str, Any], tmp_path: Path) -> None:
    config = VARIANTS[name]
    base = write(tmp_path / "base", config, tensors(config, SEED))
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted: Any = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **fields))
    with torch.no_grad():
        for parameter in (one for one in adapted.parameters() if one.requires_grad):
            parameter.add_(0.1 * torch.randn_like(parameter))
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    rows = sequences(config, 19, LENGTHS)
    expected = huggingface.logprobs(tmp_path / "merged", rows, "float32")
    ours = engines.logprobs(engines.load(base, "float32", adapter=tmp_path / "adapter"), rows)
    assert np.abs(ours - expected).max() <= FLOAT32_LOGPROBS
    assert np.abs(expected - huggingface.logprobs(base, rows, "float32")).max() > 100 * FLOAT32_LOGPROBS
    if "modules_to_save" not in fields and "lm_head" not in fields["target_modules"]:
        (tmp_path / "folder").mkdir()
        (tmp_path / "adapter").rename(tmp_path / "folder" / "mine")
        engine = engines.load(base, "float32", adapters=tmp_path / "folder")
        for length in (0, 40):
            named = engines.logprobs(engine, rows, lambda whole, most=length: min(whole - 1, most), "mine")  # type: ignore[misc]
            assert np.abs(named - expected).max() <= FLOAT32_LOGPROBS
