"""Times the engine's four algorithms on a workload.

jax is imported only in the processes that measure, not in the one that starts them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from unittest.mock import patch

import numpy as np

from benchmarks.shapes import SHAPES
from benchmarks.timing import Measured, timed
from benchmarks.workloads import LabelWorkload
from scoring.planning.algorithms import AlgorithmSetting
from scoring.planning.cut import cut
from scoring.planning.lengths import GroupLengths
from scoring.planning.planner import Assignment, Planner
from settings.engine import EngineSettings
from tools.tpu.workloads import Workload

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


def random_engine(
    shape: str, settings: EngineSettings, wanted: AlgorithmSetting = "auto", adapters: Path | None = None
) -> Engine:
    """Return an engine with random weights in the dtype served here, since time does not depend on the numbers.

    Its log goes to standard error. adapters: the folder of those that work may name.
    """
    import jax
    import structlog
    from flax import nnx

    from checkpoints.adapter_folder import AdapterFolder
    from checkpoints.card import ModelCard
    from model.architecture.decoder import Decoder
    from model.cpu_threads import choose_cpu_threads
    from model.engine import Engine
    from model.platforms import Platform

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    config = SHAPES[shape]
    choose_cpu_threads(settings.cpu_threads, config, os.environ)
    platform = Platform.of(jax.devices()[0])
    dtype = platform.serving_dtype(settings.dtype)
    print(f"  in {dtype}", file=sys.stderr)
    decoder = Decoder(config, dtype=dtype, rngs=nnx.Rngs(0), tied_as_rows=platform.tied_as_rows)
    card = ModelCard("benchmark", config.context, config.vocabulary, "")
    folder = None if adapters is None else AdapterFolder(adapters)
    return Engine(decoder, settings, card, "", platform, wanted, adapters=folder)


@contextmanager
def planned_by(options: EngineOptions) -> Iterator[None]:
    """Let engines that exist plan by other settings meanwhile, so that their programs need not be compiled again."""
    plan = Planner.plan

    def planned(planner: Planner, group: GroupLengths) -> list[Assignment]:
        wanted = {"algorithm": options.algorithm, "mask": options.mask, "batch_invariant": options.batch_invariant}
        return plan(replace(planner, policy=replace(planner.policy, **wanted)), group)

    with patch.object(Planner, "plan", planned):
        yield


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


WAYS = {"planned": None, "rows": False, "branches": True}
"""How labels of several tokens are computed: as the planner chooses, or in one way."""


def measure_labels(way: str, shape: str, workload: LabelWorkload, repeats: int) -> Measured:
    """Time labels of several tokens, whose query is not kept from one run to the next."""
    engine = random_engine(shape, EngineSettings(enable_scoring_cache=False))
    work = workload.work(SHAPES[shape].vocabulary)

    def warm_up() -> None:
        engine.warm_up(lambda done, total, program: None)
        engine.warm_up_rest(lambda done, total, program: None)

    forced = WAYS[way]
    with ExitStack() as stack:
        if forced is not None:
            decided = lambda _, begins, *__: np.full(len(begins), forced)  # noqa: E731
            stack.enter_context(patch("scoring.planning.cut._are_branches", decided))
        measured = timed(lambda: list(engine.score(work, lambda: None)), repeats, workload.items, warm_up)
    return replace(measured, computed_tokens=engine.computed_tokens // repeats)


def chosen_way(shape: str, workload: LabelWorkload) -> str:
    """Return the name in :data:`WAYS` of what the planner chooses for all labels."""
    engine = random_engine(shape, EngineSettings(enable_scoring_cache=False))
    (group,) = workload.work(SHAPES[shape].vocabulary)
    parts = [(chunk.rows, chunk.continuations) for chunk in group.chunks]
    made = cut(engine.planner, GroupLengths.of(len(group.prefix), parts))
    return "branches" if len(made.branches) else "rows"
