"""Multiple choice: a question about a simple fact, and the words from which its answer is chosen.

Pairs of a fact and a way of asking for it are held out: training shows every fact, but never one in ten ways of asking
for it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from demonstration.example import Example, Task
from demonstration.sentences import capitalised, held_out, with_article, words

_MASS = {"drink", "food", "colour", "metal", "planet", "country", "city", "number", "month", "day", "season", "feeling",
         "weather", "language", "sport"}  # fmt: skip
"""Categories whose members take no article."""

_LARGEST_SUM = 9
_CHOICES = 4

_CAPITALS = (
    "The capital of {fact} is",
    "What is the capital of {fact}? The answer is",
    "Question: What is the capital of {fact}?\nAnswer:",
    "Which city is the capital of {fact}?\nAnswer:",
    "The capital city of {fact} is",
    "If you go to {fact}, visit the capital,",
)
_SUMS = (
    "{fact} =",
    "{fact} is",
    "{fact}? The answer is",
    "What is {fact}? The answer is",
    "Question: What is {fact}?\nAnswer:",
)
_OPPOSITES = (
    "The opposite of {fact} is",
    "What is the opposite of {fact}? The answer is",
    "Question: Which word is the opposite of {fact}?\nAnswer:",
    "Something that is not {fact} is",
)
_USES = (
    "To {fact} you need a",
    "What do you use to {fact}? The answer is",
    "Question: What helps you to {fact}?\nAnswer:",
    "What you use to {fact} is called a",
)
_WORKERS = (
    "Someone who works in a {fact} is a",
    "Who works in a {fact}? The answer is",
    "Question: Who works in a {fact}?\nAnswer:",
)
_CATEGORIES = (
    "{fact} is a kind of",
    "What is {fact}? It is a kind of",
    "Question: What kind of thing is {fact}?\nAnswer:",
    "{fact}, as you know, is a kind of",
)


def _facts(kind: str) -> tuple[Sequence[str], list[tuple[str, str]]]:
    """Return the ways of asking for facts of one kind, and the facts as pairs of subject and answer."""
    table = words("knowledge")
    match kind:
        case "capital":
            return _CAPITALS, list(table["capitals"].items())
        case "sum":
            sums = [(a, b) for a in range(_LARGEST_SUM + 1) for b in range(_LARGEST_SUM + 1 - a)]
            return _SUMS, [(f"{a}+{b}", str(a + b)) for a, b in sums]
        case "opposite":
            pairs = list(table["opposites"].items())
            return _OPPOSITES, pairs + [(second, first) for first, second in pairs if second not in table["opposites"]]
        case "use":
            return _USES, [(use, tool) for tool, use in table["uses"].items()]
        case "worker":
            return _WORKERS, [(place, worker) for worker, place in table["workers"].items()]
    members = [(member, name) for name, found in table["categories"].items() for member in found]
    return _CATEGORIES, [(member if name in _MASS else with_article(member), name) for member, name in members]


KINDS = ("capital", "sum", "opposite", "use", "worker", "category")


def choice_example(rng: random.Random, keep_out: bool) -> Example:
    """Return a question with its answer and three others of the same kind, held out of training if ``keep_out``."""
    while True:
        ways, facts = _facts(rng.choices(KINDS, weights=(3, 3, 2, 2, 1, 4))[0])
        way, (fact, answer) = rng.choice(ways), rng.choice(facts)
        if held_out(way, fact) == keep_out:
            break
    # Other right answers are left out: some animals are birds, and some words have two opposites.
    right = {other for asked, other in facts if asked == fact}
    others = [other for other in dict.fromkeys(other for _, other in facts) if other not in right]
    labels = [answer, *rng.sample(others, _CHOICES - 1)]
    rng.shuffle(labels)
    return Example(
        Task.CHOICE, capitalised(way.format(fact=fact)), "", f" {answer}", tuple(f" {label}" for label in labels)
    )
