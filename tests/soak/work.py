"""Random jobs, and their expected scores, computed from the tokens without an engine."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.faults.outcomes import expected_logit

TOKENS = range(1, 400)
PRIORITIES = ["bulk", "normal", "normal", "interactive"]


@dataclass(frozen=True)
class Work:
    """A job, identified by its idempotency key."""

    key: str
    query: list[int]
    items: list[list[int]]
    labels: list[int]
    priority: str

    @classmethod
    def by_chance(cls, chance: random.Random, key: str) -> Work:
        """Create a random job. Most jobs are small and some are large; many share one of a few queries."""

        def tokens(most: int) -> list[int]:
            return [chance.choice(TOKENS) for _ in range(chance.randint(1, most))]

        size = chance.choice([1, 1, 1, 2, 5, 20, 100, 400])
        query = [chance.randrange(1, 5)] * 8 if chance.random() < 0.5 else tokens(30)
        return cls(
            key=key,
            query=query,
            items=[tokens(6) for _ in range(chance.randint(1, size))],
            labels=chance.sample(TOKENS, chance.randint(1, 3)),
            priority=chance.choice(PRIORITIES),
        )

    @property
    def body(self) -> dict[str, object]:
        """The body of ``POST /v1/jobs``."""
        return {
            "query": self.query,
            "items": self.items,
            "label_token_ids": self.labels,
            "return_logits": True,
            "priority": self.priority,
            "metadata": {"key": self.key},
        }

    def logits(self, index: int) -> list[float]:
        """Compute the expected logits of item ``index``, one for each label."""
        return [expected_logit(self.query + self.items[index], label) for label in self.labels]
