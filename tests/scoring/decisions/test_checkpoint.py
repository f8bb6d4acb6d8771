"""What is wrong with the files of a checkpoint refuses decisions, and nothing else."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpoints.files import read_model_card
from checkpoints.source import Checkpoint
from scoring.decisions.checkpoint import DecisionCheckpoint
from scoring.decisions.decision import Decision, decide
from scoring.decisions.prompts import PromptWriter
from scoring.decisions.questions import path_of, read_systemone
from scoring.error_codes import RequestError
from scoring.limits import Limit
from scoring.options import ScoreOptions
from scoring.prepare import PreparedRequest, prepare
from scoring.request import ScoreRequest
from scoring.served_model import ServedModel
from scoring.tokenizing.tokenization import TextTokenizer
from tests.api.tiny_model import make_model_directory
from tests.scoring.generous_limits import GENEROUS

NOUL = {"type": "noul", "instructions": "Is it so?"}
CHOICE = {"type": "choice", "criteria": {"a": None}}


def asked(directory: Path, question: dict[str, Any]) -> Decision:
    tokenizer = TextTokenizer.load(directory)
    questions = read_systemone({"q": question})
    writer = PromptWriter(DecisionCheckpoint.read(directory, tokenizer), tokenizer)
    return decide(writer, "state", questions, [path_of(one.name or "") for one in questions])


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


def prepared(directory: Path, question: dict[str, Any], **limits: Any) -> PreparedRequest:
    """Prepare a decision under limits. Raises RequestError in the words of who has asked."""
    decision, tokenizer = asked(directory, question), TextTokenizer.load(directory)
    request = ScoreRequest(
        decision.prompts.shared,
        list(decision.prompts.behind),
        None,
        None,
        ScoreOptions(apply_softmax=True),
        item_labels=decision.labels,
        decision=decision,
    )
    try:
        return prepare(request, read_model_card(directory, "", None, tokenizer), tokenizer, replace(GENEROUS, **limits))
    except RequestError as error:
        raise request.worded(error) from None


def test_the_limits_on_labels_do_not_count_those_of_questions(tmp_path: Path) -> None:
    question = CHOICE | {"criteria": {"a": None, "b": None}}
    found = prepared(make_model_directory(tmp_path), question, max_labels=1, item_labels=Limit("max_item_labels", 1))
    assert len(found.label_token_ids) == 2


def test_a_question_with_too_many_prompts_is_refused_by_their_number(tmp_path: Path) -> None:
    question = CHOICE | {"criteria": dict.fromkeys(map(str, range(30)))}  # labels of two letters, which are two tokens
    with pytest.raises(RequestError, match="more than the 2 prompts of the questions allowed here") as caught:
        prepared(make_model_directory(tmp_path), question, items=Limit("max_items", 2))
    assert caught.value.param == "questions"


def test_nothing_of_a_model_that_was_asked_is_kept_when_it_is_dropped(tmp_path: Path) -> None:
    checkpoint = Checkpoint(make_model_directory(tmp_path), "tiny")
    model = ServedModel.load(checkpoint, name=None, delimiter=None, context_length=None, template=None)
    assert model.prompts is model.prompts
    decide(model.prompts, "state", read_systemone({"q": NOUL}), ["q"])
    tokenizer = weakref.ref(model.tokenizer)
    del model
    gc.collect()
    assert tokenizer() is None


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
