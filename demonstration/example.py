"""Examples for training and testing: a prompt in two parts, and the word that follows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Task(StrEnum):
    """The three tasks of the demonstration, and a fourth that prepares for relevance in training."""

    SENTIMENT = "sentiment"
    RELEVANCE = "relevance"
    CHOICE = "choice"
    TOPICS = "topics"


SENTIMENT_LABELS = (" positive", " negative")
RELEVANCE_LABELS = (" yes", " no")


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt, ``query + item``, and its answer."""

    task: Task
    query: str
    item: str
    answer: str  # the text that follows the prompt, with its leading space
    labels: tuple[str, ...] = ()  # the possible answers, each a single token; empty for a task without a choice
