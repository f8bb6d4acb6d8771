"""Measure a device in ten minutes, without a network: ``python -m benchmarks.device [--minutes 10] [--tiny]``.

It measures, in this order: the rate of bf16 products, to which all shares are relative; the gates of correctness, on
small models whose answers by HuggingFace are stored; the gates of speed, the bits of known items in other company, all
workloads and all algorithms, on random weights of the shape; the bits in another process; PyTorch beside it, where
torch is installed and has the device; and the gates on models of other families.

Each part runs in a process of its own. When the time is over, the running part is ended, and the others are left out.
Nothing else should run on the device meanwhile. The results go to ``benchmarks/results``: a page, and the same as JSON,
whose names have the date and the device. The exit status is 0 if all gates hold, and 1 if not, or if a part failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.device.findings import Finding, Part, findings_of
from benchmarks.device.gates import gates
from benchmarks.device.page import Report
from benchmarks.device.pytorch import WAYS, pytorch
from benchmarks.device.scale import Scale
from benchmarks.device.speed import device, rate, second_process, speed
from benchmarks.shapes import SHAPES

RESULTS = Path(__file__).parents[1] / "results"
DTYPES = ("float32", "bfloat16")
OTHERS = ("untied", "llama3 scaled", "qwen2 yarn")
"""Models of other families, whose gates come last."""


def main() -> int:
    """Measure, write the results, and return the exit status."""
    options = _options()
    until = time.time() + 60 * options.minutes
    found = []
    for finding in measured(Scale("demonstration" if options.tiny else options.shape, options.tiny), until):
        figures = ", ".join(f"{name} {value}" for name, value in finding.values.items())
        print(f"{finding.part}: {finding.name}: {figures}", flush=True)
        found.append(finding)
    kind = str(next((one.values["kind"] for one in found if one.name == "device"), "no device"))
    versions = {name: version(name) for name in ("jax", "jaxlib")}
    command = " ".join(["python -m benchmarks.device", *sys.argv[1:]])
    report = Report(datetime.now(UTC).date().isoformat(), kind, versions, command, found)
    print(f"written: {report.write(options.out)}")
    return 1 if report.failed else 0


def measured(scale: Scale, until: float) -> Iterator[Finding]:
    """Run all parts, and yield what they find, until the time is over."""
    values: dict[str, Any] = {}
    for part in (Part("device", device, (scale,)), Part("products", rate, (scale.tiny,))):
        for finding in findings_of(part, until):
            yield finding
            values |= finding.values
    if "platform" not in values or "tflops" not in values:
        return
    platform, gflops = str(values["platform"]), 1e3 * float(values["tflops"] or 0.0)
    for dtype in DTYPES:
        yield from findings_of(Part("gates of correctness", gates, ("tied", dtype, scale)), until)
    alone = None
    for finding in findings_of(Part("speed", speed, (scale, gflops)), until):
        yield finding
        if (finding.part, finding.name) == ("bits", "alone"):
            alone = finding.values["digest"]
    if alone is not None:
        yield from findings_of(Part("bits", second_process, (scale, alone)), until)
    for way in WAYS:
        yield from findings_of(Part("PyTorch", pytorch, (way, platform, scale, gflops)), until)
    for name in () if scale.tiny else OTHERS:
        for dtype in DTYPES:
            yield from findings_of(Part("gates of correctness", gates, (name, dtype, scale)), until)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="when the time is over, what runs is ended")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b", help="of the model whose speed is measured")
    parser.add_argument("--tiny", action="store_true", help="try the command on a tiny model; its figures say nothing")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
