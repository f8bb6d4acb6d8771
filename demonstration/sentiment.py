"""Sentiment: good and bad reviews.

Pairs of an aspect and an adjective ("soup" and "tasteless") are held out: a held-out review has only pairs that no
training review has, beside verdicts ("Never again.") that occur in both.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from demonstration.example import SENTIMENT_LABELS, Example, Task
from demonstration.sentences import capitalised, fill, held_out, pick, plural, with_article, words

_INSTRUCTIONS = (
    "Is this review positive or negative?\n",
    "Decide whether the review is positive or negative.\n",
    "Classify the sentiment of the review.\n",
    "Read the review and give its sentiment.\n",
    "What is the sentiment of this text?\n",
    "Is the customer happy?\n",
    "",
    "",
)
_OPENINGS = ("Review: ", "Review: ", "Text: ", "Customer review: ", "Comment: ", "")
_CUES = ("\nSentiment:", "\nSentiment:", " Sentiment:", "\nThe sentiment is", "\nThis review is")


@dataclass(frozen=True)
class _Kind:
    """The words for one kind of reviewed thing and one opinion of it."""

    aspects: list[str]
    adjectives: list[str]
    happened: list[str]


def _kind(name: str, good: bool) -> _Kind:
    table = words("sentiment")["kinds"][name]
    side = "good" if good else "bad"
    general = words("sentiment")["general"][side]
    return _Kind(table["aspects"], table[side] * 2 + general, table[f"happened_{side}"])


class _Writer:
    """Writes the sentences of one review."""

    def __init__(self, rng: random.Random, keep_out: bool) -> None:
        self._rng = rng
        self._keep_out = keep_out
        self._kind_name = rng.choice(list(words("sentiment")["kinds"]))
        self._name = rng.choice(words("sentiment")["kinds"][self._kind_name]["names"])
        self._sentences = words("sentiment")["sentences"]

    def _pair(self, good: bool) -> tuple[str, str, str]:
        """Return an aspect, its verb and an adjective. The pair is held out of training if ``keep_out``."""
        kind = _kind(self._kind_name, good)
        while True:
            aspect, adjective = self._rng.choice(kind.aspects), self._rng.choice(kind.adjectives)
            bare = aspect.removesuffix("+")
            if held_out("opinion", bare, adjective) == self._keep_out:
                return bare, "were" if aspect.endswith("+") else "was", adjective

    def _opinion(self, good: bool) -> str:
        aspect, be, adjective = self._pair(good)
        if self._rng.random() < 0.25:
            aspect2, be2, adjective2 = self._pair(good)
            return fill(
                self._rng.choice(self._sentences["opinion_two"]), self._rng, aspect=aspect, be=be, adjective=adjective,
                aspect2=aspect2, be2=be2, adjective2=adjective2, name=self._name,
            )  # fmt: skip
        template = self._rng.choice(self._sentences["opinion"])
        return fill(template, self._rng, aspect=aspect, be=be, adjective=adjective, name=self._name)

    def _negated(self, good: bool) -> str:
        """Return a negated opinion: "The soup was not good" is a bad one."""
        word = self._rng.choice(words("sentiment")["general"]["not_bad" if good else "not_good"])
        aspect, be, _ = self._pair(good)
        subject, verb = self._rng.choice(
            [(f"The {aspect}", be), ("It", "was"), (f"This {self._name}", "is"), ("That", "was")]
        )
        return f"{subject} {verb} not {word}."

    def _whole(self, good: bool) -> str:
        while True:
            _, _, adjective = self._pair(good)
            if " " not in adjective:
                break
        phrase = with_article(adjective)
        template = self._rng.choice(self._sentences["whole"])
        return fill(
            template, self._rng, name=self._name, adjective=adjective, article=phrase.split()[0],
            article_capital=capitalised(phrase.split()[0]),
        )  # fmt: skip

    def _liked(self, good: bool) -> str:
        aspect, _, _ = self._pair(good)
        return fill(self._rng.choice(self._sentences["love_good" if good else "love_bad"]), self._rng, aspect=aspect)

    def _happened(self, good: bool) -> str:
        return self._rng.choice(_kind(self._kind_name, good).happened)

    def _verdict(self, good: bool) -> str:
        template = self._rng.choice(self._sentences["verdict_good" if good else "verdict_bad"])
        return fill(template, self._rng, name=self._name, plural=plural(self._name))

    def _concession(self, good: bool) -> str:
        """Return an opinion behind a concession to the opposite one."""
        aspect, be, adjective = self._pair(not good)
        last = self._rng.choice([self._verdict, self._opinion, self._happened])(good)
        start = self._rng.choice(
            ["The {a} {be} {x}, but {last}", "Although the {a} {be} {x}, {last}", "The {a} {be} {x}. Still, {last}"]
        )
        lowered = last if last.split()[0].rstrip(",'") == "I" else last[0].lower() + last[1:]
        return fill(start, self._rng, a=aspect, be=be, x=adjective, last=lowered)

    def review(self, good: bool, sentences: int) -> str:
        """Return a review with ``sentences`` sentences of opinion, with held-out pairs if ``keep_out``."""
        kinds = (self._opinion, self._negated, self._whole, self._liked, self._happened, self._verdict)
        parts = [self._rng.choices(kinds, weights=(8, 2, 3, 2, 3, 4))[0](good) for _ in range(sentences)]
        if self._keep_out:
            parts[self._rng.randrange(sentences)] = self._opinion(good)
        if self._rng.random() < 0.12:
            parts[-1] = self._concession(good)
        neutral = pick(self._sentences["neutral"], self._rng, self._rng.choice((0, 0, 0, 1, 1, 2)))
        return " ".join([fill(t, self._rng, name=self._name) for t in neutral] + parts)


def write_review(rng: random.Random, good: bool, keep_out: bool = False, sentences: int | None = None) -> str:
    """Return a good or bad review of something, with one to four sentences of opinion."""
    return _Writer(rng, keep_out).review(good, sentences or rng.choice((1, 1, 2, 2, 3, 4)))


def sentiment_example(rng: random.Random, keep_out: bool) -> Example:
    """Return a review to be judged, from the training part or, with ``keep_out``, from the held-out part."""
    good = rng.random() < 0.5
    long = rng.random() < 0.02
    text = write_review(rng, good, keep_out, rng.randint(5, 14) if long else None)
    opening, cue = rng.choice(_OPENINGS), rng.choice(_CUES)
    answer = SENTIMENT_LABELS[0 if good else 1]
    return Example(Task.SENTIMENT, rng.choice(_INSTRUCTIONS), f"{opening}{text}{cue}", answer, SENTIMENT_LABELS)
