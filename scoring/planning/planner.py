"""The planner assigns algorithms to the rows of a group. It knows nothing about devices.

With ``batch_invariant``, a row's algorithm follows from its query and its own tokens alone, so that no other row can
change its bits (``docs/algorithms.md``). Without ``batch_invariant``, the planner takes the algorithm that is estimated
to be the fastest for the group, given the number of its items and what the cache holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scoring.planning.algorithms import Algorithm, Choice, Policy, choose
from scoring.planning.estimates import Estimator
from scoring.planning.lengths import GroupLengths, Indices


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """Some rows of a group, and their algorithm."""

    rows: Indices
    choice: Choice


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans for one model on one kind of hardware."""

    policy: Policy
    estimator: Estimator

    def plan(self, group: GroupLengths) -> list[Assignment]:
        """Assign each row of a group. Estimates are made only if the policy uses them."""
        return self._by_estimate(group) if self.policy.uses_estimates else self.plan_by_rule(group)

    def plan_by_rule(self, group: GroupLengths) -> list[Assignment]:
        """Assign each row by its own lengths, whatever the policy says of estimates."""
        return self._by_rule(group, np.arange(len(group)))

    def _by_rule(self, group: GroupLengths, rows: Indices) -> list[Assignment]:
        """Assign each of these rows by its own lengths: :func:`scoring.planning.algorithms.choose`."""
        tokens = group.packed_tokens
        lengths = list(zip(group.prefix_ends[rows].tolist(), group.lengths[rows].tolist(), strict=True))
        choices = {pair: choose(self.policy, group.prefix, *pair, tokens) for pair in dict.fromkeys(lengths)}
        different = list(dict.fromkeys(choices.values()))
        if len(different) == 1:  # Nearly always, and then this is a faster way.
            return [Assignment(rows, different[0])]
        numbers = {pair: different.index(choice) for pair, choice in choices.items()}
        number = np.array([numbers[pair] for pair in lengths], np.int64)
        return [Assignment(rows[number == n], choice) for n, choice in enumerate(different)]

    def _by_estimate(self, group: GroupLengths) -> list[Assignment]:
        """Assign all rows that share a prefix to the algorithm that is estimated to be the fastest for them."""
        sharing = np.flatnonzero(group.prefix_ends > 0)
        alone = np.flatnonzero(group.prefix_ends == 0)
        plan = self._by_rule(group, alone) if len(alone) else []
        if len(sharing):
            shared = group.only(sharing)
            seconds = {one: self.estimator.of(one, shared).seconds for one in self._candidates(shared)}
            plan.append(
                Assignment(sharing, Choice(min(seconds, key=seconds.__getitem__), "estimated to be the fastest"))
            )
        return plan

    def _candidates(self, group: GroupLengths) -> Iterator[Algorithm]:
        """Yield the algorithms that are possible for a group."""
        yield Algorithm.SERIAL
        if self.policy.prefill_extend_enabled and len(group) >= self.policy.min_extended_rows:
            yield Algorithm.PREFILL_EXTEND
        if self.policy.may_pack and group.prefix + int(group.lengths.max()) <= self.policy.max_packed_tokens:
            yield self.policy.packed_algorithm(group.packed_tokens)
