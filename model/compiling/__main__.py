"""``python -m model.compiling --target v6e:1x1 --model DIR_OR_SHAPE``: what ``scoreline compile`` runs.

The table goes to standard error, and one JSON object to standard output as the last line. Exit status: 0 if all
programs compile and fit, 1 if not, 2 if nothing can be compiled here.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from checkpoints.files import CheckpointError
from model.compiling.cost import UnknownFrequencyError
from model.compiling.shapes import NAMED_SHAPES
from model.compiling.targets import TARGETS, Target, TargetError, prepare_environment, require_libtpu, target_named
from model.config import DecoderConfig
from settings.engine import EngineSettings


def main() -> None:
    """Compile, print, and exit."""
    options = _options()
    try:
        target = target_named(options.target)
        config = configuration(options.model)
        require_libtpu()
        sys.exit(0 if report(target, config) else 1)
    except (TargetError, CheckpointError, UnknownFrequencyError) as error:
        print(f"scoreline: {error}", file=sys.stderr)
        sys.exit(2)


def configuration(model: str) -> DecoderConfig:
    """Return the configuration of a named shape, or of the checkpoint in a folder, whose weights are not read.

    Raises :class:`checkpoints.files.CheckpointError`.
    """
    if model in NAMED_SHAPES:
        return NAMED_SHAPES[model]
    folder = Path(model)
    if not folder.is_dir():
        names = ", ".join(NAMED_SHAPES)
        raise CheckpointError(f"{model} is neither a folder of a checkpoint nor one of the shapes {names}")
    return DecoderConfig.from_directory(folder)


def report(target: Target, config: DecoderConfig) -> bool:
    """Compile the programs of a model, and print what is found. Returns whether all compile and fit."""
    prepare_environment(target)
    # What these modules import reads its environment once.
    from model.compiling.compiler import Compiler
    from model.compiling.programs import ServedModel
    from model.compiling.report import compile_programs
    from model.platforms import Platform

    compiler = Compiler(target)
    platform = Platform.of(compiler.device)
    model = ServedModel(config, EngineSettings(), platform)
    found = compile_programs(
        compiler,
        [model.program(key) for key in model.warm_up()],
        model.arrays,
        model.resident_bytes,
        platform.compiler_options,
        lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(found.as_json(), flush=True)
    return not found.misfits


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scoreline compile", description="Compile for a TPU without a TPU.")
    parser.add_argument("--target", required=True, help=f"one of {', '.join(TARGETS)}; one chip of it is compiled for")
    parser.add_argument("--model", required=True, help="folder of a checkpoint, or a shape, such as qwen3-0.6b")
    return parser.parse_args()


if __name__ == "__main__":
    main()
