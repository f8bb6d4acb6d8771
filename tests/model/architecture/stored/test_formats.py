"""Weights are read from every format to the bit, in no more memory than the model and one layer."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoints.files import read_config
from demonstration.saving import save
from model.architecture import weights
from model.architecture.config import DecoderConfig
from model.architecture.configuration_reader import ConfigurationReader
from model.architecture.stored import checkpoint
from model.architecture.stored.reading import encoding_of
from model.architecture.stored.tensors import WeightsError, open_files
from tests.model import engines
from tests.model.architecture.stored.cases import CASES
from tests.model.architecture.stored.writers import write_quantised
from tests.model.checkpoints import EVERY, Tensors, sequences, write


def load(directory: Path, config: DecoderConfig, dtype: str = "float32") -> tuple[Tensors, str]:
    """The weights that are loaded, by HuggingFace's names and in its orientation, and their fingerprint."""
    encoding = encoding_of(ConfigurationReader(read_config(directory)))
    decoder, fingerprint = weights.load(directory, config, dtype, encoding=encoding)
    save(decoder, directory / "loaded")
    return load_file(directory / "loaded" / "model.safetensors"), fingerprint


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_loaded_weights_are_those_that_the_numbers_stand_for(
    name: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "DECODED_BYTES", 2**12)  # a few rows at a time
    config, meant = write_quantised(tmp_path, CASES[name])
    found, _ = load(tmp_path, config, dtype)
    assert found.keys() == meant.keys()
    of_dtype = ml_dtypes.bfloat16 if dtype != "float32" else np.float32
    for weight, values in meant.items():
        # A few numbers of recurrent layers stay float32.
        assert found[weight].dtype == of_dtype or values.ndim == 1
        np.testing.assert_array_equal(found[weight], values.astype(found[weight].dtype))


def test_quantised_experts_are_read_beside_a_layer_that_guesses_further_tokens_with_all_of_its_own_in_a_tensor(
    tmp_path: Path,
) -> None:
    config, meant = write_quantised(tmp_path, CASES["awq of experts beside recurrent layers"])
    tensors = load_file(tmp_path / "model.safetensors")
    further = {"mtp.layers.0.mlp.experts.gate_up_proj": np.zeros((6, 80, 64), np.float32)}
    save_file(tensors | further, tmp_path / "model.safetensors")
    found, _ = load(tmp_path, config)
    assert found.keys() == meant.keys()


@pytest.mark.parametrize("name", ["awq", "mixed"])
def test_scores_are_those_of_the_plain_checkpoint_with_the_same_weights(name: str, tmp_path: Path) -> None:
    config, meant = write_quantised(tmp_path / "quantised", CASES[name])
    plain = write(tmp_path / "plain", config, meant)
    rows = sequences(config, 3, (5, 40))
    found, expected = (
        engines.logprobs(engines.load(at, "float32", step_tokens=64), rows) for at in (tmp_path / "quantised", plain)
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("awq", "qzeros"),
        ("gptq in an order", "g_idx"),
        ("int4", "weight_scale"),
        ("fp8 blocks", "weight"),
        ("fp8 whole", "weight_scale_inv"),
    ],
)
def test_the_fingerprint_is_over_what_is_stored(name: str, part: str, tmp_path: Path) -> None:
    config, _ = write_quantised(tmp_path, CASES[name])
    before = load(tmp_path, config)[1]
    assert load(tmp_path, config, "bfloat16")[1] == before
    change(
        tmp_path, f"model.layers.1.mlp.up_proj.{part}", lambda tensor: np.flip(tensor) if tensor.ndim else tensor * 2
    )
    assert load(tmp_path, config)[1] != before


@pytest.mark.parametrize(
    ("name", "part", "faulty", "told"),
    [
        ("awq", "qzeros", None, r"missing: .*\.qzeros"),
        ("gptq", "scales", lambda tensor: tensor[:, :-1], r"shape of .*\.scales: \[2, 159\] in the file, \[2, 160\]"),
        ("gptq", "bias", lambda tensor: tensor + 1, r"unknown: .*up_proj\.bias"),
        ("gptq in an order", "g_idx", lambda tensor: tensor + 1, "group 2 or 1, which does not exist"),
        ("int4", "weight_shape", lambda tensor: tensor + 1, r"weight_shape is \[161, 65\].* \[160, 64\]"),
        ("int8", "weight_scale", lambda tensor: tensor.astype(np.int8), r"dtype of .*weight_scale: I8"),
        ("some modules", "weight", lambda tensor: tensor.astype(np.int8), r"dtype of .*up_proj\.weight: I8"),
        ("fp8 blocks", "weight_scale_inv", lambda tensor: tensor[:, :1], r"\[5, 1\] in the file, .* or \[5, 2\]"),
        ("fp8 blocks", "weight_scale_inv", None, r"missing: .*weight_scale_inv"),
    ],
)
def test_a_checkpoint_that_does_not_fit_its_format_is_refused(
    name: str, part: str, faulty: Any, told: str, tmp_path: Path
) -> None:
    config, _ = write_quantised(tmp_path, CASES[name])
    change(tmp_path, f"model.layers.1.mlp.up_proj.{part}", faulty)
    with pytest.raises(WeightsError, match=told):
        load(tmp_path, config)


LAYERS = 4


@pytest.mark.parametrize(
    "name",
    ["fp8 blocks", "gptq in an order", *(pytest.param(name, marks=pytest.mark.slow) for name in ("int4", "awq"))],
)
def test_loading_takes_no_more_memory_than_the_model_and_one_layer(name: str, tmp_path: Path) -> None:
    """NumPy tells tracemalloc of the memory of every array."""
    config = replace(EVERY["tied"], width=512, mlp_width=1536, query_heads=8, head_dim=64, layers=LAYERS)
    write_quantised(tmp_path, CASES[name], config)
    encoding = encoding_of(ConfigurationReader(read_config(tmp_path)))
    tracemalloc.start()
    try:
        decoder, _ = weights.load(tmp_path, config, "bfloat16", encoding=encoding)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    model = weights.size_in_bytes(decoder)
    assert peak <= model * (1 + 1 / LAYERS)


def change(directory: Path, name: str, changed: Any) -> None:
    """Rewrite a checkpoint with a tensor changed, or without it."""
    path = directory / "model.safetensors"
    stored = {found: tensor for found, tensor in read(path).items() if changed is not None or found != name}
    if changed is not None:
        stored[name] = np.ascontiguousarray(changed(stored[name]))
    save_file(stored, path)


def read(path: Path) -> Tensors:
    """All tensors of a file."""
    with open_files(path.parent, [path]) as tensors:
        return {name: np.array(tensor[...]) for name, tensor in tensors.items()}
