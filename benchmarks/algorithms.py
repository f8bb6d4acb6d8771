"""The engine's four algorithms on a workload.

What loads jax is imported where it runs, in processes of their own: the one that starts them needs none of it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from benchmarks.shapes import SHAPES
from benchmarks.timing import Measured, timed
from benchmarks.workloads import Workload
from scoring.planning.algorithms import Wanted
from settings.engine import EngineSettings

if TYPE_CHECKING:
    from model.engine import Engine


@dataclass(frozen=True, slots=True)
class Asked:
    """What an engine is asked for: an algorithm, the mask of its packed sequences, and batch invariance."""

    algorithm: Wanted
    mask: Literal["auto", "dense", "segment"] = "auto"
    batch_invariant: bool = True


ALGORITHMS = {
    "serial": Asked("serial"),
    "packed_dense": Asked("packed", "dense"),
    "packed_segment": Asked("packed", "segment"),
    "prefill_extend": Asked("prefill_extend"),
}
PLANNED = {"auto": Asked("auto"), "auto_any_company": Asked("auto", batch_invariant=False)}
"""What the planner picks, with batch invariance and without."""


def random_engine(shape: str, settings: EngineSettings, wanted: Wanted = "auto") -> Engine:
    """An engine with random weights, in the dtype served here: a product takes as long whatever the numbers are.

    What it logs goes to standard error, since standard output is for results.
    """
    import jax
    import structlog
    from flax import nnx

    from checkpoints.card import ModelCard
    from model.decoder import Decoder
    from model.engine import Engine
    from model.platforms import serving_dtype

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    config = SHAPES[shape]
    dtype = serving_dtype(settings.dtype, jax.devices()[0].platform)
    print(f"  in {dtype}", file=sys.stderr)
    decoder = Decoder(config, dtype=dtype, rngs=nnx.Rngs(0))
    card = ModelCard("benchmark", config.context, config.vocabulary, "")
    return Engine(decoder, settings, card, "", wanted)


def measure(algorithm: str, shape: str, workload: Workload, repeats: int) -> Measured:
    """One algorithm. Nothing is kept from one run to the next."""
    asked = (ALGORITHMS | PLANNED)[algorithm]
    settings = EngineSettings(
        enable_scoring_cache=False, multi_item_mask_impl=asked.mask, batch_invariant=asked.batch_invariant
    )
    engine = random_engine(shape, settings, asked.algorithm)
    work = workload.work(SHAPES[shape].vocabulary)

    def warm_up() -> None:
        engine.warm_up(lambda done, total, program: None)
        engine.warm_up_rest(lambda done, total, program: None)

    measured = timed(lambda: list(engine.score(work, lambda: None)), repeats, workload.items, warm_up)
    return replace(measured, computed_tokens=engine.computed_tokens // repeats)
