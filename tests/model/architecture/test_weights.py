"""Checkpoints are loaded strictly and in pieces, and saved."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from demonstration.saving import save
from model.architecture import weights
from model.architecture.config import DecoderConfig
from model.architecture.decoder import Decoder
from model.architecture.stored.tensors import WeightsError
from model.architecture.weights import params
from tests.model.checkpoints import CONFIGS, EVERY, Tensors, tensors, write

CONFIG = CONFIGS["untied"]
TIED = CONFIGS["tied"]
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def load(directory: Path, config: DecoderConfig = CONFIG, dtype: str = "float32") -> tuple[Decoder, str]:
    return weights.load(directory, config, dtype)


def shard(directory: Path, found: Tensors) -> None:
    """Rewrite a checkpoint as two shards and an index."""
    (directory / "model.safetensors").unlink()
    names = sorted(found)
    files = {name: f"model-0000{n % 2 + 1}-of-00002.safetensors" for n, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: found[name] for name in names if files[name] == file}, directory / file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


def test_kernels_are_transposed_and_stacked(tmp_path: Path) -> None:
    found = tensors(CONFIG, 0)
    decoder, _ = load(write(tmp_path, CONFIG, found))
    stack = np.asarray(decoder.model.layers.self_attn.q_proj.weight[...])
    assert stack.shape == (CONFIG.layers, CONFIG.width, CONFIG.query_heads * CONFIG.head_dim)
    np.testing.assert_array_equal(stack[1], found[Q_PROJ].T)
    down_proj = params(decoder)["model", "layers", "mlp", "down_proj", "weight"]
    np.testing.assert_array_equal(down_proj[0], found["model.layers.0.mlp.down_proj.weight"].T)
    np.testing.assert_array_equal(decoder.model.embed_tokens.weight[...], found["model.embed_tokens.weight"])


def test_models_of_one_configuration_have_weights_of_their_own(tmp_path: Path) -> None:
    found = [tensors(CONFIG, seed) for seed in range(2)]
    decoders = [load(write(tmp_path / str(seed), CONFIG, each))[0] for seed, each in enumerate(found)]
    for decoder, each in zip(decoders, found, strict=True):
        np.testing.assert_array_equal(decoder.model.norm.weight[...], each["model.norm.weight"])


@pytest.mark.parametrize("config", EVERY.values(), ids=EVERY)
def test_a_loaded_checkpoint_is_saved_unchanged(config: DecoderConfig, tmp_path: Path) -> None:
    found = tensors(config, 0)
    decoder, fingerprint = load(write(tmp_path / "in", config, found), config)
    save(decoder, tmp_path / "out")
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert saved.keys() == found.keys()
    for name, tensor in found.items():
        np.testing.assert_array_equal(saved[name], tensor)
    assert DecoderConfig.from_directory(tmp_path / "out") == config
    assert load(tmp_path / "out", config)[1] == fingerprint


def test_all_faults_of_a_checkpoint_are_reported_at_once(tmp_path: Path) -> None:
    found = tensors(CONFIG, 0)
    del found["model.norm.weight"]
    found["model.layers.0.self_attn.q_proj.bias"] = np.zeros(4, np.float32)
    found[Q_PROJ] = found[Q_PROJ].T.copy()[:, :-1]
    found["model.layers.0.mlp.up_proj.weight"] = found["model.layers.0.mlp.up_proj.weight"].astype(np.int8)
    with pytest.raises(WeightsError) as told:
        load(write(tmp_path, CONFIG, found))
    message = str(told.value)
    assert "missing: model.norm.weight" in message
    assert "unknown: model.layers.0.self_attn.q_proj.bias" in message
    assert f"shape of {Q_PROJ}: [96, 95] in the file, [96, 96] by config.json" in message
    assert "dtype of model.layers.0.mlp.up_proj.weight: I8" in message


def test_faults_of_a_tensor_for_several_projections_are_named_as_the_file_has_it(tmp_path: Path) -> None:
    config, found = EVERY["phi3"], tensors(EVERY["phi3"], 0)
    attention, mlp = "model.layers.0.self_attn.qkv_proj.weight", "model.layers.1.mlp.gate_up_proj.weight"
    found[attention] = found[attention][:-1]
    del found[mlp]
    found["model.layers.0.self_attn.q_proj.weight"] = np.zeros((64, 64), np.float32)
    with pytest.raises(WeightsError) as told:
        load(write(tmp_path, config, found), config)
    message = str(told.value)
    assert f"shape of {attention}: [127, 64] in the file, [128, 64] by config.json" in message
    assert f"missing: {mlp}" in message
    assert "unknown: model.layers.0.self_attn.q_proj.weight" in message


def test_a_layer_too_many_is_refused(tmp_path: Path) -> None:
    found = tensors(CONFIG, 0)
    with pytest.raises(WeightsError, match=r"unknown: model\.layers\.1\."):
        load(write(tmp_path, CONFIG, found), replace(CONFIG, layers=1))


def test_an_untied_head_is_refused_where_it_is_missing(tmp_path: Path) -> None:
    found = tensors(TIED, 0)
    with pytest.raises(WeightsError, match=r"missing: lm_head\.weight"):
        load(write(tmp_path, TIED, found), replace(TIED, tied=False))


def test_a_tied_checkpoint_may_carry_its_head_all_the_same(tmp_path: Path) -> None:
    found = tensors(TIED, 0)
    found["lm_head.weight"] = found["model.embed_tokens.weight"].copy()
    decoder, _ = load(write(tmp_path, TIED, found), TIED)
    np.testing.assert_array_equal(decoder.head_kernel(), found["model.embed_tokens.weight"].T)


def test_a_tied_checkpoint_is_refused_where_its_head_is_another_one(tmp_path: Path) -> None:
    """HuggingFace would take that head."""
    found = tensors(TIED, 0)
    found["lm_head.weight"] = found["model.embed_tokens.weight"].copy()
    found["lm_head.weight"][-1, -1] += 1
    with pytest.raises(WeightsError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        load(write(tmp_path, TIED, found), TIED)
    found["lm_head.weight"] = found["model.embed_tokens.weight"].astype(np.float16)
    with pytest.raises(WeightsError, match=r"lm_head\.weight differs"):
        load(write(tmp_path, TIED, found), TIED)


def test_the_rotary_frequencies_of_old_checkpoints_are_ignored(tmp_path: Path) -> None:
    found = tensors(CONFIG, 0)
    fingerprint = load(write(tmp_path / "new", CONFIG, found))[1]
    found["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    assert load(write(tmp_path / "old", CONFIG, found))[1] == fingerprint


def test_progress_is_reported_in_bytes_up_to_the_total(tmp_path: Path) -> None:
    found = tensors(CONFIG, 0)
    told: list[tuple[int, int]] = []
    weights.load(write(tmp_path, CONFIG, found), CONFIG, "bfloat16", lambda done, total: told.append((done, total)))
    size = sum(tensor.nbytes for tensor in found.values())
    assert len(told) >= len(found)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (size, size)


@pytest.mark.parametrize("content", [None, b"", b"not a checkpoint", b"\xff" * 64])
def test_a_missing_or_broken_file_is_one_clear_error(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match=r"holds neither|can't be read"):
        load(tmp_path)


def test_a_missing_shard_is_one_clear_error(tmp_path: Path) -> None:
    found = tensors(CONFIG, 0)
    shard(write(tmp_path, CONFIG, found), found)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match="can't be read"):
        load(tmp_path)


def test_the_fingerprint_depends_on_values_and_not_on_files_or_dtype(tmp_path: Path) -> None:
    found = tensors(CONFIG, 0)
    directory = write(tmp_path, CONFIG, found)
    single = load(directory)[1]
    assert load(directory, dtype="bfloat16")[1] == single
    shard(directory, found)
    decoder, sharded = load(directory)
    assert sharded == single
    np.testing.assert_array_equal(decoder.model.layers.self_attn.q_proj.weight[1], found[Q_PROJ].T)


def test_one_changed_value_changes_the_fingerprint(tmp_path: Path) -> None:
    found = tensors(CONFIG, 0)
    before = load(write(tmp_path, CONFIG, found))[1]
    found["model.layers.0.self_attn.k_norm.weight"][3] += 1e-3
    assert load(write(tmp_path, CONFIG, found))[1] != before


@pytest.mark.parametrize("stored", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_any_stored_dtype_is_cast_to_the_one_asked_for(stored: str, dtype: str, tmp_path: Path) -> None:
    as_stored = ml_dtypes.bfloat16 if stored == "bfloat16" else np.dtype(stored)
    found = {name: tensor.astype(as_stored) for name, tensor in tensors(CONFIG, 0).items()}
    decoder, _ = load(write(tmp_path, CONFIG, found), dtype=dtype)
    kernel = decoder.model.layers.self_attn.q_proj.weight[...]
    assert kernel.dtype == jnp.dtype(dtype)
    np.testing.assert_array_equal(kernel[1], found[Q_PROJ].T.astype(jnp.dtype(dtype)))


LOAD_WITH_LITTLE_ROOM = """
import re, resource, sys
from pathlib import Path
import jax
from model.architecture import weights
from model.architecture.config import DecoderConfig

directory, room = Path(sys.argv[1]), int(sys.argv[2])
jax.numpy.zeros(1).block_until_ready()
used = int(re.search(r"VmData:\\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + room, used + room))
weights.load(directory, DecoderConfig.from_directory(directory), "float32")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit on private memory is Linux's")
def test_a_model_is_never_in_memory_twice(tmp_path: Path) -> None:
    config = replace(CONFIG, width=512, mlp_width=2048, layers=10, query_heads=8, kv_heads=4, head_dim=64)
    directory = write(tmp_path, config, tensors(config, 0))
    size = (directory / "model.safetensors").stat().st_size
    assert size > 150e6
    load_it = [sys.executable, "-c", LOAD_WITH_LITTLE_ROOM, str(directory), str(int(1.2 * size))]
    subprocess.run(load_it, check=True, timeout=120)
