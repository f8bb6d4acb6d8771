"""Items per second of every algorithm, and of HuggingFace, one after another: ``python -m benchmarks.engine``.

Each runs in a process of its own, so that its memory is its own, with random bf16 weights: a product takes as long
whatever the numbers are. What is timed is one request from nothing, the query's prefill in it; the first run compiles
and does not count. Shares are of the rate that large bf16 products reach on this machine in this run, for necessary
operations only (:meth:`benchmarks.workloads.Workload.necessary_flop`). Serial scoring is timed on fewer items, since
it takes long; so may peers be.

HuggingFace is timed with the query's keys and values computed once and expanded to batches of items; it needs torch
(``make parity`` installs it into .parity: ``PYTHONPATH=.parity python -m benchmarks.engine``).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks.shapes import SHAPES
from benchmarks.workloads import WORKLOADS, Workload
from scoring.algorithms import Wanted

ALGORITHMS: dict[str, tuple[Wanted, Literal["auto", "dense", "segment"]]] = {
    "serial": ("serial", "auto"),
    "packed_dense": ("packed", "dense"),
    "packed_segment": ("packed", "segment"),
    "prefill_extend": ("prefill_extend", "auto"),
}
BATCH = 25
"""Items that HuggingFace takes at a time."""


@dataclass(frozen=True, slots=True)
class Measured:
    """seconds: median of the repeats, for so many items; peak_memory_gb: of the process."""

    items: int
    seconds: float
    peak_memory_gb: float


def timed(run: Callable[[], object], repeats: int, items: int) -> Measured:
    """Run once to compile, then the repeats."""
    run()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
        print(f"  {seconds[-1]:.2f} s", file=sys.stderr)
    return Measured(items, statistics.median(seconds), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)


def measure_engine(algorithm: str, shape: str, workload: Workload, repeats: int) -> Measured:
    """One algorithm of ours. Nothing is kept from one run to the next."""
    import jax.numpy as jnp
    from flax import nnx

    from model.decoder import Decoder
    from model.engine import Engine
    from scoring.model_card import ModelCard
    from settings.engine import EngineSettings

    config = SHAPES[shape]
    decoder = Decoder(config, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    wanted, mask = ALGORITHMS[algorithm]
    settings = EngineSettings(enable_scoring_cache=False, multi_item_mask_impl=mask)
    engine = Engine(decoder, settings, ModelCard("benchmark", config.context, config.vocabulary, ""), "", wanted)
    work = workload.work(config.vocabulary)
    return timed(lambda: list(engine.score(work, lambda: None)), repeats, workload.items)


def measure_huggingface(shape: str, workload: Workload, repeats: int) -> Measured:
    """HuggingFace's own classes: prefill once, expand the cache to a batch, extend, read the last position."""
    import copy

    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    config = SHAPES[shape]
    fields = config.to_huggingface()
    model = AutoModelForCausalLM.from_config(Qwen3Config(**fields), dtype=torch.bfloat16).eval()
    query, items = (torch.tensor(part).long() for part in workload.tokens(config.vocabulary))

    def run() -> None:
        with torch.inference_mode():
            prefix = model(query[None], use_cache=True, logits_to_keep=1).past_key_values
            for batch in items.split(BATCH):
                cache = copy.deepcopy(prefix)
                cache.batch_repeat_interleave(len(batch))
                model(batch, past_key_values=cache, logits_to_keep=1).logits.float().log_softmax(-1)

    return timed(run, repeats, workload.items)


def measure_rate() -> float:
    """GFLOP/s; see :mod:`benchmarks.machine`."""
    from benchmarks.machine import bf16_gflops

    return bf16_gflops()


def alone(what: Callable[..., Any], *arguments: Any) -> Any:
    """Run in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(what, arguments)


def main() -> None:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--workload", choices=WORKLOADS, default="target")
    parser.add_argument("--items", type=int, help="instead of the workload's")
    parser.add_argument("--algorithms", nargs="*", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--peers", nargs="*", choices=["huggingface_cached"], default=[])
    parser.add_argument("--serial-items", type=int, default=5, help="items that serial scoring is timed on, at most")
    parser.add_argument("--peer-items", type=int, default=50, help="items that a peer is timed on, at most")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()

    whole = WORKLOADS[options.workload]
    if options.items is not None:
        whole = whole.with_items(options.items)
    config = SHAPES[options.shape]
    rate = alone(measure_rate)
    print(f"bf16 products: {rate:.0f} GFLOP/s", file=sys.stderr)
    algorithms, peers = {}, {}
    for algorithm in options.algorithms:
        most = options.serial_items if algorithm == "serial" else whole.items
        workload = whole.with_items(min(whole.items, most))
        print(f"{algorithm}, {workload.name}", file=sys.stderr)
        measured = alone(measure_engine, algorithm, options.shape, workload, options.repeats)
        flop = workload.necessary_flop(config)
        algorithms[algorithm] = described(measured) | {
            "share_of_rate": round(flop / measured.seconds / 1e9 / rate, 3),
            "necessary_tflop": round(flop / 1e12, 3),
        }
    for peer in options.peers:
        workload = whole.with_items(min(whole.items, options.peer_items))
        print(f"{peer}, {workload.name}", file=sys.stderr)
        peers[peer] = described(alone(measure_huggingface, options.shape, workload, options.repeats))
    print(
        json.dumps(
            {
                "shape": options.shape,
                "workload": whole.name,
                "bf16_gflops": round(rate, 1),
                "algorithms": algorithms,
                "peers": peers,
            }
        )
    )


def described(measured: Measured) -> dict[str, float]:
    """For the JSON object."""
    seconds = {"seconds": round(measured.seconds, 2), "items_per_s": round(measured.items / measured.seconds, 3)}
    return asdict(measured) | seconds | {"peak_memory_gb": round(measured.peak_memory_gb, 2)}


if __name__ == "__main__":
    main()
