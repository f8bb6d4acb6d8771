"""Write a labelled file for ``scoreline evaluate`` and ``threshold``: ``python -m demonstration.labelled``.

Its reviews are made of held-out pairs of words, as those of ``demonstration.evaluate``, but some of them also have
a sentence of the other opinion. So the model is wrong about some, as about real reviews.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path

from demonstration.example import SENTIMENT_LABELS
from demonstration.sentiment import write_review

FILE = Path(__file__).parents[1] / "examples" / "reviews.csv"
ROWS = 600
MIXED = 0.2
"""The share of reviews that have a sentence of the other opinion, too."""

SEED = 7


def mixed_review(rng: random.Random, good: bool) -> str:
    """Return a review whose writer found more things good than bad, or the other way round."""
    others = int(rng.random() < MIXED)
    parts = [write_review(rng, good, True, 1) for _ in range(others + rng.choice((1, 2)))]
    parts += [write_review(rng, not good, True, 1) for _ in range(others)]
    rng.shuffle(parts)
    return " ".join(parts)


def labelled_reviews(rows: int = ROWS, seed: int = SEED) -> list[tuple[str, str]]:
    """Return reviews, all different, each with its sentiment."""
    rng = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < rows:
        good = rng.random() < 0.5
        found.setdefault(mixed_review(rng, good), SENTIMENT_LABELS[0 if good else 1].strip())
    return list(found.items())


def main() -> None:
    """Write the file."""
    with FILE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("text", "sentiment"), *labelled_reviews()])


if __name__ == "__main__":
    main()
