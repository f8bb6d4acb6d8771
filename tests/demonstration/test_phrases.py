"""The shipped model answers its multiple choice with whole phrases as well as with single tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from demonstration.corpus import held_out_examples
from demonstration.evaluate import Judge
from demonstration.example import Example, Task
from demonstration.train import MODEL
from scoring.layout import ChunkWork, GroupWork, Head
from scoring.prepare import prepare
from scoring.request import parse_score_request
from tests.scoring.generous_limits import GENEROUS

QUESTIONS = 100
SEED = 20
CHOICES = 4
ENDING = "."
MOVED_WORDS = 2
"""Words at the end of a question that are the beginning of each answer instead."""


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge.load(MODEL)


@pytest.fixture(scope="module")
def questions() -> list[Example]:
    return list(held_out_examples(Task.CHOICE, QUESTIONS, SEED))


def phrased(question: Example) -> dict[str, object]:
    """Return a request whose labels are the end of the question with an answer, and a full stop."""
    before, *moved = (question.query + question.item).rsplit(" ", MOVED_WORDS)
    beginning = "".join(f" {word}" for word in moved)
    labels = [f"{beginning}{label}{ENDING}" for label in question.labels]
    return {"query": before, "items": [""], "labels": labels, "label_scoring": "sequence"}


def answers(judge: Judge, questions: Sequence[Example]) -> list[str]:
    """Return the most probable answer to each question."""
    groups = []
    for number, question in enumerate(questions):
        request = parse_score_request(phrased(question))
        prepared = prepare(request, judge.engine.card, judge.tokenizer, GENEROUS)
        (chunk,) = prepared.chunks
        work = ChunkWork(number, chunk.rows, (), Head.LOGPROBS, chunk.continuations)
        groups.append(GroupWork(str(number), prepared.prefix, (work,)))
    found = {scored.id: scored.scores.logprobs for scored in judge.engine.score(groups, lambda: None)}
    return [
        question.labels[int(np.argmax(logprobs))]
        for number, question in enumerate(questions)
        if (logprobs := found[number]) is not None
    ]


def test_phrases_are_of_several_tokens(judge: Judge, questions: list[Example]) -> None:
    labels = [label for question in questions for label in phrased(question)["labels"]]  # type: ignore[attr-defined]
    lengths = [len(judge.tokenizer.encode_behind_text(label)) for label in labels]
    assert min(lengths) >= 3
    assert len(set(lengths)) > 1


@pytest.mark.slow
def test_whole_phrases_are_right_as_often_as_single_tokens(judge: Judge, questions: list[Example]) -> None:
    pairs = zip(answers(judge, questions), questions, strict=True)
    right = sum(answer == question.answer for answer, question in pairs) / len(questions)
    chance, single = 1 / CHOICES, judge.accuracy(questions)
    assert right - chance >= 0.9 * (single - chance)
    assert single > 0.9
