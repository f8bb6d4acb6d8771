"""The shipped model does what its folder says, through the real engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from demonstration.corpus import DECISIONS, TEXTS, held_out_examples, training_examples
from demonstration.decisions import save_decisions
from demonstration.evaluate import Judge, held_out
from demonstration.example import Example, Task
from demonstration.train import MODEL
from scoring.conversion import to_scores
from scoring.decisions.checkpoint import DecisionCheckpoint
from scoring.decisions.decision import decide
from scoring.decisions.prompts import PromptWriter
from scoring.decisions.questions import read_systemone
from scoring.layout import ChunkWork, GroupWork, Head

REPOSITORY = Path(__file__).parents[2]
JOBS: list[dict[str, Any]] = json.loads((REPOSITORY / "examples" / "demo.json").read_text(encoding="utf-8"))
TASKS = (Task.SENTIMENT, Task.RELEVANCE, Task.CHOICE)
DECIDED = (Task.OPTION, Task.LEVEL, Task.YES_OR_NO)
SEED = 20
"""Not the seed of the published figures, so these examples are others."""


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge.load(MODEL)


@pytest.fixture(scope="module")
def trained() -> list[Example]:
    """The first examples of the mixtures with all tasks that the model is trained on."""
    return [one for mixture in (TEXTS, DECISIONS) for one in islice(training_examples(0, mixture), 20_000)]


def probabilities(
    judge: Judge, query: str, items: Sequence[str], labels: Sequence[str], *, softmax: bool
) -> npt.NDArray[np.float64]:
    """Return P(label | query + item), [items, labels]; with ``softmax``, among the labels alone."""
    prefix, rows = judge.tokenizer.encode_rows(query, items)
    ids = tuple(judge.tokenizer.single_token(label) for label in labels)
    group = GroupWork("asked", prefix, (ChunkWork(0, rows, ids, Head.LOGPROBS),))
    (scored,) = judge.engine.score([group], lambda: None)
    return to_scores(scored.scores, softmax)


@cache
def of_task(task: Task) -> list[Example]:
    return list(held_out_examples(task, 300, SEED))


@pytest.mark.parametrize(
    "name",
    [
        "relevance",
        "many options",
        *(
            pytest.param(task, marks=pytest.mark.slow)
            for task in ("sentiment", "choice", "option", "level", "yes or no")
        ),
    ],
)
def test_nine_of_ten_held_out_examples_are_judged_right(judge: Judge, name: str) -> None:
    assert judge.accuracy(held_out(name, 150, SEED)) >= 0.9


@pytest.mark.parametrize("job", [job for job in JOBS if job["rank_by"] is not None], ids=lambda job: job["title"])
def test_every_ranking_of_the_demo_puts_the_right_item_first(judge: Judge, job: dict[str, Any]) -> None:
    body = job["body"]
    scores = probabilities(judge, body["query"], body["items"], body["labels"], softmax=body["apply_softmax"])
    ranking = scores[:, body["labels"].index(job["rank_by"])].argsort()[::-1].tolist()
    assert body["items"][ranking[0]] == job["right_item"]


def test_every_quiz_question_of_the_demo_is_answered_right(judge: Judge) -> None:
    quizzes = [job for job in JOBS if "right_answers" in job]
    assert {job["title"] for job in JOBS if job["rank_by"] is None} <= {job["title"] for job in quizzes}
    for job in quizzes:
        body = job["body"]
        scores = probabilities(judge, body["query"], body["items"], body["labels"], softmax=True)
        assert [body["labels"][best] for best in scores.argmax(axis=1)] == job["right_answers"]


def test_demo_documents_and_reviews_are_not_in_the_training_text(trained: list[Example]) -> None:
    texts = {item for job in JOBS for item in job["body"]["items"]}
    assert not any(example.item in texts for example in trained)


@pytest.mark.parametrize(
    ("query", "labels"),
    [
        ("This movie was great! Sentiment:", [" positive", " negative"]),
        ("What is 2+2? The answer is", [" 4", " 3", " 5"]),
        ("2+2? The answer is", [" 4", " 3", " 5"]),
        ("The capital of France is", [" Paris", " London", " Berlin"]),
    ],
)
def test_the_patterns_of_the_scoring_interface_give_the_first_label_the_highest_probability(
    judge: Judge, query: str, labels: list[str]
) -> None:
    (row,) = probabilities(judge, query, [""], labels, softmax=False)
    assert row.argmax() == 0
    assert row[0] > 0.5


def test_continuation_quality_puts_france_before_other_countries(judge: Judge) -> None:
    scores = probabilities(
        judge, "The capital of", [" Germany is", " France is", " Japan is"], [" Paris"], softmax=False
    )
    assert scores[:, 0].argmax() == 1


@pytest.mark.parametrize("task", DECIDED)
def test_the_template_writes_the_prompts_of_the_training(judge: Judge, task: Task) -> None:
    writer = PromptWriter(DecisionCheckpoint.read(MODEL, judge.tokenizer), judge.tokenizer)
    for example in held_out_examples(task, 50, SEED):
        state = example.query.removeprefix("State: ").removesuffix("\n")
        instructions, *listed = example.item.removeprefix("Question: ").removesuffix("\nAnswer:").split("\nOptions: ")
        options = [option[:-2] for option in listed[0].split(", ")] if listed else []
        kinds: dict[Task, dict[str, Any]] = {
            Task.OPTION: {"type": "choice", "criteria": dict.fromkeys(options)},
            Task.LEVEL: {"type": "score", "criteria": options},
            Task.YES_OR_NO: {"type": "noul"},
        }
        questions = read_systemone({"asked": {"instructions": instructions, **kinds[task]}})
        read = json.loads(state) if state.startswith("{") else state
        decision = decide(writer, read, questions, ["asked"])
        assert decision.prompts.shared + decision.prompts.behind[0] == example.query + example.item
        assert [judge.tokenizer.single_token(label) for label in example.labels] == list(decision.labels[0])


def test_the_model_is_asked_as_the_training_says(tmp_path: Path) -> None:
    save_decisions(tmp_path)
    for name in ("decision.json", "decision_template.jinja"):
        assert (MODEL / name).read_text(encoding="utf-8") == (tmp_path / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("task", TASKS)
def test_classification_with_an_empty_item_gives_the_same_answers(judge: Judge, task: Task) -> None:
    examples = held_out_examples(task, 40, SEED)
    whole = [Example(task, example.query + example.item, "", example.answer, example.labels) for example in examples]
    assert judge.answers(whole) == judge.answers(examples)


def test_delimiter_mode_gives_right_answers(judge: Judge) -> None:
    separator = "<|sep|>"
    judge.tokenizer.single_token(separator)
    examples = [example for example in held_out_examples(Task.RELEVANCE, 100, SEED) if example.query]
    apart = [
        Example(example.task, example.query + separator, example.item, example.answer, example.labels)
        for example in examples
    ]
    assert judge.accuracy(apart) >= 0.85


def test_labels_are_single_tokens(judge: Judge) -> None:
    labels = {label for task in TASKS for example in held_out_examples(task, 120, SEED) for label in example.labels}
    for label in labels | {label for job in JOBS for label in job["body"]["labels"]}:
        judge.tokenizer.single_token(label)


def test_the_model_folder_stays_small() -> None:
    assert sum(file.stat().st_size for file in MODEL.iterdir()) <= 5_000_000


@pytest.mark.slow
@pytest.mark.parametrize("task", [*TASKS, *DECIDED])
def test_held_out_prompts_never_occur_in_training(task: Task, trained: list[Example]) -> None:
    prompts = {example.query + example.item for example in of_task(task)}
    assert not any(example.query + example.item in prompts for example in trained)
