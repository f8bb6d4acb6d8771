"""Planted bugs, of the kinds that tables, visits and masks invite, exceed the tolerance of the TPU kernels' tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.attention.contract import AttentionOutput
from model.attention.tpu import attention, kernel
from model.attention.tpu.kernel import Pool, Ranged
from tests.model.attention.attention_steps import (
    TOLERANCE,
    Expected,
    Extension,
    Prefixes,
    of_items,
    of_prefixes,
    quickly,
)

PREFIXES = Prefixes.of(
    [[3, 1, 4], [3, 1, 4], [7, 2, 6]], [[*range(32, 48)], [*range(1, 33, 2)], [*range(20, 36)]], seed=3
)
ITEMS = Extension.of([250, 60, 9, 5, 1], 384, 512, np.zeros(384, np.int32), seed=3)


def differs(found: AttentionOutput, expected: Expected) -> bool:
    """Return whether results differ by more than ten times the tolerance."""
    return bool(np.abs(np.asarray(found.out) - np.asarray(expected.out)).max() > 10 * TOLERANCE)


Given = tuple[Pool | None, Ranged | None]
Bug = Callable[[Pool | None, Ranged | None], Given]


def none(pool: Pool | None, ranged: Ranged | None) -> Given:
    return pool, ranged


def with_any_of(bugs: Iterable[Bug], attend: Callable[..., tuple[Any, Any]]) -> Callable[..., AttentionOutput]:
    """Compile one program for all bugs. It takes the number of the one that changes what the kernel is given."""

    def attend_with(number: Any, *arguments: Any) -> tuple[Any, Any]:
        def chosen(*values: Any) -> Any:
            return values[0] if isinstance(values[0], int) else jax.lax.select_n(number, *values)

        def planted(queries: Any, pool: Pool | None, ranged: Ranged | None, **options: Any) -> AttentionOutput:
            given = jax.tree.map(chosen, *(bug(pool, ranged) for bug in bugs))
            return kernel.attend(queries, *given, **options)

        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(attention, "attend", planted)
            return attend(*arguments)

    program = quickly(attend_with)
    return lambda number, *arguments: AttentionOutput(*program(np.int32(number), *arguments))


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


@pytest.fixture(scope="module")
def of_prefixes_with() -> Callable[..., AttentionOutput]:
    return with_any_of((none, *PREFIX_BUGS.values()), of_prefixes)


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, *PREFIX_BUGS])
def test_bugs_in_the_way_to_a_prefix_are_noticed(
    name: str | None, of_prefixes_with: Callable[..., AttentionOutput]
) -> None:
    number = 0 if name is None else [*PREFIX_BUGS].index(name) + 1
    assert differs(of_prefixes_with(number, *PREFIXES.arguments), PREFIXES.expected()) == (name is not None)


def of_ranged(change: Callable[[Ranged], Ranged]) -> Bug:
    return lambda pool, ranged: (pool, ranged and change(ranged))


OWN_BUGS: dict[str, Bug] = {
    "a row that sees the one behind it": of_ranged(lambda own: own._replace(ranges=own.ranges.at[:, 1].add(1))),
    "a row that does not see the first": of_ranged(lambda own: own._replace(ranges=own.ranges.at[:, 0].add(1))),
    "a window skipped": of_ranged(
        lambda own: own._replace(windows=own.windows._replace(counts=own.windows.counts - 1))
    ),
    "values of the row before": of_ranged(lambda own: own._replace(values=jnp.roll(own.values, 1, axis=0))),
}


@pytest.fixture(scope="module")
def of_items_with() -> Callable[..., AttentionOutput]:
    return with_any_of((none, *OWN_BUGS.values()), of_items)


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, *OWN_BUGS])
def test_bugs_in_the_way_to_an_items_own_rows_are_noticed(
    name: str | None, of_items_with: Callable[..., AttentionOutput]
) -> None:
    number = 0 if name is None else [*OWN_BUGS].index(name) + 1
    assert differs(of_items_with(number, *ITEMS.arguments), ITEMS.expected()) == (name is not None)
