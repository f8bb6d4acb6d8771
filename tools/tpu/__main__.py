"""``python -m tools.tpu --target v6e:1x1 --model DIR_OR_SHAPE``: what ``scoreline compile`` runs.

The table goes to standard error, and one JSON object to standard output as the last line. Exit status: 0 if all
programs compile and fit, 1 if not, 2 if nothing can be compiled here.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from checkpoints.files import CheckpointError
from model.architecture.config import DecoderConfig
from settings.engine import EngineSettings
from tools.tpu.shapes import NAMED_SHAPES
from tools.tpu.targets import TARGETS, Target, TargetError, prepare_environment, require_libtpu, target_named
from tools.tpu.workloads import MEASURED, Measured


def main() -> None:
    """Compile, print, and exit."""
    options = _options()
    try:
        target = target_named(options.target)
        config = configuration(options.model)
        config = replace(config, context=min(options.context or config.context, config.context))
        require_libtpu()
        sys.exit(0 if report(target, config, [MEASURED[name] for name in options.workloads]) else 1)
    except (TargetError, CheckpointError) as error:
        print(f"scoreline: {error}", file=sys.stderr)
        sys.exit(2)


def configuration(model: str) -> DecoderConfig:
    """Return the configuration of a named shape, or of the checkpoint in a folder, whose weights are not read.

    Raises :class:`checkpoints.files.CheckpointError`.
    """
    folder = Path(model)
    if model not in NAMED_SHAPES and not folder.is_dir():
        names = ", ".join(NAMED_SHAPES)
        raise CheckpointError(f"{model} is neither a folder of a checkpoint nor one of the shapes {names}")
    return NAMED_SHAPES[model] if model in NAMED_SHAPES else DecoderConfig.from_directory(folder)


def report(target: Target, config: DecoderConfig, workloads: Sequence[Measured]) -> bool:
    """Compile the programs of a model, and print what is found. Returns whether all of them compile and fit."""
    prepare_environment(target)
    # What these modules import reads its environment once.
    from model.chips.mesh import Chips
    from model.platforms import Platform
    from model.prefixes.pool import ContextTooLongError
    from tools.tpu.compiler import Compiler
    from tools.tpu.report import Report

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    compiler = Compiler(target)
    chips = Chips.of(compiler.devices) if target.chips > 1 else None
    platform = Platform.of(compiler.devices[0], memory=int(target.usable_memory), chips=chips)
    found = Report(compiler, platform, lambda line: print(line, file=sys.stderr, flush=True))
    settings = EngineSettings()
    found.calibrate()
    try:
        planned = found.plan(workloads, config, settings)
        found.warm_up(config, settings)
        for workload in planned:
            found.estimate(workload, config)
        found.compare()
    except ContextTooLongError as error:
        found.misfit(str(error))
    print(found.as_json(), flush=True)
    return not found.misfits


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scoreline compile", description="Compile for a TPU without a TPU.")
    parser.add_argument("--target", required=True, help=f"one of {', '.join(TARGETS)}; its chips share the model")
    parser.add_argument("--model", required=True, help="folder of a checkpoint, or a shape, such as qwen3-0.6b")
    parser.add_argument("--context", type=int, help="tokens of the longest sequence; the model's own by default")
    parser.add_argument("--workloads", nargs="*", choices=MEASURED, default=list(MEASURED), help="to be estimated")
    return parser.parse_args()


if __name__ == "__main__":
    main()
