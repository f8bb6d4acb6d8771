"""The engine's four algorithms on a workload.

What loads jax is imported where it runs, in processes of their own: the one that starts them needs none of it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from benchmarks.shapes import SHAPES
from benchmarks.timing import Measured, timed
from benchmarks.workloads import Workload
from scoring.algorithms import Wanted
from settings.engine import EngineSettings

if TYPE_CHECKING:
    from model.engine import Engine

ALGORITHMS: dict[str, tuple[Wanted, Literal["auto", "dense", "segment"]]] = {
    "serial": ("serial", "auto"),
    "packed_dense": ("packed", "dense"),
    "packed_segment": ("packed", "segment"),
    "prefill_extend": ("prefill_extend", "auto"),
}
"""By name: what an engine is asked for, and the mask of its packed sequences."""


def random_engine(shape: str, settings: EngineSettings, wanted: Wanted = "auto") -> Engine:
    """An engine with random bf16 weights: a product takes as long whatever the numbers are.

    What it logs goes to standard error, since standard output is for results.
    """
    import jax.numpy as jnp
    import structlog
    from flax import nnx

    from model.decoder import Decoder
    from model.engine import Engine
    from scoring.model_card import ModelCard

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    config = SHAPES[shape]
    decoder = Decoder(config, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    card = ModelCard("benchmark", config.context, config.vocabulary, "")
    return Engine(decoder, settings, card, "", wanted)


def measure(algorithm: str, shape: str, workload: Workload, repeats: int) -> Measured:
    """One algorithm. Nothing is kept from one run to the next."""
    wanted, mask = ALGORITHMS[algorithm]
    settings = EngineSettings(enable_scoring_cache=False, multi_item_mask_impl=mask)
    engine = random_engine(shape, settings, wanted)
    work = workload.work(SHAPES[shape].vocabulary)
    measured = timed(lambda: list(engine.score(work, lambda: None)), repeats, workload.items)
    return replace(measured, computed_tokens=engine.computed_tokens // (repeats + 1))
