"""Decisions at both doors, as calls, jobs and lines of batches, by the scores of a made-up model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from openai import BadRequestError
from scipy.special import softmax
from transformers.decision.template_utils import DECISION_PROMPT
from transformers.utils.chat_template_utils import _compile_jinja_template

from scoring.decisions.checkpoint import CODES
from tests.api import tiny_model
from tests.api.batches.running import line, openai_of, read, run
from tests.api.serving import Json, RunningApi, StandInWorker, eventually
from tests.api.tiny_model import END, TinyModel
from tests.hostile.contract import MAX_ERROR_BYTES

STATE = "I saw London. This movie was great!"
REFUND: Json = {"type": "noul", "instructions": "Is it great?"}
TEAM: Json = {"type": "choice", "instructions": "Which one?", "criteria": {"Paris": "France", "London": None}}
URGENCY: Json = {"type": "score", "instructions": "How bad?", "criteria": ["good", "bad", "negative"]}
QUESTIONS = {"great": REFUND, "town": TEAM, "bad": URGENCY}
BODY: Json = {"state": STATE, "questions": QUESTIONS}


def decide(api: RunningApi, body: Json = BODY, path: str = "/v1/systemone", key: str | None = None) -> Json:
    headers = {} if key is None else {"Idempotency-Key": key}
    response = api.client.post(path, json=body, headers=headers)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def prompt(state: str, kind: str, instructions: str, options: list[str], labels: list[str], about: list[Any]) -> str:
    question = {
        "type": kind,
        "instructions": instructions,
        "options": options,
        "labels": labels,
        "descriptions": about,
    }
    asked = _compile_jinja_template(DECISION_PROMPT).render(state=state, question=question)
    return f"{asked}{END}The answer is"


PROMPTS = {
    "great": prompt(STATE, "noul", "Is it great?", ["true", "false"], [" yes", " no"], [None, None]),
    "town": prompt(STATE, "choice", "Which one?", ["Paris", "London"], ["A", "B"], ["France", None]),
    "bad": prompt(STATE, "score", "How bad?", ["0", "1", "2"], ["A", "B", "C"], ["good", "bad", "negative"]),
}
LABELS = {"great": [" yes", " no"], "town": ["A", "B"], "bad": ["A", "B", "C"]}


def expected(model: TinyModel, name: str) -> list[float]:
    logits = tiny_model.logits(model.encode(PROMPTS[name]))
    found: list[float] = softmax(logits[[model.token(label) for label in LABELS[name]]].astype(float)).tolist()
    return found


def test_answers_are_the_softmax_over_the_labels_behind_each_prompt(api: RunningApi, model: TinyModel) -> None:
    answer = decide(api)
    assert answer["answers"]["great"] == {"type": "noul", "noul": pytest.approx(expected(model, "great")[0])}
    town = expected(model, "town")
    assert answer["answers"]["town"] == {
        "type": "choice",
        "choice": ["Paris", "London"][int(np.argmax(town))],
        "confidence": pytest.approx(2 * max(town) - 1),
        "probabilities": pytest.approx(dict(zip(["Paris", "London"], town, strict=True))),
    }
    bad = expected(model, "bad")
    distance = sum(share * abs(level - int(np.argmax(bad))) for level, share in enumerate(bad))
    assert answer["answers"]["bad"] == {
        "type": "score",
        "score": pytest.approx(bad[1] + 2 * bad[2]),
        "legend": {"0": "good", "1": "bad", "2": "negative"},
        "confidence": pytest.approx(max(0, 1 - distance / (2 / 3))),
        "probabilities": pytest.approx(dict(zip("012", bad, strict=True))),
    }
    tokens = sum(len(model.encode(text)) for text in PROMPTS.values())
    assert answer["usage"] == {"input_tokens": tokens, "output_tokens": 0, "cached_tokens": 0}
    for name, text in PROMPTS.items():
        logprobs = tiny_model.logprobs(model.encode(text))
        labels = [model.token(label) for label in LABELS[name]]
        shown = answer["diagnostics"][name]
        assert shown["label_mass"] == pytest.approx(float(np.exp(logprobs[labels].astype(float)).sum()))
        assert shown["argmax_is_label"] is (int(logprobs.argmax()) in labels)


def test_both_doors_give_the_same_numbers(api: RunningApi) -> None:
    answer = decide(api)["answers"]
    questions = [
        {"type": "predicate", "name": "great", "instructions": [{"type": "input_text", "text": "Is it great?"}]},
        {
            "type": "choice",
            "instructions": "Which one?",
            "choices": [{"value": "Paris", "description": "France"}, {"value": "London"}],
        },
        {"type": "score", "instructions": "How bad?", "levels": [{"label": one} for one in URGENCY["criteria"]]},
    ]
    found = openai_of(api).decisions.create(model="tiny", input=STATE, questions=questions)  # type: ignore[arg-type]
    great, town, bad = found.answers
    assert great.model_dump() == {"type": "predicate", "name": "great", "probability": answer["great"]["noul"]}
    assert town.model_dump() == {
        "type": "choice",
        "name": None,
        "choice": answer["town"]["choice"],
        "confidence": answer["town"]["confidence"],
        "probabilities": [
            {"value": value, "probability": share} for value, share in answer["town"]["probabilities"].items()
        ],
    }
    assert bad.model_dump() == {
        "type": "score",
        "name": None,
        "score": answer["bad"]["score"],
        "confidence": answer["bad"]["confidence"],
        "probabilities": [
            {"label": label, "value": level, "probability": answer["bad"]["probabilities"][str(level)]}
            for level, label in enumerate(URGENCY["criteria"])
        ],
    }


def test_a_message_of_a_user_is_the_state_and_several_messages_are_json(api: RunningApi) -> None:
    question = [{"type": "predicate", "instructions": "Is it great?"}]
    client = openai_of(api).decisions
    parts = [{"type": "input_text", "text": STATE}]
    on_sqlite: Any = [{"role": "user", "content": parts}]
    several: Any = [
        {"role": "system", "content": "Be kind."},
        {"type": "function_call", "name": "find", "arguments": "{}", "call_id": "1", "id": "x"},
        {"type": "function_call_output", "call_id": "1", "output": STATE},
        {"role": "assistant", "content": [{"type": "output_text", "text": "No."}], "phase": None},
    ]
    as_json = [
        {"role": "system", "content": "Be kind."},
        {"type": "function_call", "name": "find", "arguments": "{}", "call_id": "1"},
        {"type": "function_call_output", "call_id": "1", "output": STATE},
        {"role": "assistant", "content": "No."},
    ]
    for given, state in ((on_sqlite, STATE), (several, as_json)):
        found = client.create(model="default", input=given, questions=question)  # type: ignore[arg-type]
        same = decide(api, {"state": state, "questions": {"great": REFUND}})
        assert found.answers[0].probability == same["answers"]["great"]["noul"]  # type: ignore[union-attr]


def test_an_option_may_be_a_boolean_beside_a_text_of_the_same_spelling(api: RunningApi) -> None:
    choices: Any = [{"value": True}, {"value": "true"}, {"value": False}]
    question: Any = {"type": "choice", "instructions": "Great?", "choices": choices}
    found: Any = openai_of(api).decisions.create(model="tiny", input=STATE, questions=[question])
    assert [one.value for one in found.answers[0].probabilities] == [True, "true", False]
    question["choices"] = [{"value": True}, {"value": True}]
    with pytest.raises(BadRequestError, match=r"questions\[0\].choices has a value twice"):
        openai_of(api).decisions.create(model="tiny", input=STATE, questions=[question])


def test_more_options_than_letters_are_read_as_codes_of_two_letters(api: RunningApi, model: TinyModel) -> None:
    names = [f"{n}" for n in range(40)]
    question: Json = {"type": "choice", "instructions": "Which?", "criteria": dict.fromkeys(names)}
    answer = decide(api, {"state": "s", "questions": {"one": question, "great": REFUND}})
    labels = list(CODES[:40])
    ids = model.encode(prompt("s", "choice", "Which?", names, labels, [None] * 40))
    tokens = [model.encode(label) for label in labels]
    logprobs = [
        sum(tiny_model.logprobs([*ids, *label[:n]])[token] for n, token in enumerate(label)) for label in tokens
    ]
    shares = dict(zip(names, softmax(np.array(logprobs, float)).tolist(), strict=True))
    assert answer["answers"]["one"]["probabilities"] == pytest.approx(shares)
    mass = float(np.exp(np.array(logprobs, float)).sum())
    assert answer["diagnostics"]["one"]["label_mass"] == pytest.approx(mass)
    alone = decide(api, {"state": "s", "questions": {"great": REFUND}})
    assert answer["answers"]["great"] == alone["answers"]["great"]
    assert len(ids) < answer["usage"]["input_tokens"] < 2 * len(ids)


def test_a_job_and_the_lines_of_a_batch_give_the_answers_of_a_call(on_sqlite: tuple[RunningApi, StandInWorker]) -> None:
    api, _ = on_sqlite
    call = decide(api)
    job = api.client.post("/v1/jobs", json={"kind": "decision", "metadata": {"a": "b"}, **BODY}).json()
    assert (job["kind"], job["label_scoring"], job["metadata"]) == ("decision", None, {"a": "b"})
    eventually(lambda: api.client.get(f"/v1/jobs/{job['id']}").json()["status"] == "succeeded", "the job succeeds")
    found = api.client.get(f"/v1/jobs/{job['id']}").json()
    assert found["result"] | {"id": None} == call | {"id": None}
    for offset, count in ((0, 3), (2, 1), (3, 0), (99, 0)):
        page = api.client.get(f"/v1/jobs/{job['id']}/scores", params={"offset": offset})
        assert len(page.json()["data"]) == count
    listed = api.client.get("/v1/jobs").json()["data"]
    assert [(one["id"], one["kind"]) for one in listed] == [(job["id"], "decision")]
    openai_body = {"input": STATE, "questions": [{"type": "predicate", "instructions": "Is it great?"}]}
    for path, body in (("/v1/systemone", BODY), ("/v1/decisions", openai_body)):
        lines = [line("one", body, url=path), line("wrong", {**body, "questions": None}, url=path)]
        batch = run(openai_of(api), lines, endpoint=path)
        (output,) = read(openai_of(api), batch.output_file_id)
        assert output["response"]["body"] | {"id": None} == decide(api, body, path) | {"id": None}
        (refused,) = read(openai_of(api), batch.error_file_id)
        assert refused["response"]["body"]["error"]["code"] == "missing_questions"


def test_questions_whose_long_names_begin_alike_are_all_answered(api: RunningApi) -> None:
    names = ["n" * 235 + end for end in "ab"]
    answer = decide(api, BODY | {"questions": {names[0]: REFUND, names[1]: TEAM}})
    assert [answer["answers"][name]["type"] for name in names] == ["noul", "choice"]


@pytest.mark.parametrize("character", ["\U000e0001", "👍"])
def test_an_error_with_many_faults_is_small_whatever_the_names_are(api: RunningApi, character: str) -> None:
    faulty = {str(n) + character * 300: REFUND | {character * 300: 1} for n in range(30)}
    response = api.client.post("/v1/systemone", json=BODY | {"questions": faulty})
    assert response.status_code == 400
    assert len(response.content) <= MAX_ERROR_BYTES
    assert response.json()["error"]["message"].endswith(" more faults")


def test_the_same_key_and_body_get_the_same_answer_again(api: RunningApi) -> None:
    first = decide(api, key="decision-1")
    assert decide(api, key="decision-1") == first


IMAGE = {"type": "image", "data_base64": "aaaa"}
MANY = dict.fromkeys(map(str, range(256)))


@pytest.mark.parametrize(
    ("body", "code", "param", "message"),
    [
        ({}, "invalid_request", "state", "state is required"),
        ({"state": 1, "questions": QUESTIONS}, "invalid_request", "state", "a text, an object or a list"),
        ({"state": ""}, "missing_questions", "questions", "at least one"),
        ({"state": "", "questions": {}}, "missing_questions", "questions", "at least one"),
        ({"state": "", "questions": [REFUND]}, "invalid_question", "questions", "must map names"),
        ({"state": "", "questions": {str(n): REFUND for n in range(401)}}, "too_many_questions", "questions", "401"),
        (BODY | {"assets": {"a": IMAGE}}, "images_not_supported", "assets", "no images"),
        (BODY | {"stream": True}, "unknown_parameter", "stream", "stream"),
        (BODY | {"model": "other"}, "model_not_found", "model", "other"),
        ({"state": "", "questions": {"a": 1}}, "invalid_question", "questions.a", "must be an object"),
        ({"state": "", "questions": {"a": {"type": "box"}}}, "images_not_supported", "questions.a", "image"),
        ({"state": "", "questions": {"a": {"type": "x"}}}, "invalid_question", "questions.a.type", "one of noul"),
        ({"state": "", "questions": {"a": REFUND | {"b": 1}}}, "invalid_question", "questions.a", "unknown field"),
        (
            {"state": "", "questions": {"a": REFUND | {"instructions": 1}}},
            "invalid_question",
            "questions.a.instructions",
            "must be a text",
        ),
        (
            {"state": "", "questions": {"a": REFUND | {"criteria": {"yes": "x"}}}},
            "invalid_question",
            "questions.a.criteria",
            "unknown field",
        ),
        (
            {"state": "", "questions": {"a": TEAM | {"criteria": {}}}},
            "invalid_question",
            "questions.a.criteria",
            "map each option",
        ),
        (
            {"state": "", "questions": {"a": TEAM | {"criteria": MANY}}},
            "too_many_options",
            "questions.a.criteria",
            "256 options",
        ),
        (
            {"state": "", "questions": {"a": URGENCY | {"criteria": [None]}}},
            "invalid_question",
            "questions.a.criteria[0]",
            "must be a text",
        ),
        (
            {"state": "word " * 600, "questions": QUESTIONS},
            "context_length_exceeded",
            "questions.great",
            "the prompt of questions.great",
        ),
        (
            {"state": "", "questions": {"a": 1, "b": REFUND, "c": {"type": "x"}, "d": URGENCY | {"criteria": []}}},
            "invalid_question",
            "questions.a",
            "questions.a must be an object with a type; questions.c.type must be one of noul, choice, score; "
            "questions.d.criteria must list the levels, the lowest first",
        ),
    ],
)
def test_a_wrong_request_is_refused_by_the_path_of_what_is_wrong(
    api: RunningApi, body: Json, code: str, param: str, message: str
) -> None:
    response = api.client.post("/v1/systemone", json=body)
    error = response.json()["error"]
    assert 400 <= response.status_code < 500
    assert (error["code"], error["param"]) == (code, param)
    assert message in error["message"]
    as_job = api.client.post("/v1/jobs", json={"kind": "decision", **body}).json()["error"]
    assert as_job == error


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"questions": []}, "invalid_request", "input"),
        ({"input": []}, "invalid_request", "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "invalid_request", "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "images_not_supported",
            "input[0].content[0]",
        ),
        ({"input": "", "questions": {}}, "invalid_question", "questions"),
        ({"input": "", "questions": [{"type": "noul"}]}, "invalid_question", "questions[0].type"),
        ({"input": "", "questions": [{"type": "predicate"}]}, "invalid_question", "questions[0].instructions"),
        (
            {
                "input": "",
                "questions": [{"type": "choice", "instructions": "a", "choices": [{"value": 1}, {"value": 2}]}],
            },
            "invalid_question",
            "questions[0].choices[0].value",
        ),
    ],
)
def test_a_wrong_request_in_openais_words_is_refused(api: RunningApi, body: Json, code: str, param: str) -> None:
    response = api.client.post("/v1/decisions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)


def test_fields_that_clients_send_and_that_change_nothing_are_taken(api: RunningApi) -> None:
    ignored = {
        "prompt_cache_key": "a",
        "prompt_cache_options": {"mode": "explicit"},
        "safety_identifier": "b",
        "cache_salt": "c",
        "priority": 3,
        "request_id": "d",
        "assets": None,
    }
    assert decide(api, BODY | ignored)["answers"] == decide(api)["answers"]


def test_a_decision_can_not_be_uploaded_as_lines(api: RunningApi) -> None:
    response = api.client.post(
        "/v1/jobs", content=b'{"kind": "decision"}\n"a"\n', headers={"Content-Type": "application/x-ndjson"}
    )
    assert (response.status_code, response.json()["error"]["param"]) == (400, "kind")


def test_a_dry_run_says_what_a_decision_takes(api: RunningApi, model: TinyModel) -> None:
    response = api.client.post("/v1/jobs", json={"kind": "decision", "dry_run": True, **BODY})
    assert response.status_code == 200
    assert response.json()["total_items"] == 3
