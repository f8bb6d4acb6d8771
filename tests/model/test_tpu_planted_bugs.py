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
from model.attention.tpu.kernel import Own, Pool
from tests.model.attention_steps import INTERPRETED, TOLERANCE, Items, Prefixes

PREFIXES = Prefixes.of(
    [[3, 1, 4], [3, 1, 4], [7, 2, 6]], [[*range(32, 48)], [*range(1, 33, 2)], [*range(20, 36)]], seed=3
)
ITEMS = Items.of([250, 60, 9, 5, 1], 384, 512, seed=3)


def differs(found: AttentionOutput, expected: AttentionOutput) -> bool:
    """Return whether results differ by more than ten times the tolerance."""
    return bool(np.abs(np.asarray(found.out) - np.asarray(expected.out)).max() > 10 * TOLERANCE)


def prefixes_differ() -> bool:
    def attend(*arguments: Any) -> AttentionOutput:
        return INTERPRETED.attend_prefix(*arguments)

    return differs(AttentionOutput(*jax.jit(attend)(*PREFIXES.arguments)), PREFIXES.expected())


def items_differ() -> bool:
    def attend(*arguments: Any) -> AttentionOutput:
        return INTERPRETED.attend_own(*arguments)

    found = jax.jit(attend)(ITEMS.queries, ITEMS.keys, ITEMS.values, ITEMS.slots)
    return differs(AttentionOutput(*found), ITEMS.expected())


Bug = Callable[[Pool | None, Own | None], tuple[Pool | None, Own | None]]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[Bug], None]:
    """Change what the kernel is given."""

    def planted(bug: Bug) -> None:
        def attend_step(queries: Any, pool: Pool | None, own: Own | None, **options: Any) -> AttentionOutput:
            return kernel.attend_step(queries, *bug(pool, own), **options)

        monkeypatch.setattr(attention, "attend_step", attend_step)

    return planted


@pytest.mark.slow
def test_without_a_bug_nothing_differs() -> None:
    assert not prefixes_differ()
    assert not items_differ()


def of_visits(change: Callable[[Any], Any]) -> Bug:
    def bug(pool: Pool | None, own: Own | None) -> tuple[Pool | None, Own | None]:
        assert pool is not None
        return pool._replace(visits=change(pool.visits)), own

    return bug


PREFIX_BUGS: dict[str, Bug] = {
    "a table row off by one": of_visits(lambda visits: visits._replace(blocks=jnp.roll(visits.blocks, 1, axis=1))),
    "a tile skipped": of_visits(lambda visits: visits._replace(tiles=jnp.maximum(visits.tiles - 1, 0))),
    "a visit skipped": of_visits(lambda visits: visits._replace(made=visits.made - 1)),
    "a position off by one": of_visits(lambda visits: visits._replace(begins=visits.begins - 1)),
    "a mask at <=": lambda pool, own: (pool and pool._replace(ends=pool.ends + 1), own),
}


@pytest.mark.parametrize(
    "name", [name if name == "a mask at <=" else pytest.param(name, marks=pytest.mark.slow) for name in PREFIX_BUGS]
)
def test_bugs_in_the_way_to_a_prefix_are_noticed(name: str, plant: Callable[[Bug], None]) -> None:
    plant(PREFIX_BUGS[name])
    assert prefixes_differ()


def of_own(change: Callable[[Own], Own]) -> Bug:
    return lambda pool, own: (pool, own and change(own))


OWN_BUGS: dict[str, Bug] = {
    "a row that sees the one behind it": of_own(lambda own: own._replace(ends=own.ends + 1)),
    "a row that does not see its item's first": of_own(lambda own: own._replace(begins=own.begins + 1)),
    "a window skipped": of_own(lambda own: own._replace(windows=own.windows._replace(counts=own.windows.counts - 1))),
    "values of the row before": of_own(lambda own: own._replace(values=jnp.roll(own.values, 1, axis=0))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_BUGS)
def test_bugs_in_the_way_to_an_items_own_rows_are_noticed(name: str, plant: Callable[[Bug], None]) -> None:
    plant(OWN_BUGS[name])
    assert items_differ()
