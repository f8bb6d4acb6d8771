"""Items per second of every algorithm, and of peers, one after another: ``python -m benchmarks.engine``.

Each runs in a process of its own, so that its memory is its own, with random weights in the dtype that is served on
this machine (``SCORELINE_DTYPE`` chooses another; peers take what suits them): a product takes as long whatever the
numbers are. What is timed is one request from nothing, the query's prefill in it; the first run compiles and does not
count. Shares are of the rate that large bf16 products reach on this machine in this run (:mod:`benchmarks.machine`),
for necessary operations only (:data:`tools.tpu.workloads.FORMULA`). Serial scoring is timed on fewer items, since
it takes long; so may peers be. The last line is a JSON object; everything else, what was computed for nothing among it,
is on standard error.

Peers, each with as many threads as there are cores:

``huggingface_cached``: the query's keys and values computed once and expanded to batches of items;
``huggingface_serial``: whole sequences; ``llama_cpp``: items share the cells of the query's cache.

They are installed for the machine that measures, torch by ``make parity``, llama.cpp by ``make peers`` (which compiles
for several minutes), and found where the path says so::

    PYTHONPATH=.parity:.peers python -m benchmarks.engine --peers huggingface_cached huggingface_serial llama_cpp
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import algorithms, huggingface, llama_cpp
from benchmarks.shapes import SHAPES
from benchmarks.timing import Measured, alone
from benchmarks.workloads import WORKLOADS
from model.architecture.config import DecoderConfig
from tools.tpu.workloads import FORMULA, Workload


@dataclass(frozen=True, slots=True)
class Peer:
    """Another implementation that is timed on the same workload."""

    measure: Callable[[str, Workload, int], Measured]
    needs: dict[str, str]  # modules that the service does not depend on, with the make target that installs them
    serial: bool = False

    @property
    def missing(self) -> dict[str, str]:
        """The needed modules that are not installed."""
        return {module: target for module, target in self.needs.items() if importlib.util.find_spec(module) is None}


PEERS = {
    "huggingface_cached": Peer(huggingface.measure_cached, {"torch": "parity"}),
    "huggingface_serial": Peer(huggingface.measure_serial, {"torch": "parity"}, serial=True),
    "llama_cpp": Peer(llama_cpp.measure, {"llama_cpp": "peers", "gguf": "peers"}),
}


CHOICES = (*algorithms.ALGORITHMS, *algorithms.PLANNED)


def main() -> None:
    """Measure, and print one JSON object as the last line."""
    options = _options()
    for name in options.peers:
        for module, target in PEERS[name].missing.items():
            sys.exit(_refusal(f"{name} needs {module}: make {target}, and PYTHONPATH=.{target}"))
    config = SHAPES[options.shape]
    whole = WORKLOADS[options.workload]
    if options.items is not None:
        whole = whole.first(options.items)
    say(f"{options.shape}, {options.workload}: {whole}; necessary: {whole.necessary_flop(config)}")
    say(FORMULA)
    rate = alone(measure_rate)
    say(f"bf16 products: {rate:.0f} GFLOP/s")
    found = {}
    for name in options.algorithms:
        if config.recurrence is not None and name.startswith("packed"):
            say(f"{name}: left out, since {options.shape} has recurrent layers")
            continue
        part, repeats = whole, options.repeats
        if name == "serial":
            part, repeats = whole.first(options.serial_items), options.serial_repeats or repeats
        say(f"{name}: {part}")
        measured = alone(algorithms.measure, name, options.shape, part, repeats)
        say(_in_words(measured, part))
        found[name] = described(measured, part, config, rate)
    peers = {}
    for name in options.peers:
        part = whole.first(options.serial_items if PEERS[name].serial else options.peer_items)
        say(f"{name}: {part}")
        measured = alone(PEERS[name].measure, options.shape, part, options.peer_repeats or options.repeats)
        say(_in_words(measured, part))
        peers[name] = {"items_per_s": round(measured.items_per_s, 3)}
    report = {"workload": options.workload, "bf16_gflops": round(rate, 1), "algorithms": found, "peers": peers}
    print(json.dumps(report))


def measure_rate() -> float:
    """Return the GFLOP/s of :mod:`benchmarks.machine`, which imports jax in the process that measures."""
    from benchmarks.machine import bf16_gflops

    return bf16_gflops()


def described(measured: Measured, workload: Workload, config: DecoderConfig, rate: float) -> dict[str, float]:
    """Return the figures for the JSON object; rate: of bf16 products, in GFLOP/s."""
    flop = workload.necessary_flop(config).total
    return {
        "items_per_s": round(measured.items_per_s, 3),
        "share_of_rate": round(flop / measured.seconds / 1e9 / rate, 3),
        "peak_memory_gb": round(measured.peak_memory_gb, 2),
        "necessary_tflop": round(flop / 1e12, 4),
    }


def say(line: str) -> None:
    """Print a line on standard error."""
    print(line, file=sys.stderr, flush=True)


def _in_words(measured: Measured, workload: Workload) -> str:
    line = (
        f"  {measured.items} items in {measured.seconds:.2f} s, {measured.items_per_s:.3g} a second; "
        f"peak memory {measured.peak_memory_gb:.2f} GB"
    )
    if measured.computed_tokens is not None:
        times = measured.computed_tokens / workload.tokens
        line += f"; {measured.computed_tokens} tokens computed, {workload.tokens} necessary: {times:.2f} times as many"
    return line


def _refusal(line: str) -> int:
    say(line)
    return 2


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--workload", choices=WORKLOADS, default="target")
    parser.add_argument("--items", type=_positive, help="the workload's first so many; of reranking, queries")
    parser.add_argument(
        "--algorithms",
        nargs="*",
        choices=algorithms.ALGORITHMS | algorithms.PLANNED,
        default=list(algorithms.ALGORITHMS),
    )
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=[])
    parser.add_argument(
        "--serial-items", type=_positive, default=5, help="that serial scoring, a peer's too, is timed on, at most"
    )
    parser.add_argument(
        "--peer-items", type=_positive, default=50, help="that a peer which is not serial is timed on, at most"
    )
    parser.add_argument("--repeats", type=_positive, default=3)
    parser.add_argument("--serial-repeats", type=_positive, help="of our serial scoring, instead of --repeats")
    parser.add_argument("--peer-repeats", type=_positive, help="of peers, instead of --repeats")
    return parser.parse_args()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


if __name__ == "__main__":
    main()
