"""Planted bugs, of the kinds that tables, visits and masks invite, exceed the tolerance of the TPU kernels' tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.attention.contract import AttentionOutput
from model.attention.tpu import attention, kernel
from model.attention.tpu.kernel import Pool, Ranged
from tests.model.attention_steps import TOLERANCE, Extension, Prefixes, of_items, of_prefixes

PREFIXES = Prefixes.of(
    [[3, 1, 4], [3, 1, 4], [7, 2, 6]], [[*range(32, 48)], [*range(1, 33, 2)], [*range(20, 36)]], seed=3
)
ITEMS = Extension.of([250, 60, 9, 5, 1], 384, 512, np.zeros(384, np.int32), seed=3)


def differs(found: AttentionOutput, expected: AttentionOutput) -> bool:
    """Return whether results differ by more than ten times the tolerance."""
    return bool(np.abs(np.asarray(found.out) - np.asarray(expected.out)).max() > 10 * TOLERANCE)


def prefixes_differ() -> bool:
    def attend(*arguments: Any) -> AttentionOutput:
        return of_prefixes(*arguments)

    return differs(AttentionOutput(*jax.jit(attend)(*PREFIXES.arguments)), PREFIXES.expected())


def items_differ() -> bool:
    def attend(*arguments: Any) -> AttentionOutput:
        return of_items(*arguments)

    return differs(AttentionOutput(*jax.jit(attend)(*ITEMS.arguments)), ITEMS.expected())


Bug = Callable[[Pool | None, Ranged | None], tuple[Pool | None, Ranged | None]]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[Bug], None]:
    """Change what the kernel is given."""

    def planted(bug: Bug) -> None:
        def planted_attend(queries: Any, pool: Pool | None, ranged: Ranged | None, **options: Any) -> AttentionOutput:
            return kernel.attend(queries, *bug(pool, ranged), **options)

        monkeypatch.setattr(attention, "attend", planted_attend)

    return planted


@pytest.mark.slow
def test_without_a_bug_nothing_differs() -> None:
    assert not prefixes_differ()
    assert not items_differ()


def of_visits(change: Callable[[Any], Any]) -> Bug:
    def bug(pool: Pool | None, ranged: Ranged | None) -> tuple[Pool | None, Ranged | None]:
        assert pool is not None
        return pool._replace(visits=change(pool.visits)), ranged

    return bug


PREFIX_BUGS: dict[str, Bug] = {
    "a table row off by one": of_visits(lambda visits: visits._replace(blocks=jnp.roll(visits.blocks, 1, axis=1))),
    "a tile skipped": of_visits(lambda visits: visits._replace(tiles=jnp.maximum(visits.tiles - 1, 0))),
    "a visit skipped": of_visits(lambda visits: visits._replace(made=visits.made - 1)),
    "a position off by one": of_visits(lambda visits: visits._replace(begins=visits.begins - 1)),
    "a mask at <=": lambda pool, ranged: (pool and pool._replace(ends=pool.ends + 1), ranged),
}


@pytest.mark.parametrize(
    "name", [name if name == "a mask at <=" else pytest.param(name, marks=pytest.mark.slow) for name in PREFIX_BUGS]
)
def test_bugs_in_the_way_to_a_prefix_are_noticed(name: str, plant: Callable[[Bug], None]) -> None:
    plant(PREFIX_BUGS[name])
    assert prefixes_differ()


def of_ranged(change: Callable[[Ranged], Ranged]) -> Bug:
    return lambda pool, ranged: (pool, ranged and change(ranged))


OWN_BUGS: dict[str, Bug] = {
    "a row that sees the one behind it": of_ranged(lambda own: own._replace(ranges=own.ranges.at[..., 1].add(1))),
    "a row that does not see the first": of_ranged(lambda own: own._replace(ranges=own.ranges.at[..., 0].add(1))),
    "a window skipped": of_ranged(
        lambda own: own._replace(windows=own.windows._replace(counts=own.windows.counts - 1))
    ),
    "values of the row before": of_ranged(lambda own: own._replace(values=jnp.roll(own.values, 1, axis=0))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_BUGS)
def test_bugs_in_the_way_to_an_items_own_rows_are_noticed(name: str, plant: Callable[[Bug], None]) -> None:
    plant(OWN_BUGS[name])
    assert items_differ()
