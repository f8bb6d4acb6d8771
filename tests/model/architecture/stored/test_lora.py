"""An adapter that is merged at load gives the weights that it stands for; what it can't be is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints.files import CheckpointError
from demonstration.saving import save
from model.architecture import weights
from model.architecture.config import DecoderConfig
from model.architecture.configuration_reader import ConfigurationReader
from model.architecture.stored.reading import encoding_of
from model.architecture.stored.tensors import open_tensors
from tests.model.architecture.stored.cases import CASES
from tests.model.architecture.stored.writers import write_adapter, write_quantised
from tests.model.checkpoints import CLASSIFIERS, VARIANTS, Tensors, tensors, write

CONFIG = VARIANTS["llama"]
Q, UP = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"


def factors(module: str, shape: tuple[int, ...], rank: int) -> Tensors:
    random = np.random.default_rng(len(module))
    return {
        f"base_model.model.{module}.lora_A.weight": random.standard_normal((rank, shape[1])).astype(np.float32),
        f"base_model.model.{module}.lora_B.weight": random.standard_normal((shape[0], rank)).astype(np.float32),
    }


def loaded(directory: Path, adapter: Path | None, config: DecoderConfig = CONFIG) -> tuple[Tensors, str]:
    fields = ConfigurationReader(json.loads((directory / "config.json").read_text()))
    decoder, fingerprint = weights.load(directory, config, np.float32, encoding=encoding_of(fields), adapter=adapter)
    save(decoder, directory.parent / "saved")
    with open_tensors(directory.parent / "saved") as saved:
        return {name: np.asarray(tensor[...]) for name, tensor in saved.items()}, fingerprint


@pytest.mark.parametrize(
    ("fields", "scales"),
    [
        ({}, (8 / 4, 8 / 4)),
        ({"use_rslora": True}, (8 / np.sqrt(4), 8 / np.sqrt(4))),
        ({"r": 9, "rank_pattern": {"layers.0.*q_proj": 4, "up_proj": 4}, "alpha_pattern": {"up_proj": 2}}, (2.0, 0.5)),
    ],
)
def test_weights_are_changed_by_the_scaled_product(
    fields: dict[str, Any], scales: tuple[float, float], tmp_path: Path
) -> None:
    base = tensors(CONFIG, 3)
    change = factors(Q, base[f"{Q}.weight"].shape, 4) | factors(UP, base[f"{UP}.weight"].shape, 4)
    norm = np.linspace(0.5, 2.0, CONFIG.width, dtype=np.float32)
    adapter = write_adapter(tmp_path / "a", change | {"base_model.model.model.norm.weight": norm}, **fields)
    found, fingerprint = loaded(write(tmp_path / "base", CONFIG, base), adapter)
    expected = dict(base) | {"model.norm.weight": norm}
    for module, scale in zip((Q, UP), scales, strict=True):
        down, up = (change[f"base_model.model.{module}.lora_{letter}.weight"] for letter in "AB")
        expected[f"{module}.weight"] = base[f"{module}.weight"] + scale * up @ down
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, rtol=1e-5, atol=1e-5, err_msg=name)
    assert fingerprint != loaded(tmp_path / "base", None)[1]
    other = write_adapter(tmp_path / "b", change, **fields)
    assert fingerprint != loaded(tmp_path / "base", other)[1]


def test_an_adapter_is_merged_into_quantised_weights_as_they_are_read(tmp_path: Path) -> None:
    config, meant = write_quantised(tmp_path / "base", CASES["int8"])
    name = f"{Q}.weight"
    change = factors(Q, meant[name].shape, 4)
    found, _ = loaded(tmp_path / "base", write_adapter(tmp_path / "a", change), config)
    down, up = change.values()
    np.testing.assert_allclose(found[name], meant[name] + 2.0 * up @ down, rtol=1e-5, atol=1e-5)


def test_the_head_of_a_classifier_is_replaced(tmp_path: Path) -> None:
    config = CLASSIFIERS["llama with two classes"]
    head = np.ones((2, config.width), np.float32)
    adapter = write_adapter(tmp_path / "a", {"base_model.model.score.weight": head})
    found, _ = loaded(write(tmp_path / "base", config, tensors(config, 3)), adapter, config)
    np.testing.assert_array_equal(found["score.weight"], head)


def _without_b(change: Tensors) -> Tensors:
    return {name: tensor for name, tensor in change.items() if "lora_B" not in name}


@pytest.mark.parametrize(
    ("fields", "changed", "named"),
    [
        ({"peft_type": "LOHA"}, dict, "peft_type 'LOHA' is not implemented"),
        ({"use_dora": True}, dict, "use_dora True is not implemented"),
        ({"use_something_new": {"a": 1}}, dict, "use_something_new"),
        ({"bias": "all"}, dict, "bias 'all' is not implemented"),
        ({"init_lora_weights": "pissa"}, dict, "init_lora_weights 'pissa' is not implemented"),
        ({"r": 3}, dict, f"{Q} has the rank 3, and 4 in its tensors"),
        ({"rank_pattern": {"(": 4}}, dict, r"rank_pattern has '\(', which is no pattern"),
        ({"lora_alpha": "many"}, dict, "lora_alpha must be a positive number"),
        ({}, _without_b, "tensors that are not implemented: .*q_proj.lora_A"),
        ({}, lambda found: {"model.norm.weight": np.ones(1, np.float32)}, "not implemented: model.norm.weight"),
        ({}, lambda found: found | {"base_model.model.a.weight": np.ones(1, np.float32)}, "no weights of the model: a"),
        (
            {},
            lambda found: {name: tensor[:, :-1].copy() for name, tensor in found.items()},
            r"lora_A.weight is \[4, 63",
        ),
        ({}, lambda found: {name: tensor.astype(np.float64) for name, tensor in found.items()}, "has the dtype F64"),
        ({}, lambda found: {name: tensor * np.inf for name, tensor in found.items()}, "NaN or an infinity in .*q_proj"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    fields: dict[str, Any], changed: Callable[[Tensors], Tensors], named: str, tmp_path: Path
) -> None:
    base = tensors(CONFIG, 3)
    adapter = write_adapter(tmp_path / "a", changed(factors(Q, base[f"{Q}.weight"].shape, 4)), **fields)
    with pytest.raises(CheckpointError, match=named):
        loaded(write(tmp_path / "base", CONFIG, base), adapter)


def test_an_adapter_changes_the_queries_and_the_gate_of_attention_which_are_one_tensor(tmp_path: Path) -> None:
    config, module = VARIANTS["qwen35"], "model.layers.3.self_attn.q_proj"
    base = tensors(config, 3)
    change = factors(module, base[f"{module}.weight"].shape, 4)
    adapter = write_adapter(tmp_path / "a", change)
    found, _ = loaded(write(tmp_path / "base", config, base), adapter, config)
    down, up = (change[f"base_model.model.{module}.lora_{part}.weight"] for part in "AB")
    np.testing.assert_allclose(found[f"{module}.weight"], base[f"{module}.weight"] + 2 * up @ down, atol=1e-5)


def test_an_adapter_of_a_gate_that_no_checkpoint_names_is_refused(tmp_path: Path) -> None:
    """Its rows are some of those of ``q_proj``, and only our own decoder has a name for them."""
    config, module = VARIANTS["qwen35"], "model.layers.3.self_attn.output_gate_proj"
    shape = (config.query_heads * config.head_dim, config.width)
    adapter = write_adapter(tmp_path / "a", factors(module, shape, 4))
    with pytest.raises(CheckpointError, match=f"no weights of the model: {module}.weight"):
        loaded(write(tmp_path / "base", config, tensors(config, 3)), adapter, config)


def test_an_adapter_of_a_convolution_is_refused_by_name(tmp_path: Path) -> None:
    config, module = VARIANTS["qwen35"], "model.layers.0.linear_attn.conv1d"
    adapter = write_adapter(tmp_path / "a", factors(module, (64, 4), 4))
    with pytest.raises(CheckpointError, match=f"is of {module}.weight, which is no linear layer"):
        loaded(write(tmp_path / "base", config, tensors(config, 3)), adapter, config)


def test_a_changed_embedding_that_is_the_head_too_and_missing_files_are_refused(tmp_path: Path) -> None:
    config = replace(CONFIG, tied=True)
    base = tensors(config, 3)
    adapter = write_adapter(
        tmp_path / "a", {"base_model.model.model.embed_tokens.weight": base["model.embed_tokens.weight"]}
    )
    write(tmp_path / "base", config, base)
    with pytest.raises(CheckpointError, match="tie_word_embeddings"):
        loaded(tmp_path / "base", adapter, config)
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"holds no adapter_model\.safetensors"):
        loaded(tmp_path / "base", adapter, config)
    with pytest.raises(CheckpointError, match=r"holds no adapter_config\.json"):
        loaded(tmp_path / "base", tmp_path / "base", config)
