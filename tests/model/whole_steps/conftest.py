"""Engines that compute whole steps, on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from model.platforms import Platform
from tests.model import engines
from tests.model.test_algorithms import MODELS
from tests.model.test_preemption import MODELS as MODELS_THAT_PREEMPT

WHOLE_STEPS: Platform = replace(
    engines.PLATFORM, whole_steps=True, largest_block=64, equal_sizes=0, bf16_as_integers=False
)
"""A CPU that computes like an accelerator. A block is a step of the shortest kind, and a quarter of others."""


ONE_MODEL = ("test_algorithms_by_whole_steps.py",)
"""Files of tests that are about one model here: test_programs.py compares every family with the programs by layer."""

RECURRENT = ("test_preemption_by_whole_steps.py", MODELS_THAT_PREEMPT[1])
"""A file, and the model that only `make matrix` tests by it: tests/model/prefixes/test_sharing.py always has queries
preempt one another in whole steps of recurrent layers, and test_preemption.py in programs by layer."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out other models than the first where one is enough, or leave them to the matrix."""

    def is_left_out(item: pytest.Item) -> bool:
        given = getattr(item, "callspec", None)
        return item.path.name in ONE_MODEL and given is not None and given.params.get("model", MODELS[0]) != MODELS[0]

    for item in items:
        given = getattr(item, "callspec", None)
        if given is not None and (item.path.name, given.params.get("load")) == RECURRENT:
            item.add_marker(pytest.mark.matrix)
    left_out = [item for item in items if is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="module")
def by_whole_steps() -> Iterator[None]:
    """Let all engines of a module compute whole steps."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(engines, "PLATFORM", WHOLE_STEPS)
        yield
