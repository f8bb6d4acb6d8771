"""A worker refuses a checkpoint that can't be served: it logs the cause, and exits with status 2."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model.architecture.config import DecoderConfig
from tests.forked.running import WORKER, run
from tests.model.architecture.stored.writers import write_adapter
from tests.model.checkpoints import tensors
from tests.scoring.tokenizing.tokenizer_families import qwen3

ROOT = Path(__file__).parents[4]
WEIGHTS = "model.safetensors"
Break = Callable[[Path], None]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A tiny Qwen3 that can be served."""
    directory = qwen3(tmp_path / "tiny").directory
    written = json.loads((directory / "config.json").read_text())
    fields = {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 48,
        "rope_theta": 1e4,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    }
    (directory / "config.json").write_text(json.dumps(written | fields))
    found = tensors(DecoderConfig.from_directory(directory), 0)
    save_file(found, directory / WEIGHTS)
    return directory


def with_fields(**changes: Any) -> Break:
    """Change fields of config.json; None removes a field."""

    def broken(directory: Path) -> None:
        fields = json.loads((directory / "config.json").read_text()) | changes
        kept = {name: value for name, value in fields.items() if value is not None}
        (directory / "config.json").write_text(json.dumps(kept))

    return broken


def with_tensor(name: str, tensor: np.ndarray | None) -> Break:
    """Replace a tensor, or remove it."""

    def broken(directory: Path) -> None:
        found = load_file(directory / WEIGHTS)
        found.pop(name, None)
        save_file(found | ({} if tensor is None else {name: tensor}), directory / WEIGHTS)

    return broken


def with_file(name: str, content: bytes | None) -> Break:
    """Replace a file, or remove it."""

    def broken(directory: Path) -> None:
        (directory / name).unlink(missing_ok=True)
        if content is not None:
            (directory / name).write_bytes(content)

    return broken


def truncated(directory: Path) -> None:
    content = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(content[: len(content) // 2])


def lacking_a_shard(directory: Path) -> None:
    index = {"weight_map": dict.fromkeys(load_file(directory / WEIGHTS), "model-00001-of-00002.safetensors")}
    (directory / WEIGHTS).unlink()
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def only_pickled(directory: Path) -> None:
    (directory / WEIGHTS).rename(directory / "pytorch_model.bin")


NORM = "model.norm.weight"
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
BROKEN: dict[str, tuple[Break, str]] = {
    "a tensor is missing": (with_tensor(NORM, None), f"missing: {NORM}"),
    "an unknown tensor": (with_tensor("model.extra.weight", np.zeros(3, np.float32)), "unknown: model.extra.weight"),
    "a tensor of another shape": (
        with_tensor(Q_PROJ, np.zeros((64, 31), np.float32)),
        f"shape of {Q_PROJ}: [64, 31] in the file, [64, 32] by config.json",
    ),
    "a quantised tensor": (with_tensor(Q_PROJ, np.zeros((64, 32), np.int8)), f"dtype of {Q_PROJ}: I8"),
    "truncated weights": (truncated, "can't be read"),
    "a shard is missing": (lacking_a_shard, "model-00001-of-00002.safetensors"),
    "no safetensors": (only_pickled, "holds neither model.safetensors nor model.safetensors.index.json"),
    "another architecture": (with_fields(model_type="mamba2"), "model_type 'mamba2' is not implemented"),
    "another head": (with_fields(architectures=["Qwen3ForSequenceClassification"]), "missing: score.weight"),
    "layers of another kind": (
        with_fields(layer_types=["full_attention", "chunked_attention"]),
        "layer_types ['full_attention', 'chunked_attention'] is not implemented",
    ),
    "quantised by configuration": (with_fields(quantization_config={"quant_method": "awq"}), "quantization_config"),
    "other rotary positions": (
        with_fields(rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
        "rope_scaling.rope_type 'dynamic'",
    ),
    "a size that is none": (with_fields(hidden_size=-32), "hidden_size must be an integer from 1 up, not -32"),
    "heads that do not divide": (with_fields(num_key_value_heads=3), "num_key_value_heads 3"),
    "a size is missing": (with_fields(num_hidden_layers=None), "config.json lacks num_hidden_layers"),
    "no configuration": (with_file("config.json", None), "config.json"),
    "a broken configuration": (with_file("config.json", b"{"), "config.json can't be read"),
    "no tokenizer": (with_file("tokenizer.json", None), "tokenizer"),
    "a broken tokenizer": (with_file("tokenizer.json", b'{"model": 1}'), "tokenizer"),
    "no folder": (shutil.rmtree, "does not exist"),
    "another model's tokenizer": (with_fields(vocab_size=50), "vocab_size is 50"),
    "another vocabulary": (with_fields(vocab_size=50_000), "shape of model.embed_tokens.weight"),
}
QUICK = ("a tensor of another shape", "another architecture", "a broken tokenizer")
"""One fault each of the weights, the configuration and the tokenizer. `make slow` runs the others."""


@pytest.mark.parametrize(
    "fault", [fault if fault in QUICK else pytest.param(fault, marks=pytest.mark.slow) for fault in BROKEN]
)
def test_a_broken_checkpoint_is_refused_with_its_cause(fault: str, checkpoint: Path, tmp_path: Path) -> None:
    spoil, cause = BROKEN[fault]
    spoil(checkpoint)
    ended = run("-m", "workers.engine_loop", imports=WORKER, environment=variables(checkpoint, tmp_path))
    assert ended.returncode == 2
    lines = ended.stderr.splitlines()
    reason = json.loads(lines[-1])
    assert reason["event"] == "can't start"
    assert reason["reason"].startswith(f"SCORELINE_MODEL is '{checkpoint}': ")
    assert cause in reason["reason"]
    assert "\n" not in reason["reason"]
    assert "Traceback" not in ended.stdout + ended.stderr


@pytest.mark.slow
def test_an_adapter_that_is_not_there_is_refused_by_its_setting(checkpoint: Path, tmp_path: Path) -> None:
    environment = variables(checkpoint, tmp_path) | {"SCORELINE_ADAPTERS": str(tmp_path / "none")}
    ended = run("-m", "workers.engine_loop", imports=WORKER, environment=environment)
    assert ended.returncode == 2
    reason = json.loads(ended.stderr.splitlines()[-1])["reason"]
    assert reason.startswith(f"SCORELINE_ADAPTERS is '{tmp_path / 'none'}': adapter directory ")


def test_the_checkpoint_without_a_fault_is_not_refused(checkpoint: Path, tmp_path: Path) -> None:
    """This shows that the checkpoints above are refused for their faults. The worker then waits for its database."""
    adapter = write_adapter(tmp_path / "adapter", {f"base_model.model.{NORM}": np.ones(32, np.float32)})
    process = subprocess.Popen(
        [sys.executable, "-m", "workers.engine_loop"],
        cwd=ROOT,
        env=variables(checkpoint, tmp_path) | {"SCORELINE_ADAPTERS": str(adapter)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        events = (json.loads(line)["event"] for line in process.stderr)
        assert next(event for event in events if event in ("can't start", "waiting for the database")) != "can't start"
    finally:
        process.kill()
        process.communicate()


def variables(checkpoint: Path, folder: Path) -> dict[str, str]:
    return os.environ | {
        "SCORELINE_MODEL": str(checkpoint),
        "SCORELINE_DATABASE_URL": f"sqlite:///{folder / 'nothing.db'}",
        "SCORELINE_BELL_SOCKET": str(folder / "bell"),
        "SCORELINE_MULTI_ITEM_ENABLE_STARTUP_WARMUP": "false",
    }
