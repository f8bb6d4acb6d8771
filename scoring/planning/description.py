"""A planner as plain data, so that another process can plan as a worker would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from scoring.planning.algorithms import Policy
from scoring.planning.estimates import Estimator, ModelSize, Rates, Shapes
from scoring.planning.planner import Planner


def describe(planner: Planner) -> dict[str, Any]:
    """Return a planner as values that JSON can hold."""
    estimator = planner.estimator
    of_estimator = {
        "model": asdict(estimator.model),
        "rates": asdict(estimator.rates),
        "shapes": asdict(estimator.shapes),
    }
    return {"policy": asdict(planner.policy), "estimator": of_estimator}


def planner_of(described: Mapping[str, Any]) -> Planner | None:
    """Return the planner that :func:`describe` described; None if a version did that whose planner differs."""
    try:
        estimator = described["estimator"]
        rates, shapes = estimator["rates"], estimator["shapes"]
        linear = tuple((int(tokens), float(rate)) for tokens, rate in rates["linear"])
        sizes = {name: tuple(shapes[name]) for name in ("step_sizes", "packed_sizes")}
        return Planner(
            Policy(**described["policy"]),
            Estimator(ModelSize(**estimator["model"]), Rates(**rates | {"linear": linear}), Shapes(**shapes | sizes)),
        )
    except (KeyError, TypeError, ValueError):
        return None
