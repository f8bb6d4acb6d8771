"""Rows whose true probabilities are known, with the probabilities that a badly calibrated model would give them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from judgement.applying import softmax
from judgement.sample import Floats, Sample


@dataclass(frozen=True, slots=True)
class World:
    """Where rows come from."""

    labels: int = 2
    spread: float = 2.0  # of the true logits: how easy rows are
    rarity: float = 0.0  # by how much the true logit of each further label is lower
    sharpness: float = 2.0  # by which the model multiplies true logits: above 1, it is too sure
    bias: float = 0.5  # that the model adds to the logit of the first label
    noise: float = 0.0  # the standard deviation of what the model adds to each logit at random
    step: float = 0.0  # the model's logits are multiples of it, so that probabilities are equal; 0: any
    cluster: int = 1  # rows that are alike follow one another in groups of this size

    def draw(self, rows: int, generator: np.random.Generator) -> Sample:
        """Return some rows: labels are drawn from the true probabilities, and the sample has the model's."""
        logits = self._true_logits(rows, generator)
        true = softmax(logits)
        truth = (generator.random((rows, 1)) > np.cumsum(true, axis=1)[:, :-1]).sum(axis=1)
        groups = np.arange(rows) // self.cluster
        return Sample.of(self.said(logits, generator), truth, groups.tolist())

    def said(self, logits: Floats, generator: np.random.Generator) -> Floats:
        """Return the model's probabilities for true logits, [N, K]."""
        seen = logits * self.sharpness
        seen[:, 0] += self.bias
        if self.noise:
            seen = seen + generator.normal(0.0, self.noise, seen.shape)
        if self.step:
            seen = np.round(seen / self.step) * self.step
        return softmax(seen)

    def _true_logits(self, rows: int, generator: np.random.Generator) -> Floats:
        groups = -(-rows // self.cluster)
        drawn = generator.normal(0.0, self.spread, (groups, self.labels))
        logits = np.repeat(drawn, self.cluster, axis=0)[:rows]
        if self.cluster > 1:
            logits = logits + generator.normal(0.0, self.spread / 2, logits.shape)
        shifted: Floats = logits - self.rarity * np.arange(self.labels)
        return shifted


WORLDS = {
    "two labels": World(),
    "two labels, one rare": World(rarity=2.5),
    "two labels, ties": World(step=1.0),
    "two labels, unsure": World(sharpness=0.4, bias=-1.0),
    "five labels": World(labels=5, spread=4.0, rarity=0.5, noise=0.5),
}
"""Worlds that differ in what makes probabilities hard to judge."""

CLUSTERED = World(cluster=5)
"""A world whose rows depend on one another."""
