"""Which algorithm scores which rows of a group, why, and what that is estimated to take. Knows of no device.

Under ``batch_invariant`` a row's algorithm follows from its query and its own tokens alone, so that its company can't
change its bits (SEMANTICS: "Numbers that must hold"). Without, whatever is estimated to be fastest for the group as it
is: with its number of items, and with what the cache holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scoring.planning.algorithms import Algorithm, Choice, Policy, choose
from scoring.planning.estimates import NOTHING, Estimate, Estimator, Geometry

Indices = npt.NDArray[np.int64]
"""Of rows of a group."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some rows of a group, and how they are scored."""

    rows: Indices
    choice: Choice


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """All rows of a group, each in one part, and what they are estimated to take."""

    parts: tuple[Part, ...]
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans for one model on one kind of hardware."""

    policy: Policy
    estimator: Estimator

    def plan(self, group: Geometry) -> Plan:
        """How to score a group."""
        parts = self._by_estimate(group) if self.policy.looks_around else self._by_rule(group, np.arange(len(group)))
        estimates = (self.estimator.of(part.choice.algorithm, group.only(part.rows)) for part in parts)
        return Plan(tuple(parts), sum(estimates, NOTHING))

    def _by_rule(self, group: Geometry, rows: Indices) -> list[Part]:
        """Each of these rows by its own lengths: :func:`scoring.planning.algorithms.choose`."""
        kinds, kind_of = np.unique(
            np.stack([group.prefix_ends[rows], group.lengths[rows]]), axis=1, return_inverse=True
        )
        choices = [choose(self.policy, group.prefix, end, own, group.packed) for end, own in kinds.T.tolist()]
        distinct = list(dict.fromkeys(choices))
        number = np.array([distinct.index(choice) for choice in choices], np.int64)[kind_of.reshape(-1)]
        return [Part(rows[number == n], choice) for n, choice in enumerate(distinct)]

    def _by_estimate(self, group: Geometry) -> list[Part]:
        """All rows that share anything by whatever is estimated to be fastest for them together."""
        sharing = np.flatnonzero(group.prefix_ends > 0)
        alone = np.flatnonzero(group.prefix_ends == 0)
        parts = self._by_rule(group, alone) if len(alone) else []
        if len(sharing):
            shared = group.only(sharing)
            seconds = {one: self.estimator.of(one, shared).seconds for one in self._candidates(shared)}
            parts.append(Part(sharing, Choice(min(seconds, key=seconds.__getitem__), "estimated to be the fastest")))
        return parts

    def _candidates(self, group: Geometry) -> Iterator[Algorithm]:
        """What a group may be scored by."""
        yield Algorithm.SERIAL
        if self.policy.prefill_extend_enabled and len(group) >= self.policy.fewest_extended:
            yield Algorithm.PREFILL_EXTEND
        if group.prefix + int(group.lengths.max()) <= self.policy.longest_packed:
            yield self.policy.packed(group.packed)
