"""What is wrong with the files of a checkpoint refuses decisions, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scoring.decisions.checkpoint import DecisionCheckpoint
from scoring.decisions.decision import Decision, decide
from scoring.decisions.questions import path_of, read_systemone
from scoring.error_codes import RequestError
from scoring.tokenizing.tokenization import TextTokenizer
from tests.api.tiny_model import make_model_directory

NOUL = {"type": "noul", "instructions": "Is it so?"}
CHOICE = {"type": "choice", "criteria": {"a": None}}


def asked(directory: Path, question: dict[str, Any]) -> Decision:
    tokenizer = TextTokenizer.load(directory)
    questions = read_systemone({"q": question})
    checkpoint = DecisionCheckpoint.read(directory, tokenizer)
    return decide(checkpoint, tokenizer, "state", questions, [path_of(one.name or "") for one in questions])


def error(directory: Path, question: dict[str, Any]) -> tuple[str, str]:
    with pytest.raises(RequestError) as caught:
        asked(directory, question)
    return caught.value.code, caught.value.message


def test_labels_that_are_not_single_tokens_refuse_their_kind_alone(tmp_path: Path) -> None:
    directory = make_model_directory(tmp_path)
    labels = {"noul": ["certainly", "never ever"], "choice": ["A"], "score": ["one by one"]}
    (directory / "decision.json").write_text(json.dumps({"labels": labels}))
    code, message = error(directory, NOUL)
    assert code == "labels_not_single_tokens"
    assert "questions.q: the labels of the model, such as 'certainly', 'never ever'" in message
    assert asked(directory, CHOICE).labels == ((TextTokenizer.load(directory).single_token("A"),),)
    assert error(directory, CHOICE | {"criteria": {"a": None, "b": None}})[0] == "too_many_options"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("decision.json", "{", "decision.json can't be read"),
        ("decision.json", '{"noul_options": ["yes"]}', "decision.json can't be read"),
        ("decision.json", '{"adapter": "lora"}', "the adapter 'lora'"),
        ("decision_template.jinja", "{{ state", "its template can't be used: it can't be read"),
        ("chat_template.jinja", None, "neither a chat template nor a decision_template.jinja"),
        ("decision_template.jinja", "{{ raise_exception('not today') }}", "can't be used: not today"),
        (
            "decision_template.jinja",
            "{% for q in questions %}{{ q.name }}{% endfor %}",
            "writes 0 marks for 1 questions",
        ),
    ],
)
def test_a_file_that_is_wrong_is_named(name: str, content: str | None, message: str, tmp_path: Path) -> None:
    directory = make_model_directory(tmp_path)
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_text(content)
    code, found = error(directory, CHOICE)
    assert code == "invalid_template"
    assert message in found
