"""What the model is taught and tested on: a prompt in two parts and the word that follows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Task(StrEnum):
    """The three tasks of the demonstration, and one more that only teaches what relevance needs."""

    SENTIMENT = "sentiment"
    RELEVANCE = "relevance"
    CHOICE = "choice"
    TOPICS = "topics"


SENTIMENT_LABELS = (" positive", " negative")
RELEVANCE_LABELS = (" yes", " no")


@dataclass(frozen=True, slots=True)
class Example:
    """``query + item`` is the prompt, ``answer`` the text that follows it, with its leading space.

    labels: what the answer is chosen from, itself included, every one a single token; empty where nothing is chosen.
    """

    task: Task
    query: str
    item: str
    answer: str
    labels: tuple[str, ...] = ()
