"""A checkpoint of full width: how long it takes to load, in how much memory, and how close its bf16 scores are.

``PYTHONPATH=.parity python -m benchmarks.checkpoint`` (torch is needed to compare; ``make parity`` installs it).

The weights are random, with perturbed norms and logits so far apart that probabilities are not uniform: on a plain
random model every score is about the same, and so is every error. Loading runs in a process of its own, and its memory
is the largest private memory seen above what the process had before: pages of the mapped file are the kernel's.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from scipy.special import log_softmax, softmax

from benchmarks.shapes import SHAPES
from checkpoints.card import ModelCard
from demonstration.saving import config_fields
from model.architecture import weights
from model.architecture.config import DecoderConfig
from scoring.layout import ChunkWork, GroupWork, Head, Rows
from settings.engine import EngineSettings

GAIN = 0.4
"""Scale of a layer's kernels, relative to one that keeps a vector's size."""
LOGIT_SPREAD = 6.0
"""Intended standard deviation of the logits. Among 150,000 tokens, one stands out only from about 5 up."""
LENGTHS = (8, 20, 32, 60, 100, 120, 200, 250)
LABELS = (9454, 2753, 40, 311, 7414, 902, 15, 130000)


@dataclass(frozen=True, slots=True)
class Loading:
    """The time and memory that loading takes."""

    seconds: float  # until the weights are on the device
    weights_gb: float
    peak_gb: float  # most private memory during loading
    held_gb: float  # private memory in the end


@dataclass(frozen=True, slots=True)
class Difference:
    """Differences of label softmax scores from HuggingFace's in float32."""

    largest: float
    mean: float


def random_tensors(config: DecoderConfig, seed: int) -> dict[str, np.ndarray]:
    """Return random bf16 weights by HuggingFace's names, projections as [out, in]."""
    random = np.random.default_rng(seed)

    def kernel(shape: tuple[int, ...], gain: float) -> np.ndarray:
        values = random.standard_normal(shape, np.float32)
        values *= gain / np.sqrt(shape[-1])
        return values.astype(ml_dtypes.bfloat16)

    def norm(size: int) -> np.ndarray:
        return (1.0 + 0.4 * random.standard_normal(size)).astype(ml_dtypes.bfloat16)

    # A tied head finds the last token's vector in the final state: with too large a scale, that token gets all of the
    # probability.
    gains = {weights.EMBEDDING: 0.65 * LOGIT_SPREAD if config.tied else 1.0, weights.HEAD: LOGIT_SPREAD}
    shapes = weights.tensor_shapes(config)
    return {
        name: norm(*shape) if len(shape) == 1 else kernel(shape, gains.get(name, GAIN))
        for name, shape in shapes.items()
    }


def write(directory: Path, config: DecoderConfig, seed: int) -> Path:
    """Write a random bf16 checkpoint in HuggingFace's format."""
    (directory / "config.json").write_text(json.dumps(config_fields(config) | {"dtype": "bfloat16"}))
    save_file(random_tensors(config, seed), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def private_bytes() -> int:
    """Return the memory of this process without the pages of files."""
    found = re.search(r"RssAnon:\s+([0-9]+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def load(directory: Path, results: multiprocessing.Queue[Loading]) -> None:
    """Load a checkpoint into an engine, and put its time and memory into the queue."""
    import jax

    from model.engine import Engine
    from model.platforms import Platform

    jax.numpy.zeros(1).block_until_ready()
    config = DecoderConfig.from_directory(directory)
    before, peak = private_bytes(), 0
    loaded = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not loaded.wait(0.002):
            peak = max(peak, private_bytes())

    watching = threading.Thread(target=watch)
    watching.start()
    started = time.perf_counter()
    card = ModelCard("benchmark", config.context, config.vocabulary, "")
    engine = Engine.load(directory, EngineSettings(dtype="bfloat16"), card, Platform.of(jax.devices()[0]))
    seconds = time.perf_counter() - started
    held = private_bytes()
    loaded.set()
    watching.join()
    size = (directory / "model.safetensors").stat().st_size
    del engine
    results.put(Loading(*(round(x, 3) for x in (seconds, size / 1e9, (peak - before) / 1e9, (held - before) / 1e9))))


def our_logprobs(directory: Path, rows: list[np.ndarray]) -> np.ndarray:
    """Return the engine's label log-probabilities [N, labels] in bf16."""
    import jax

    from model.engine import Engine
    from model.platforms import Platform

    config = DecoderConfig.from_directory(directory)
    card = ModelCard("benchmark", config.context, config.vocabulary, "")
    engine = Engine.load(directory, EngineSettings(dtype="bfloat16"), card, Platform.of(jax.devices()[0]))
    work = ChunkWork(0, Rows.pack(rows, [0] * len(rows)), LABELS, Head.LOGPROBS)
    (scored,) = engine.score([GroupWork("all", np.zeros(0, np.int32), (work,))], lambda: None)
    assert scored.scores.logprobs is not None
    return scored.scores.logprobs


def their_logprobs(directory: Path, rows: list[np.ndarray], dtype: str) -> np.ndarray:
    """Return HuggingFace's, computed in ``dtype``, with a log-softmax in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
    with torch.inference_mode():
        logits = [model(torch.tensor(row[None].astype(np.int64))).logits[0, -1].double().numpy() for row in rows]
    found = log_softmax(np.stack(logits), axis=1)
    print(f"HuggingFace {dtype}: top probabilities {np.exp(found.max(axis=1)).round(2)}", file=sys.stderr)
    return found[:, LABELS]


def apart(one: np.ndarray, reference: np.ndarray) -> Difference:
    """Return the differences of label softmax scores from the reference."""
    difference = np.abs(softmax(one.astype(np.float64), axis=1) - softmax(reference, axis=1))
    return Difference(round(float(difference.max()), 5), round(float(difference.mean()), 5))


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--loads", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=4, help="sequences of each length")
    options = parser.parse_args()
    config = SHAPES[options.shape]
    random = np.random.default_rng(1)
    rows = [random.integers(0, config.vocabulary, n, np.int32) for n in LENGTHS * options.repeats]
    with tempfile.TemporaryDirectory() as folder:
        directory = write(Path(folder), config, seed=0)
        fresh = multiprocessing.get_context("spawn")
        loadings = []
        for _ in range(options.loads):
            results: multiprocessing.Queue[Loading] = fresh.Queue()
            process = fresh.Process(target=load, args=(directory, results))
            process.start()
            loadings.append(results.get(timeout=600))
            process.join()
            print(loadings[-1], file=sys.stderr)
        ours = our_logprobs(directory, rows)
        exact, theirs = (their_logprobs(directory, rows, dtype) for dtype in ("float32", "bfloat16"))
    median = sorted(loadings, key=lambda loading: loading.seconds)[len(loadings) // 2]
    print(
        json.dumps(
            {
                "checkpoint": options.shape,
                "load": asdict(median) | {"peak_over_weights": round(median.peak_gb / median.weights_gb, 3)},
                "scores": {
                    "sequences": len(rows),
                    "bf16": asdict(apart(ours, exact)),
                    "huggingface_bf16": asdict(apart(theirs, exact)),
                },
            }
        )
    )


if __name__ == "__main__":
    main()
