"""What is said of a checkpoint before it is loaded is what its weights turn out to be."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from checkpoints.files import CheckpointError
from demonstration.saving import config_fields
from model.architecture.config import DecoderConfig
from model.architecture.weights import tensor_shapes
from model.inspection import Inspection
from tests.api.tiny_model import make_classifier_directory
from tests.model.architecture.stored.writers import write_adapter
from tests.model.checkpoints import CLASSIFIERS, EVERY
from tests.model.decisions.heads import HEADS, write_head
from tests.model.reranking.rerankers import write_checkpoint
from tests.scoreline.running import scoreline


@pytest.mark.parametrize("name", [*EVERY, *CLASSIFIERS])
def test_parameters_are_counted_as_the_weights_have_them(name: str) -> None:
    config = (EVERY | CLASSIFIERS)[name]
    assert config.parameters == sum(math.prod(shape) for shape in tensor_shapes(config).values())


def test_a_checkpoint_is_described_without_its_weights(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "Qwen3-Reranker-tiny", "qwen3-reranker")
    (directory / "model.safetensors").unlink()
    found = Inspection.of(str(directory), None, None)
    assert (found.name, found.family, found.classes, found.stored) == ("Qwen3-Reranker-tiny", "qwen3", (), "plain")
    assert (found.template, found.decisions[:5]) == ("qwen3-reranker", "none:")
    assert found.weight_bytes == 2 * found.parameters
    text = "\n".join(found.lines())
    assert "a head for next tokens" in text
    assert "adapter" not in text
    adapter = write_adapter(tmp_path / "judge", {"base_model.model.model.norm.weight": np.ones(64, np.float32)})
    with_adapter = Inspection.of(str(directory), None, str(adapter))
    assert (with_adapter.name, with_adapter.adapter, with_adapter.parameters) == ("judge", "judge", found.parameters)
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LOHA"}))
    with pytest.raises(CheckpointError, match="LOHA"):
        Inspection.of(str(directory), None, str(adapter))


def test_a_mixture_takes_memory_for_all_experts_and_computes_a_token_with_some(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "mixture", "qwen3-reranker")
    fields = json.loads((directory / "config.json").read_text())
    mixed = config_fields(EVERY["qwen3 moe"]) | {"vocab_size": fields["vocab_size"]}
    (directory / "config.json").write_text(json.dumps(mixed))
    found = Inspection.of(str(directory), None, None)
    kernels = 3 * 64 * 48 * 2  # of an expert in both layers
    assert found.parameters - found.parameters_of_a_token == 6 * kernels
    assert found.weight_bytes == 2 * found.parameters
    assert "of them for each token" in "\n".join(found.lines())


def test_a_decision_head_is_described_by_what_it_can_answer(tmp_path: Path) -> None:
    directory = write_head(tmp_path / "judge", HEADS["slots behind a soft cap and an adapter"])
    found = Inspection.of(str(directory), None, None)
    config = DecoderConfig.from_directory(directory)
    assert found.parameters == sum(math.prod(shape) for shape in tensor_shapes(config).values())
    assert (found.name, found.adapter, found.template, len(found.classes)) == ("judge", "adapter", None, 24)
    text = "\n".join(found.lines())
    assert "a head for decisions (24 labels)" in text
    assert "with at most so many options: 2 for noul, 16 for choice, 6 for score" in text
    (directory / "decision_config.json").write_text(json.dumps({"codes": ["A"], "pooling": "mean"}))
    with pytest.raises(CheckpointError, match="pooling 'mean'"):
        Inspection.of(str(directory), None, None)


def test_the_command_says_why_a_checkpoint_is_refused_and_ends_with_1(tmp_path: Path) -> None:
    directory = make_classifier_directory(tmp_path / "model", num_labels=3)
    refused = scoreline("check", "--model", str(directory), "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stdout) == {"served": False, "reason": "config.json lacks hidden_size"}
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 96}
    fields = json.loads((directory / "config.json").read_text()) | sizes | {"rms_norm_eps": 1e-6}
    (directory / "config.json").write_text(json.dumps(fields))
    served = scoreline("check", "--model", str(directory))
    assert served.returncode == 0, served.stderr
    assert "a head for 3 classes (softmax)" in served.stdout
    assert "no template is known to suit" in served.stdout
    assert scoreline("check", "--adapters", "a").returncode == 2
