"""The text for training and testing the model, generated from the word lists of this folder.

The two parts are disjoint: every task holds one in ten of its contents out of training (each task's module says what
that is). Both parts are endless streams that are reproducible from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from demonstration.example import Example, Task
from demonstration.knowledge import choice_example
from demonstration.relevance import relevance_example, topic_example
from demonstration.sentiment import sentiment_example
from demonstration.tickets import (
    department_example,
    level_example,
    look_up_example,
    option_example,
    yes_or_no_example,
)
from demonstration.tokenizer import END_OF_TEXT, SEPARATOR

LENGTHS = (32, 48, 64, 96, 256)
"""Lengths, in tokens, to which training sequences are padded."""

Mixture = Mapping[Task, float]
"""The share of each task in the examples."""

TEXTS: Mixture = {Task.SENTIMENT: 20, Task.RELEVANCE: 40, Task.CHOICE: 22, Task.TOPICS: 18}
LOOKING_UP: Mixture = {Task.LOOK_UP: 80, Task.DEPARTMENT: 8, **{task: share * 0.12 for task, share in TEXTS.items()}}
DECISIONS: Mixture = {
    Task.LOOK_UP: 12,
    Task.DEPARTMENT: 12,
    Task.OPTION: 25,
    Task.YES_OR_NO: 14,
    Task.LEVEL: 7,
    **{task: share * 0.3 for task, share in TEXTS.items()},
}
MANY_OPTIONS: Mixture = {
    Task.LOOK_UP: 4,
    Task.DEPARTMENT: 4,
    Task.OPTION: 10,
    Task.MANY_OPTIONS: 25,
    Task.YES_OR_NO: 12,
    Task.LEVEL: 5,
    **{task: share * 0.4 for task, share in TEXTS.items()},
}
"""The mixtures, one for each stage of training. A number is looked up only by a model that knows words, and a ticket is
understood only by one that looks up numbers: all at once, neither is learned."""

_SEPARATED_SHARE = 0.08
_DRAWS = 20
"""Draws for each held-out example that is asked for. After that many, new examples are rare."""
_TEXT_TARGETS = 4
"""Random tokens of the text before an answer that are predicted, which teaches words at little cost."""

_ANSWER_TARGETS = 3
"""Tokens of an answer that are predicted at most. Most answers have one; names of topics have a few."""


class Batch(NamedTuple):
    """Sequences of one padded length, and the tokens to be predicted in them."""

    tokens: npt.NDArray[np.int32]  # [B, L]: an example in each row
    positions: npt.NDArray[np.int32]  # [B, T]: the tokens after these are predicted
    targets: npt.NDArray[np.int32]  # [B, T]: the tokens to be predicted
    is_answer: npt.NDArray[np.float32]  # [B, T]: 1 where the target is part of the answer
    is_text: npt.NDArray[np.float32]  # [B, T]: 1 where the target is part of the text before the answer


def training_examples(seed: int, mixture: Mixture = TEXTS) -> Iterator[Example]:
    """Yield examples of a mixture without end, none of them with held-out content."""
    rng = random.Random(seed)
    tasks, shares = list(mixture), list(mixture.values())
    while True:
        yield _example(rng.choices(tasks, weights=shares)[0], rng, keep_out=False)


def held_out_examples(task: Task, count: int, seed: int, new_sentences: bool = False) -> list[Example]:
    """Return up to ``count`` different examples of a task, of content that training never shows.

    new_sentences: the documents of a search, or the tickets of an option, are sentences that training never shows.
    """
    rng = random.Random(seed)
    found: dict[tuple[str, str], Example] = {}
    for _ in range(_DRAWS * count):
        if len(found) == count:
            break
        example = _example(task, rng, keep_out=True, new_only=new_sentences)
        found[example.query, example.item] = example
    return list(found.values())


def _example(task: Task, rng: random.Random, *, keep_out: bool, new_only: bool = False) -> Example:
    match task:
        case Task.SENTIMENT:
            return sentiment_example(rng, keep_out)
        case Task.RELEVANCE:
            return relevance_example(rng, keep_out, new_only)
        case Task.CHOICE:
            return choice_example(rng, keep_out)
        case Task.OPTION | Task.MANY_OPTIONS:
            return option_example(rng, keep_out, new_only, many=task is Task.MANY_OPTIONS)
        case Task.LEVEL:
            return level_example(rng, keep_out)
        case Task.YES_OR_NO:
            return yes_or_no_example(rng, keep_out)
    if keep_out:
        raise ValueError(f"{task} has no held-out part")
    return {Task.TOPICS: topic_example, Task.DEPARTMENT: department_example, Task.LOOK_UP: look_up_example}[task](rng)


def batches(tokenizer: Tokenizer, tokens: int, seed: int, mixture: Mixture) -> Iterator[Batch]:
    """Yield batches of about ``tokens`` tokens without end, reproducible from a seed, each of one padded length."""
    separator, end = tokenizer.token_to_id(SEPARATOR), tokenizer.token_to_id(END_OF_TEXT)
    rng = random.Random(f"batches {seed}")
    waiting: dict[int, list[tuple[list[int], int]]] = {length: [] for length in LENGTHS}
    for example in training_examples(seed, mixture):
        ids, prompt = _encoded(example, tokenizer, separator, rng)
        length = next((length for length in LENGTHS if len(ids) <= length), None)
        if length is None:
            continue
        rows = waiting[length]
        rows.append((ids, prompt))
        if len(rows) == tokens // length:
            yield _batch(rows, length, end, rng)
            rows.clear()


def _encoded(example: Example, tokenizer: Tokenizer, separator: int, rng: random.Random) -> tuple[list[int], int]:
    """Return the example's token ids, and how many of them come before the answer.

    Some have the separator between query and item, so that delimiter mode gives meaningful scores, too.
    """
    if example.query and example.item and rng.random() < _SEPARATED_SHARE:
        ids = [*tokenizer.encode(example.query).ids, separator, *tokenizer.encode(example.item).ids]
    else:
        ids = list(tokenizer.encode(example.query + example.item).ids)
    return ids + tokenizer.encode(example.answer).ids, len(ids)


def _batch(rows: list[tuple[list[int], int]], length: int, end: int, rng: random.Random) -> Batch:
    shape = (len(rows), _ANSWER_TARGETS + _TEXT_TARGETS)
    tokens = np.full((len(rows), length), end, np.int32)
    positions, targets = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    is_answer, is_text = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for row, (ids, prompt) in enumerate(rows):
        tokens[row, : len(ids)] = ids
        answers = range(prompt, min(len(ids), prompt + _ANSWER_TARGETS))
        text = rng.sample(range(1, prompt), min(_TEXT_TARGETS, prompt - 1))
        for column, at in enumerate((*answers, *text)):
            positions[row, column], targets[row, column] = at - 1, ids[at]
            is_answer[row, column], is_text[row, column] = column < len(answers), column >= len(answers)
    return Batch(tokens, positions, targets, is_answer, is_text)
