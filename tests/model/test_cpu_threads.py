"""How many threads compute on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks.shapes import SHAPES
from model.architecture.config import DecoderConfig
from model.cpu_threads import choose_cpu_threads

DEMONSTRATION, LARGER = SHAPES["demonstration"], SHAPES["qwen3-0.6b"]

SCORE = """
import os, sys
import numpy as np
from benchmarks.algorithms import random_engine
from scoring.layout import ChunkWork, GroupWork, Head, Rows
from settings.engine import EngineSettings

engine = random_engine("demonstration", EngineSettings(cpu_threads=int(sys.argv[1])))
random = np.random.default_rng(0)
rows = [random.integers(0, 2_000, length) for length in (1, 7, 38, 38, 38, 90, 200, 300)]
chunk = ChunkWork(0, Rows.pack(rows, [96] * len(rows)), (1, 2, 3), Head.LOGPROBS)
(scored,) = engine.score([GroupWork("", random.integers(0, 2_000, 96).astype(np.int32), (chunk,))], lambda: None)
threads = (open(f"/proc/self/task/{thread}/comm").read() for thread in os.listdir("/proc/self/task"))
print(sum(name.startswith("tf_XLAEigen") for name in threads), scored.scores.logits.tobytes().hex())
"""


@pytest.mark.parametrize(
    ("wanted", "config", "before", "after"),
    [
        (None, DEMONSTRATION, {}, {"NPROC": "1"}),
        (None, DEMONSTRATION, {"NPROC": "3"}, {"NPROC": "3"}),
        (None, replace(DEMONSTRATION, width=192, mlp_width=576), {}, {"NPROC": "1"}),
        (None, replace(DEMONSTRATION, width=256, mlp_width=768), {}, {}),
        (None, LARGER, {}, {}),
        (None, LARGER, {"NPROC": "3"}, {"NPROC": "3"}),
        (4, DEMONSTRATION, {"NPROC": "3"}, {"NPROC": "4"}),
        (4, LARGER, {}, {"NPROC": "4"}),
    ],
    ids=[
        "a small model takes one",
        "a small model takes what the environment says",
        "the largest small model takes one",
        "the next larger one takes all",
        "a large one takes all",
        "a large one takes what the environment says",
        "the setting is stronger than the environment",
        "the setting holds for a large model",
    ],
)
def test_a_small_model_is_computed_by_one_thread(
    wanted: int | None, config: DecoderConfig, before: dict[str, str], after: dict[str, str]
) -> None:
    environment = dict(before)
    choose_cpu_threads(wanted, config, environment)
    assert environment == after


@pytest.mark.slow
def test_the_bits_of_a_score_do_not_depend_on_the_number_of_threads() -> None:
    found = {}
    for wanted in (1, 2, 3):
        done = subprocess.run(
            [sys.executable, "-c", SCORE, str(wanted)], capture_output=True, text=True, env=os.environ, check=True
        )
        threads, bits = done.stdout.split()
        assert int(threads) == wanted, "XLA has started another number of threads"
        found[wanted] = bits
    assert found[1] == found[2] == found[3]
