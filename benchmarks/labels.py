"""Items per second with labels of several tokens, beside labels of one token: ``python -m benchmarks.labels``.

The engine runs in each of its two ways (rows of item and label behind the query; query and item as a prefix of their
own, with labels behind it), and as its planner chooses, and a line says which way that is. Peers run the first
``--peer-items`` items, as does the engine once more, so that the query's prefill weighs the same. Labels of one token
are timed on the same items in the same run. For each peer, the last lines say how many times as fast the engine is for
either kind of labels.

All is as in :mod:`benchmarks.engine`: processes of their own, random weights, an empty cache, the first run not
counted. HuggingFace scores rows of item and label in batches behind the cached query. llama.cpp does so, too
(``llama_cpp``), or decodes an item once for all of its labels, whose tokens share its cells (``llama_cpp_shared``). The
last line is a JSON object::

    PYTHONPATH=.parity:.peers python -m benchmarks.labels --peers huggingface llama_cpp llama_cpp_shared
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from benchmarks import algorithms, huggingface, llama_cpp
from benchmarks.engine import PEERS as ONE_TOKEN_PEERS
from benchmarks.engine import say
from benchmarks.shapes import SHAPES
from benchmarks.timing import Measured, alone
from benchmarks.workloads import LABEL_WORKLOADS, LabelWorkload

PEERS: dict[str, tuple[str, Callable[[str, LabelWorkload, int], Measured]]] = {
    "huggingface": ("huggingface_cached", huggingface.measure_labels),
    "llama_cpp": ("llama_cpp", llama_cpp.measure_label_rows),
    "llama_cpp_shared": ("llama_cpp", llama_cpp.measure_labels),
}
"""By name: the peer of :mod:`benchmarks.engine`, and how it scores labels of several tokens."""
COMPARED = "short"
"""The workload that peers run."""


def main() -> None:
    """Measure, and print one JSON object as the last line."""
    options = _options()
    for name in options.peers:
        for module, target in ONE_TOKEN_PEERS[PEERS[name][0]].missing.items():
            sys.exit(f"{name} needs {module}: make {target}, and PYTHONPATH=.{target}")
    report: dict[str, dict[str, float | str]] = {}
    for name in options.workloads:
        workload = LABEL_WORKLOADS[name].first(options.items)
        report[name] = {
            way: _told(f"{workload}, {way}", alone(algorithms.measure_labels, way, options.shape, workload, 1))
            for way in options.ways
        }
        if set(options.ways) == set(algorithms.WAYS):
            report[name] |= _beside_the_other_way(
                f"{workload}", alone(algorithms.chosen_way, options.shape, workload), report[name]
            )
    if options.peers:
        workload = LABEL_WORKLOADS[options.compared].first(options.peer_items)
        report["peers"] = _beside_peers(options.shape, workload, options.peers, options.repeats)
    print(json.dumps(report))


def _beside_the_other_way(workload: str, chosen: str, rates: dict[str, float | str]) -> dict[str, float | str]:
    """Say which way the planner chose, and return its name and how many times as fast as the other way it was."""
    (other,) = algorithms.WAYS.keys() - {"planned", chosen}
    times = round(float(rates[chosen]) / float(rates[other]), 3)
    say(f"{workload}: the planner chooses {chosen}, which are {times:.2f} times as fast as {other}")
    return {"chosen": chosen, "times_as_fast": times}


def _beside_peers(shape: str, workload: LabelWorkload, peers: list[str], repeats: int) -> dict[str, float | str]:
    one_token = workload.with_one_token()
    found = {
        "labels": _told(f"{workload}", alone(algorithms.measure_labels, "planned", shape, workload, repeats)),
        "one_token": _told(f"{one_token}", alone(algorithms.measure, "auto", shape, one_token, repeats)),
    }
    for name in peers:
        of_one_token, measure = PEERS[name]
        labels = _told(f"{name}, {workload}", alone(measure, shape, workload, repeats))
        single = _told(f"{name}, {one_token}", alone(ONE_TOKEN_PEERS[of_one_token].measure, shape, one_token, repeats))
        found |= {f"{name}_labels": labels, f"{name}_one_token": single}
        times, single_times = found["labels"] / labels, found["one_token"] / single
        found[f"{name}_ratio"] = round(times / single_times, 3)
        say(f"{name}: {times:.2f} times as fast with labels, {single_times:.2f} times with one token")
    return {**found}


def _told(what: str, measured: Measured) -> float:
    line = f"{what}: {measured.seconds:.2f} s, {measured.items_per_s:.3g} items a second"
    say(
        f"{line}, peak memory {measured.peak_memory_gb:.2f} GB, {measured.computed_tokens or 'unknown'} tokens computed"
    )
    return round(measured.items_per_s, 3)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--workloads", nargs="*", choices=LABEL_WORKLOADS, default=["short", "long"])
    parser.add_argument("--ways", nargs="*", choices=algorithms.WAYS, default=list(algorithms.WAYS))
    parser.add_argument("--items", type=int, default=10_000, help="of each workload, at most; peers have their own")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=[])
    parser.add_argument("--compared", choices=LABEL_WORKLOADS, default=COMPARED, help="the workload that peers run")
    parser.add_argument("--peer-items", type=int, default=50, help="items that peers are timed on, at most")
    parser.add_argument("--repeats", type=int, default=1, help="beside peers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
