"""Every place of a fail point exists, so that no test waits for a process to come to a place that is gone."""

from __future__ import annotations

import types

import pytest

import workers.engine_loop.loop
from jobs.queue.claims.claim import claim
from tests.faults.injection import places
from tests.faults.injection.points import place


def test_importing_the_places_resolves_all_of_them() -> None:
    named = [value for name, value in vars(places).items() if name.isupper()]
    assert named
    assert all(isinstance(value, str) for value in named)


def test_a_function_that_a_module_does_not_call_is_no_place() -> None:
    with pytest.raises(AttributeError, match="has no attribute"):
        place(workers.engine_loop.loop, lambda: None)
    other = types.ModuleType("other")
    vars(other)["claim"] = print
    with pytest.raises(AttributeError, match="another function"):
        place(other, claim)
