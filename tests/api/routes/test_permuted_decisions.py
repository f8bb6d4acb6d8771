"""Choices that are asked in several orders of their options: at both doors, in jobs, and with artefacts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from scoring.decisions.checkpoint import DecisionCheckpoint
from scoring.decisions.decision import decide as ask
from scoring.decisions.orders import orders_of
from scoring.decisions.prompts import PromptWriter
from scoring.decisions.questions import read_systemone
from scoring.tokenizing.tokenization import TextTokenizer
from tests.api import tiny_model
from tests.api.routes.test_decisions import BODY, STATE, decide, prompt
from tests.api.serving import Json, RunningApi
from tests.api.tiny_model import TinyModel, make_model_directory

TOWNS: dict[str, str | None] = {"Paris": "France", "London": None, "Rome": "great", "Berlin": "bad"}
TOWN: Json = {"type": "choice", "instructions": "Which one?", "criteria": TOWNS}
LABELS = ["A", "B", "C", "D"]


def of_order(model: TinyModel, order: tuple[int, ...]) -> tuple[str, Any]:
    """Return the prompt of an order, and the log-probabilities of the options, in the order of the request."""
    names = [list(TOWNS)[place] for place in order]
    text = prompt(STATE, "choice", "Which one?", names, LABELS, [TOWNS[name] for name in names])
    logits = tiny_model.logits(model.encode(text))[[model.token(label) for label in LABELS]]
    found = np.empty(4)
    found[list(order)] = log_softmax(logits.astype(float))
    return text, found


@pytest.mark.parametrize("permute", [2, 4, 7, 24, "balanced"])
def test_the_answer_is_the_mean_over_the_orders(api: RunningApi, model: TinyModel, permute: int | str) -> None:
    orders = orders_of(4, None if permute == "balanced" else int(permute), "")
    texts, logs = zip(*(of_order(model, order) for order in orders), strict=True)
    expected = softmax(np.mean(logs, axis=0))
    answer = decide(api, BODY | {"questions": {"town": TOWN}, "permute": permute})
    town, diagnostics = answer["answers"]["town"], answer["diagnostics"]["town"]
    assert town["probabilities"] == pytest.approx(dict(zip(TOWNS, expected, strict=True)), abs=1e-6)
    assert town["choice"] == list(TOWNS)[int(expected.argmax())]
    assert answer["usage"]["input_tokens"] == sum(len(model.encode(text)) for text in texts)
    assert diagnostics["orders"] == len(orders)
    assert diagnostics["spread"] == pytest.approx(np.ptp(np.exp(logs), axis=0).max(), abs=1e-6)
    assert diagnostics["flips"] == np.mean([one.argmax() != expected.argmax() for one in logs])


def test_only_choices_are_asked_in_several_orders(api: RunningApi) -> None:
    once, permuted = decide(api), decide(api, BODY | {"permute": 4})
    for name in ("great", "bad"):
        assert permuted["answers"][name] == once["answers"][name]
        assert permuted["diagnostics"][name] == once["diagnostics"][name]
    assert permuted["diagnostics"]["town"]["orders"] == 2  # all that two options have


def test_a_question_does_not_change_by_the_orders_of_others(api: RunningApi) -> None:
    alone = decide(api, BODY | {"questions": {"town": TOWN}, "permute": "balanced"})
    among = decide(api, BODY | {"questions": BODY["questions"] | {"towns": TOWN, "more": TOWN}, "permute": "balanced"})
    assert among["answers"]["towns"] == among["answers"]["more"] == alone["answers"]["town"]


def test_both_doors_and_jobs_permute_alike(api: RunningApi) -> None:
    asked = BODY | {"questions": {"town": TOWN}, "permute": 3}
    answer = decide(api, asked)["answers"]["town"]
    job = api.wait(api.client.post("/v1/jobs", json=asked | {"kind": "decision"}).json()["id"])
    assert job["result"]["answers"]["town"] == answer
    choices = [{"value": name} | ({} if about is None else {"description": about}) for name, about in TOWNS.items()]
    question = {"type": "choice", "instructions": "Which one?", "choices": choices}
    other = decide(api, {"input": STATE, "questions": [question], "permute": 3}, "/v1/decisions")
    shares = {one["value"]: one["probability"] for one in other["answers"][0]["probabilities"]}
    assert shares == answer["probabilities"]
    assert other["diagnostics"][0]["orders"] == 3


def test_a_version_that_knows_no_orders_answers_by_the_first_one(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(make_model_directory(tmp_path))
    writer = PromptWriter(DecisionCheckpoint.read(tmp_path, tokenizer), tokenizer)
    many = {"type": "choice", "instructions": "Which one?", "criteria": {f"option {n}": None for n in range(30)}}
    questions = read_systemone({"town": TOWN, "many": many, "after": TOWN})
    once, permuted = (
        decision.form(np.ones(1_000, np.int32))["questions"]
        for decision in (ask(writer, STATE, questions, "abc", permute=one) for one in (1, 3))
    )
    assert [one["rows"] for one in permuted] == [3 * one.get("rows", 1) for one in once]
    assert permuted[1]["places"] == once[1]["places"]
    assert [one["options"] for one in permuted] == [one["options"] for one in once]


def test_a_dry_run_says_what_the_orders_cost(api: RunningApi) -> None:
    asked = BODY | {"questions": {"town": TOWN}, "permute": "balanced"}
    planned = api.client.post("/v1/jobs", json=asked | {"kind": "decision", "dry_run": True}).json()
    assert planned["total_items"] == 4
    assert planned["usage"]["prompt_tokens"] == decide(api, asked)["usage"]["input_tokens"]


def test_labels_of_two_tokens_are_permuted_too(api: RunningApi) -> None:
    many = {f"option {n}": None for n in range(30)}
    question = {"type": "choice", "instructions": "Which one?", "criteria": many}
    once = decide(api, BODY | {"questions": {"many": question}})
    answer = decide(api, BODY | {"questions": {"many": question}, "permute": 2})
    assert answer["diagnostics"]["many"]["orders"] == 2
    assert sum(answer["answers"]["many"]["probabilities"].values()) == pytest.approx(1)
    assert answer["usage"]["input_tokens"] > once["usage"]["input_tokens"]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"permute": 1}, "invalid_request", "permute"),
        ({"permute": "all"}, "invalid_request", "permute"),
        ({"permute": 24, "questions": {str(n): TOWN for n in range(42)}}, "request_too_large", "permute"),
        (
            {"permute": "balanced", "questions": {"a": TOWN | {"criteria": {str(n): None for n in range(25)}}}},
            "too_many_options",
            "questions.a",
        ),
    ],
)
def test_orders_that_there_are_not_are_refused(api: RunningApi, fields: Json, code: str, param: str) -> None:
    response = api.client.post("/v1/systemone", json=BODY | fields)
    assert response.status_code in (400, 413)
    assert (response.json()["error"]["code"], response.json()["error"]["param"]) == (code, param)
