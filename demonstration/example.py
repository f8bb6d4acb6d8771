"""Examples for training and testing: a prompt in two parts, and the word that follows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Task(StrEnum):
    """The tasks of the demonstration, and three that only prepare for others in training."""

    SENTIMENT = "sentiment"
    RELEVANCE = "relevance"
    CHOICE = "choice"
    TOPICS = "topics"
    DEPARTMENT = "department"
    LOOK_UP = "look-up"
    YES_OR_NO = "yes or no"
    OPTION = "option"
    MANY_OPTIONS = "many options"
    LEVEL = "level"


SENTIMENT_LABELS = (" positive", " negative")
RELEVANCE_LABELS = (" yes", " no")
OPTION_LABELS = tuple(f" {number}" for number in range(1, 10))
LEVEL_LABELS = tuple(f" {level}" for level in range(10))


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt, ``query + item``, and its answer."""

    task: Task
    query: str
    item: str
    answer: str  # the text that follows the prompt, with its leading space
    labels: tuple[str, ...] = ()  # the possible answers, each a single token; empty for a task without a choice
