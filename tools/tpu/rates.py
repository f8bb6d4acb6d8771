"""``python -m tools.tpu.rates``: the rates of a TPU by its compiler's estimate, until somebody measures them.

The planner divides operations by rates (:mod:`scoring.planning.estimates`). On a device, ``python -m benchmarks.rates``
measures them. This prints the same file by the estimates of whole steps of Qwen3-0.6B (``docs/accelerators.md``); with
``--write``, it becomes ``scoring/planning/rates/tpu.json``.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import structlog

from settings.engine import EngineSettings
from tools.tpu.targets import TARGETS, prepare_environment, require_libtpu, target_named

if TYPE_CHECKING:
    from tools.tpu.report import Planned, Report

SHAPE = "qwen3-0.6b"
CALL_SECONDS = 1e-4
"""What a step takes beside its instructions, by assumption: nobody has measured a launch."""


def main() -> None:
    """Print the rates, and write them if that is asked for."""
    parser = argparse.ArgumentParser(description="Estimate the rates of a TPU.")
    parser.add_argument("--target", default="v6e", choices=[name for name, one in TARGETS.items() if one.chips == 1])
    parser.add_argument("--write", action="store_true", help="write scoring/planning/rates/tpu.json")
    options = parser.parse_args()
    require_libtpu()
    target = target_named(options.target)
    prepare_environment(target)
    # What these modules import reads its environment once.
    from model.platforms import Platform
    from scoring.planning.estimates import MEASURED
    from tools.tpu.compiler import Compiler
    from tools.tpu.report import Report

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    compiler = Compiler(target)
    platform = Platform.of(compiler.devices[0], memory=int(target.usable_memory))
    found = {
        "command": f"python -m tools.tpu.rates --target {target.name}",
        "device": f"tpu: {target.name}, estimated by its compiler",
        "jax": version("jax"),
        "bf16_gflops": round(target.peak / 1e9, 1),
        **rates(Report(compiler, platform, lambda line: print(line, file=sys.stderr))),
    }
    text = json.dumps(found, indent=2)
    print(text)
    if options.write:
        (MEASURED / "tpu.json").write_text(text + "\n", encoding="utf-8")


def rates(report: Report) -> dict[str, Any]:
    """Return the rates in GFLOP/s as :class:`scoring.planning.estimates.Rates` reads them."""
    from model.programs.label_head import HeadKey
    from model.whole_steps.extend import ExtendKey
    from model.whole_steps.packed import PackedKey
    from tools.tpu.frequencies import KERNEL
    from tools.tpu.shapes import NAMED_SHAPES
    from tools.tpu.workloads import MEASURED as WORKLOADS

    config = NAMED_SHAPES[SHAPE]
    names = "target", "packed_segment", "packed_dense"
    planned = report.plan([WORKLOADS[name] for name in names], config, EngineSettings())
    target, segment, dense = planned
    (group,) = WORKLOADS["target"].workload.groups
    shapes = target.engine.shapes

    def seconds(of: Planned, kind: type) -> tuple[float, float]:
        """Return the seconds of a program, and how many of them are in the kernel of attention."""
        call = next(call for call in of.calls if isinstance(call.key, kind))
        return report.seconds_in(KERNEL, call, of.engine)

    step, attention = seconds(target, ExtendKey)
    head, _ = seconds(target, HeadKey)
    of_segments, kernel = seconds(segment, PackedKey)
    of_dense, _ = seconds(dense, PackedKey)
    size, tokens = config.size, shapes.step_tokens
    seen = -(-group.query // tokens) * tokens + max(group.items)  # by a row, as the planner counts
    linear = size.linear_flop * tokens / (step - attention)
    packed = max(shapes.packed_sizes)
    pairs = shapes.packed_pairs(group.query, packed, dense=False), shapes.packed_pairs(group.query, packed, dense=True)
    found = {
        "prefix_gflops": size.pair_flop * tokens * seen / attention,
        "segment_gflops": size.pair_flop * pairs[0] / kernel,
        "dense_gflops": size.pair_flop * pairs[1] / (of_dense - (of_segments - kernel)),
        "head_gflops": size.head_flop * shapes.head_rows / head,
    }
    return {
        "linear_gflops": {str(tokens): round(linear / 1e9, 1)},
        **{name: round(rate / 1e9, 1) for name, rate in found.items()},
        "layer_seconds": round(CALL_SECONDS / config.layers, 7),
    }


if __name__ == "__main__":
    main()
