"""The other implementations that benchmarks time compute right scores."""

import numpy as np
import torch  # type: ignore[import-not-found,unused-ignore]

from benchmarks.checkpoint import random_tensors
from benchmarks.device.torch_decoder import TorchDecoder
from benchmarks.huggingface import HuggingFace
from benchmarks.shapes import SHAPES
from benchmarks.workloads import LabelWorkload
from tools.tpu.workloads import Group, Workload

BF16_NOISE = 1.0
"""Tolerance of log-probabilities around -40, where bf16 numbers are a quarter apart."""


def test_huggingface_scores_the_same_behind_a_cached_query_and_serially() -> None:
    config = SHAPES["demonstration"]
    tensors = random_tensors(config, seed=0)
    weights = {name: torch.tensor(tensor.astype(np.float32)) for name, tensor in tensors.items()}
    peer = HuggingFace("demonstration", weights)
    groups = Workload((Group(300, (20, 0, 3, 20, 40)), Group(90, (0,)), Group(50, (7, 7)))).sequences(config.vocabulary)
    serial = peer.serial(groups)
    assert serial.std(axis=0).min() > 2 * BF16_NOISE, "wrong scores would show"
    np.testing.assert_allclose(peer.cached(groups), serial, rtol=0, atol=BF16_NOISE)


def test_our_decoder_in_torch_scores_in_both_ways_as_huggingface_scores_serially() -> None:
    config = SHAPES["demonstration"]
    tensors = random_tensors(config, seed=0)
    weights = {name: torch.tensor(tensor.astype(np.float32)) for name, tensor in tensors.items()}
    groups = Workload((Group(300, (20, 0, 3, 20, 40)), Group(90, (0,)), Group(50, (7, 7)))).sequences(config.vocabulary)
    serial = HuggingFace("demonstration", weights, dtype="float32").serial(groups)
    ours = TorchDecoder(config, "cpu", "float32", weights, compiled=False)
    np.testing.assert_allclose(ours.cached(groups), serial, rtol=0, atol=1e-4)
    np.testing.assert_allclose(ours.packed(groups), serial, rtol=0, atol=1e-4)


def test_huggingface_scores_labels_behind_a_cached_query_as_it_scores_whole_sequences() -> None:
    config = SHAPES["demonstration"]
    tensors = random_tensors(config, seed=0)
    weights = {name: torch.tensor(tensor.astype(np.float32)) for name, tensor in tensors.items()}
    peer = HuggingFace("demonstration", weights, dtype="float32")
    (group,) = LabelWorkload(90, 5, 12, 3, 4).sequences(config.vocabulary)
    (found,) = peer.labels([group])
    before = [np.concatenate([group.query, item]) for item in group.items]
    for n, labels in enumerate(group.labels):
        for m, label in enumerate(labels):
            ids = torch.tensor(np.concatenate([before[n], label])[None].astype(np.int64))
            with torch.inference_mode():
                logprobs = peer._model(ids).logits[0, len(before[n]) - 1 : -1].log_softmax(-1)
            assert abs(found[n, m] - sum(float(row[token]) for row, token in zip(logprobs, label, strict=True))) < 1e-2
