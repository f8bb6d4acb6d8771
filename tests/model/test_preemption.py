"""Work that preempts other work between two steps changes no bit of its scores, and the other way round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from model.engine import Engine
from tests.model import engines
from tests.model.checkpoints import EVERY
from tests.model.geometries import STEP, VOCABULARY, Group, Item

ROOMY = 256
"""Blocks of a pool that has room for everything: as many as by default, for which other tests have the programs."""
CROWDED = 640
"""A context that leaves no room for two long sequences in a small pool, in tokens."""
LENGTHS = (5, 20, 60, 0, 33, 130)
"""Tokens of items: most share steps, the last is longer than a step."""

Load = Callable[..., Engine]


MODELS = ("untied", "qwen35")
"""A model without recurrent layers, and one with some."""


@pytest.fixture(scope="module", params=[MODELS[0], pytest.param(MODELS[1], marks=pytest.mark.matrix)])
def load(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Load:
    model: str = request.param

    def loaded(blocks: int = ROOMY, *, cache: bool = True) -> Engine:
        return engines.load(
            checkpoint(model),
            "float32",
            context=None if blocks == ROOMY else CROWDED,
            step_tokens=STEP,
            prefix_cache_bytes=blocks * engines.block_bytes(EVERY[model], STEP),
            enable_scoring_cache=cache,
        )

    return loaded


@pytest.fixture(scope="module")
def alone(load: Load) -> Callable[[Group], np.ndarray]:
    """The logits of a group without preemption, float32 [N, M]."""
    engine = load()
    return lambda of_group: logits(engine, of_group)


def group(seed: int, prefix: int, lengths: tuple[int, ...] = LENGTHS) -> Group:
    """A prefix of ``prefix`` tokens, and items of these lengths."""
    random = np.random.RandomState(seed)
    tokens = [tuple(random.randint(0, VOCABULARY, length).tolist()) for length in (prefix, *lengths)]
    return Group(tokens[0], tuple(map(Item, tokens[1:])))


def logits(engine: Engine, of_group: Group, on_step: Callable[[], None] = lambda: None) -> np.ndarray:
    (scored,) = engine.score([of_group.work("key", 0)], on_step)
    return scored.scores.logits


INNER: dict[str, Callable[[int, Group], Group]] = {
    "the same prefix": lambda seed, outer: replace(group(seed, 1), prefix=outer.prefix),
    "another prefix": lambda seed, outer: group(seed, 140),
    "a prefix that begins alike": lambda seed, outer: replace(
        group(seed, 1), prefix=outer.prefix[:-1] + group(seed, 70).prefix
    ),
    "a prefix too long for the pool": lambda seed, outer: group(seed, 500, (3, 70)),
    "serial": lambda seed, outer: group(seed, 20),
}
PREFIX, QUERY = 150, 20
"""Tokens of a prefix that is prefilled in several steps, and of a query that is scored serially."""


OUTER = {
    "prefill and extend": (PREFIX, ROOMY, True),
    "prefill and extend in a small pool": (PREFIX, 3, True),
    "keeping no prefix": (PREFIX, 6, False),
    "serial": (QUERY, 3, True),
}
"""Tokens of the prefix, blocks of the pool, and whether prefixes are kept."""


SMALL_POOL = (
    ("prefill and extend in a small pool", "the same prefix"),
    ("prefill and extend in a small pool", "a prefix that begins alike"),
    ("prefill and extend in a small pool", "a prefix too long for the pool"),
)


@pytest.mark.parametrize(
    ("load", "outer", "inner"),
    [
        *((MODELS[0], *both) for both in SMALL_POOL),
        pytest.param(MODELS[1], *SMALL_POOL[0], marks=pytest.mark.slow),
        *(pytest.param(MODELS[1], *both, marks=pytest.mark.matrix) for both in SMALL_POOL[1:]),
        *(
            pytest.param(MODELS[0], outer, inner, marks=pytest.mark.matrix)
            for outer, inner in (
                ("prefill and extend", "another prefix"),
                ("prefill and extend in a small pool", "serial"),
                ("keeping no prefix", "the same prefix"),
                ("keeping no prefix", "a prefix that begins alike"),
                ("prefill and extend", "a prefix that begins alike"),
                ("keeping no prefix", "a prefix too long for the pool"),
                ("serial", "another prefix"),
                ("serial", "serial"),
            )
        ),
        pytest.param(MODELS[1], "keeping no prefix", "a prefix that begins alike", marks=pytest.mark.matrix),
    ],
    indirect=["load"],
)
def test_work_that_preempts_at_any_step_and_work_around_it_score_as_alone(
    outer: str, inner: str, load: Load, alone: Callable[[Group], np.ndarray]
) -> None:
    prefix, blocks, cache = OUTER[outer]
    engine = load(blocks, cache=cache)
    for place in count():
        # Another seed at every place: the prefix is not cached yet, so prefilling is preempted, too.
        outer_group = group(place, prefix)
        inner_group = INNER[inner](1_000 + place, outer_group)
        found: list[np.ndarray] = []
        steps = count()

        def preempt(
            place: int = place, work: Group = inner_group, found: list[np.ndarray] = found, steps: Iterator[int] = steps
        ) -> None:
            if next(steps) == place:
                found.append(logits(engine, work))

        np.testing.assert_array_equal(logits(engine, outer_group, preempt), alone(outer_group))
        if not found:
            break
        np.testing.assert_array_equal(found, [alone(inner_group)])
    assert place >= 5, "the outer work has at least five steps"


@pytest.mark.parametrize(
    ("inner", "ended"),
    [
        ("the same prefix", "in between"),
        ("a prefix too long for the pool", "in between"),
        pytest.param("a prefix that begins alike", "in between", marks=pytest.mark.matrix),
        pytest.param("another prefix", "in between", marks=pytest.mark.matrix),
        pytest.param("a prefix too long for the pool", "at its end", marks=pytest.mark.matrix),
        pytest.param("serial", "at its end", marks=pytest.mark.matrix),
    ],
)
def test_work_that_preempts_at_every_step_releases_all_blocks(
    inner: str, ended: str, load: Load, alone: Callable[[Group], np.ndarray]
) -> None:
    engine = load(3)

    def stop() -> None:
        if ended == "in between":
            raise InterruptedError

    def preempt() -> None:
        try:
            logits(engine, inner_group, stop)
        except InterruptedError:
            assert ended == "in between"

    taken = 0
    for seed in range(2):
        outer_group = group(seed, PREFIX)
        inner_group = INNER[inner](1_000 + seed, outer_group)
        with capture_logs() as logs:
            np.testing.assert_array_equal(logits(engine, outer_group, preempt), alone(outer_group))
        taken += sum(entry["event"] == "a sequence takes the blocks of all others" for entry in logs)
        assert engine.prefix_cache.blocks.used <= 3, "no more than prefixes that are kept"
    assert taken or inner != "a prefix too long for the pool"
