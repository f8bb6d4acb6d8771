"""Items per second of a backlog whose groups name adapters: ``python -m benchmarks.adapters``.

It and the same backlog without adapters run in turn in one engine with random weights, each query with its items from
nothing. The adapters change all projections of every layer. The first run of each reads and compiles, and does not
count. The last line is a JSON object with the medians, and the ratio of both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from benchmarks.algorithms import random_engine
from benchmarks.shapes import SHAPES
from model.architecture.config import DecoderConfig
from model.architecture.weights import tensor_shapes
from scoring.layout import GroupWork
from settings.engine import EngineSettings
from tools.tpu.workloads import Group, Workload

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapters(folder: Path, config: DecoderConfig, count: int, rank: int) -> list[str]:
    """Write random adapters in the format of PEFT, and return their names."""
    random, names = np.random.default_rng(0), [f"adapter-{number}" for number in range(count)]
    shapes = {
        name.removesuffix(".weight"): shape
        for name, shape in tensor_shapes(config).items()
        if name.removesuffix(".weight").endswith(MODULES)
    }
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(MODULES)}
    for name in names:
        tensors = {}
        for module, (out, width) in shapes.items():
            tensors[f"base_model.model.{module}.lora_A.weight"] = random.standard_normal((rank, width), np.float32)
            tensors[f"base_model.model.{module}.lora_B.weight"] = 0.001 * random.standard_normal(
                (out, rank), np.float32
            )
        (folder / name).mkdir()
        (folder / name / "adapter_config.json").write_text(json.dumps(fields))
        save_file(tensors, folder / name / "adapter_model.safetensors")
    return names


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--adapters", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--query", type=int, default=200, help="tokens of each query")
    parser.add_argument("--items", type=int, default=12, help="of each query")
    parser.add_argument("--item-tokens", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    config = SHAPES[given.shape]
    with tempfile.TemporaryDirectory() as folder:
        names = write_adapters(Path(folder), config, given.adapters, given.rank)
        engine = random_engine(given.shape, EngineSettings(enable_scoring_cache=False), adapters=Path(folder))
        group = Group(given.query, (given.item_tokens,) * given.items)
        plain = Workload((group,) * given.adapters).work(config.vocabulary)
        work: dict[str, Sequence[GroupWork]] = {
            "base": plain,
            "adapters": [replace(one, adapter=name) for one, name in zip(plain, names, strict=True)],
        }
        seconds: dict[str, list[float]] = {name: [] for name in work}
        for number in range(given.repeats + 1):
            for name, groups in work.items():
                started = time.perf_counter()
                list(engine.score(groups, lambda: None))
                took = time.perf_counter() - started
                print(f"  {name}: {took:.2f} s{'' if number else ', not counted'}", file=sys.stderr)
                if number:
                    seconds[name].append(took)
    rates = {name: given.adapters * given.items / statistics.median(found) for name, found in seconds.items()}
    shown = {name: round(rate, 2) for name, rate in rates.items()}
    print(json.dumps({"items_per_s": shown, "ratio": round(rates["adapters"] / rates["base"], 3)}))


if __name__ == "__main__":
    main()
