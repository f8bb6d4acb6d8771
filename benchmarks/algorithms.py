"""Times the engine's four algorithms on a workload.

jax is imported only in the processes that measure, not in the one that starts them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from benchmarks.shapes import SHAPES
from benchmarks.timing import Measured, timed
from model.compiling.workloads import Workload
from scoring.planning.algorithms import AlgorithmSetting
from settings.engine import EngineSettings

if TYPE_CHECKING:
    from model.engine import Engine


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The settings of an engine that differ between measurements."""

    algorithm: AlgorithmSetting
    mask: Literal["auto", "dense", "segment"] = "auto"  # of packed sequences
    batch_invariant: bool = True


ALGORITHMS = {
    "serial": EngineOptions("serial"),
    "packed_dense": EngineOptions("packed", "dense"),
    "packed_segment": EngineOptions("packed", "segment"),
    "prefill_extend": EngineOptions("prefill_extend"),
}
PLANNED = {"auto": EngineOptions("auto"), "auto_any_company": EngineOptions("auto", batch_invariant=False)}
"""The planner's choice, with batch invariance and without."""


def random_engine(shape: str, settings: EngineSettings, wanted: AlgorithmSetting = "auto") -> Engine:
    """Return an engine with random weights in the dtype served here, since time does not depend on the numbers.

    Its log goes to standard error.
    """
    import jax
    import structlog
    from flax import nnx

    from checkpoints.card import ModelCard
    from model.architecture.decoder import Decoder
    from model.engine import Engine
    from model.platforms import Platform

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    config = SHAPES[shape]
    platform = Platform.of(jax.devices()[0])
    dtype = platform.serving_dtype(settings.dtype)
    print(f"  in {dtype}", file=sys.stderr)
    decoder = Decoder(config, dtype=dtype, rngs=nnx.Rngs(0), tied_as_rows=platform.tied_as_rows)
    card = ModelCard("benchmark", config.context, config.vocabulary, "")
    return Engine(decoder, settings, card, "", platform, wanted)


def measure(algorithm: str, shape: str, workload: Workload, repeats: int) -> Measured:
    """Time one algorithm, which keeps nothing from one run to the next."""
    options = (ALGORITHMS | PLANNED)[algorithm]
    settings = EngineSettings(
        enable_scoring_cache=False, multi_item_mask_impl=options.mask, batch_invariant=options.batch_invariant
    )
    engine = random_engine(shape, settings, options.algorithm)
    work = workload.work(SHAPES[shape].vocabulary)

    def warm_up() -> None:
        engine.warm_up(lambda done, total, program: None)
        engine.warm_up_rest(lambda done, total, program: None)

    measured = timed(lambda: list(engine.score(work, lambda: None)), repeats, workload.items, warm_up)
    return replace(measured, computed_tokens=engine.computed_tokens // repeats)
