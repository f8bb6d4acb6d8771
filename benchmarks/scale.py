"""Whether an item costs the same among 50, 500 and 5,000 items: ``python -m benchmarks.scale``.

All items are behind one query of 2,000 tokens, scored by ``prefill_extend``, each number of items in a process of its
own. The query by itself is timed, too; one of the two columns leaves it out of an item's cost. Memory is that of the
whole process.
"""

from __future__ import annotations

import argparse
import json

from benchmarks.algorithms import measure
from benchmarks.shapes import SHAPES
from benchmarks.timing import alone
from tools.tpu.workloads import alike

ITEM = 20
"""Tokens of an item."""
EMPTY = 0
"""Tokens of an empty item, which costs no more than its query."""


def main() -> None:
    """Measure, and print a table and one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--query", type=int, default=2_000, help="tokens")
    parser.add_argument("--items", type=int, nargs="+", default=[50, 500, 5_000])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.query + ITEM > SHAPES[options.shape].context:
        parser.error(f"{options.shape} takes {SHAPES[options.shape].context} tokens: give a shorter --query")

    bare = alone(measure, "prefill_extend", options.shape, alike(options.query, 1, EMPTY), options.repeats)
    print(f"query alone: {bare.seconds:.3f} s, peak memory {bare.peak_memory_gb:.2f} GB\n")
    print("| items | seconds | ms per item | without the query | peak memory, GB |\n|---|---|---|---|---|")
    found = []
    for items in options.items:
        workload = alike(options.query, items, ITEM)
        measured = alone(measure, "prefill_extend", options.shape, workload, options.repeats)
        each, extended = (1e3 * seconds / items for seconds in (measured.seconds, measured.seconds - bare.seconds))
        print(f"| {items} | {measured.seconds:.2f} | {each:.2f} | {extended:.2f} | {measured.peak_memory_gb:.3f} |")
        found.append(
            {
                "items": items,
                "seconds": round(measured.seconds, 3),
                "ms_per_item": round(each, 3),
                "ms_per_item_without_query": round(extended, 3),
                "peak_memory_gb": round(measured.peak_memory_gb, 3),
            }
        )
    query = {"tokens": options.query, "seconds": round(bare.seconds, 3)}
    print(json.dumps({"shape": options.shape, "query": query, "found": found}))


if __name__ == "__main__":
    main()
