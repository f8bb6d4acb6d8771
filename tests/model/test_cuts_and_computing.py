"""The folds of a cut are what the engine does: it computes, prefills and shares so many tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from model.engine import Engine
from model.platforms import Platform
from model.score_buffer import ScoreBuffer
from scoring.layout import GroupWork
from scoring.planning import cut as cutting
from scoring.planning.algorithms import Algorithm, AlgorithmSetting
from scoring.planning.cut import Cut, CutRows
from scoring.planning.folds import cached_tokens
from tests.model import engines
from tests.model.continuations.cases import Case, Label, cases, likelihood
from tests.model.geometries import STEP, Item
from tests.model.whole_steps.conftest import WHOLE_STEPS

Engines = Callable[[str], Engine]
KINDS: dict[str, tuple[AlgorithmSetting, Platform | None, bool]] = {
    "steps of a CPU": ("auto", None, True),
    "whole steps": ("auto", WHOLE_STEPS, True),
    "serial": ("serial", None, True),
    "extending": ("prefill_extend", None, True),
    "by estimates": ("prefill_extend", None, False),
}


@pytest.fixture(scope="module")
def load(checkpoint: Callable[[str], Path]) -> Engines:
    made: dict[str, Engine] = {}

    def loaded(kind: str) -> Engine:
        if kind not in made:
            algorithm, platform, invariant = KINDS[kind]
            made[kind] = engines.load(
                checkpoint("untied"),
                "float32",
                algorithm,
                platform,
                step_tokens=STEP,
                batch_invariant=invariant,
                multi_item_algorithm_query_threshold=20,
                enable_scoring_cache=False,
            )
        return made[kind]

    return loaded


def computed_tokens(cut: Cut, step: int) -> int:
    """Return the tokens that the engine computes for a cut, padding not included, where the prefix is not cached."""
    rows, branches, group = cut.rows, cut.branches, cut.group
    packed = np.array([one.algorithm in (Algorithm.PACKED_DENSE, Algorithm.PACKED_SEGMENT) for one in cut.choices])
    assert not packed.any(), "packed sequences repeat a prefix for as many items as find room behind it"
    # What is longer than a step begins at the last whole step before it.
    begins = np.where(rows.tokens > step, rows.begins // step * step, rows.begins)
    # A row without tokens is read at the one before it, which is computed again unless it ends the query.
    again = (rows.tokens == 0) & (rows.begins < group.prefix)
    of_rows = rows.ends - begins + rows.tails + again
    of_branches = branches.ends - branches.begins // step * step
    return group.prefix * bool(cut.extends.any()) + int(of_rows.sum()) + int(of_branches.sum())


def compare(engine: Engine, work: GroupWork) -> None:
    """Check that the engine computes and shares what the folds of its cut say."""
    buffers = [ScoreBuffer.of(chunk) for chunk in work.chunks]
    made, step = engine.cut(work, buffers), engine.forward.shapes.step_tokens
    with engines.counted(engine) as tokens:
        scored = list(engine.score([work], lambda: None))
    assert sum(tokens) == computed_tokens(made, step), "computed"
    assert sum(one.cached_tokens for one in scored) == cached_tokens(made, step), "shared"


def of_one_token(case: Case) -> GroupWork:
    """The same items with labels of one token."""
    work = case.work()
    (chunk,) = work.chunks
    return replace(work, chunks=(replace(chunk, continuations=None, label_token_ids=(3, 17)),))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(case=cases())
def test_the_engine_computes_and_shares_what_the_cut_says(kind: str, load: Engines, case: Case) -> None:
    engine = load(kind)
    for work in (case.work(), likelihood(case).work(), of_one_token(case)):
        compare(engine, work)


LONG = tuple(range(80))
EVERY_KIND = Case(
    tuple(range(STEP + 6)),
    (Item(()), Item((5, 6, 7), 1), Item(LONG), Item((8,) * 130)),
    (tuple(Label((1,) * length, cut) for length, cut in ((1, 0), (3, 0), (4, 0), (2, 2), (90, 0), (5, 30))),) * 4,
)
"""Has rows, shared rows, long rows, branches, and labels that merge with what is before them."""


def changed(**changes: Callable[[CutRows], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Return a fault that changes arrays of the rows of every cut, for the engine alone."""

    def plant(patches: pytest.MonkeyPatch) -> None:
        cut = cutting.cut

        def faulty(*args: Any) -> Cut:
            made = cut(*args)
            return replace(made, rows=replace(made.rows, **{name: of(made.rows) for name, of in changes.items()}))

        patches.setattr("model.work.planned.cut", faulty)

    return plant


def too_many_branches(patches: pytest.MonkeyPatch) -> None:
    patches.setattr("model.work.planned.cut", _with(lambda _, begins, *__: np.ones(len(begins), np.bool_)))


def no_branches(patches: pytest.MonkeyPatch) -> None:
    patches.setattr("model.work.planned.cut", _with(lambda _, begins, *__: np.zeros(len(begins), np.bool_)))


def a_label_a_row(patches: pytest.MonkeyPatch) -> None:
    def each_alone(own: int, tails: list[int], shapes: object) -> Iterator[tuple[list[int], int]]:
        yield from (([number], own + tail) for number, tail in enumerate(tails))

    patches.setattr("model.work.planned.cut", _with(each_alone, "together_in_rows"))


def _with(change: Callable[..., Any], name: str = "_are_branches") -> Callable[..., Cut]:
    def faulty(*args: Any) -> Cut:
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(cutting, name, change)
            return cut(*args)

    cut = cutting.cut
    return faulty


FAULTS = {
    "everything is a branch": too_many_branches,
    "nothing is a branch": no_branches,
    "no label shares a row": a_label_a_row,
    "a row begins a token early": changed(begins=lambda rows: rows.begins - (rows.ends - rows.begins > 3)),
    "a row ends a token early": changed(ends=lambda rows: rows.ends - (rows.ends - rows.begins > 3)),
}


def expected(engine: Engine) -> tuple[int, int]:
    work, step = EVERY_KIND.work(), engine.forward.shapes.step_tokens
    made = engine.cut(work, [ScoreBuffer.of(chunk) for chunk in work.chunks])
    return computed_tokens(made, step), cached_tokens(made, step)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_what_is_cut_is_seen(fault: str, load: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load("steps of a CPU")
    found = expected(engine)
    FAULTS[fault](monkeypatch)
    with engines.counted(engine) as tokens:
        scored = list(engine.score([EVERY_KIND.work()], lambda: None))
    assert (sum(tokens), sum(one.cached_tokens for one in scored)) != found


def test_without_a_fault_nothing_is_seen(load: Engines) -> None:
    compare(load("steps of a CPU"), EVERY_KIND.work())
