"""A model with a decision head answers decisions by the rows of its head, and is asked for nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from scoreline.client import Client
from tests.api import tiny_model
from tests.api.batches.running import line, openai_of, read, run
from tests.api.routes.test_decisions import REFUND, STATE, TEAM, URGENCY, decide
from tests.api.serving import Json, RunningApi, eventually, running_api
from tests.api.tiny_model import TinyModel, make_model_directory
from tests.model.decisions.heads import CALIBRATION, SLOTS
from tests.scoreline.running import scoreline

SOFTCAP = 2.5
BODY: Json = {"state": STATE, "questions": {"great": REFUND, "town": TEAM, "bad": URGENCY}}
PROMPT = "[kind] {}\n[state] " + STATE + "\n[question] {}\n[options]\n{}\n[decision]:"
ASKED = {
    "great": ("noul", PROMPT.format("noul", "Is it great?", "false\ntrue"), [0, 1]),
    "town": ("choice", PROMPT.format("choice", "Which one?", "A) Paris: France\nB) London"), [8, 9]),
    "bad": ("score", PROMPT.format("score", "How bad?", "0\n1\n2"), [2, 3, 4]),
}
"""Of each question: its kind, its prompt, and the rows that answer it."""


@pytest.fixture(scope="module")
def api(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApi]:
    folder = tmp_path_factory.mktemp("head")
    directory = make_model_directory(folder / "model")
    (directory / "judge_config.json").write_text(json.dumps({"slots": SLOTS, "softcap": SOFTCAP}))
    (directory / "calibration.json").write_text(json.dumps(CALIBRATION))
    database = Path(shutil.copy(sqlite_template, folder / "scoreline.db"))
    with running_api(directory, f"sqlite:///{database}", folder) as (api, _):
        yield api


def expected(model: TinyModel, name: str) -> list[float]:
    kind, prompt, rows = ASKED[name]
    capped = SOFTCAP * np.tanh(tiny_model.logits(model.encode(prompt))[rows].astype(float) / SOFTCAP)
    found: list[float] = softmax(capped / CALIBRATION["per_kind"][kind]).tolist()
    return found


def test_answers_are_read_from_the_rows_of_each_kind(api: RunningApi, model: TinyModel) -> None:
    answer = decide(api, BODY)
    found = answer["answers"]
    assert found["great"]["noul"] == pytest.approx(expected(model, "great")[1], rel=1e-5), "false comes first"
    towns = dict(zip(["Paris", "London"], expected(model, "town"), strict=True))
    assert found["town"]["probabilities"] == pytest.approx(towns, rel=1e-5)
    levels = dict(zip("012", expected(model, "bad"), strict=True))
    assert found["bad"]["probabilities"] == pytest.approx(levels, rel=1e-5)
    assert answer["diagnostics"]["town"] == {"label_mass": None, "argmax_is_label": None}
    assert answer["warnings"] == []


def test_a_job_the_lines_of_a_batch_and_the_other_door_give_the_answers_of_a_call(api: RunningApi) -> None:
    call = decide(api, BODY)
    job = api.client.post("/v1/jobs", json={"kind": "decision", **BODY}).json()
    eventually(lambda: api.client.get(f"/v1/jobs/{job['id']}").json()["status"] == "succeeded", "the job succeeds")
    assert api.client.get(f"/v1/jobs/{job['id']}").json()["result"]["answers"] == call["answers"]
    batch = run(openai_of(api), [line("one", BODY, url="/v1/systemone")], endpoint="/v1/systemone")
    (output,) = read(openai_of(api), batch.output_file_id)
    assert output["response"]["body"]["answers"] == call["answers"]
    question: Any = {"type": "predicate", "instructions": "Is it great?"}
    found: Any = openai_of(api).decisions.create(model="tiny", input=STATE, questions=[question])
    assert found.answers[0].probability == call["answers"]["great"]["noul"]


def test_the_client_a_run_and_the_list_of_models_know_what_is_served(api: RunningApi, tmp_path: Path) -> None:
    url = str(api.client.base_url)
    with Client(url) as client:
        (model,) = client.models()
        decision = client.decide(STATE, BODY["questions"])
    assert (model.decides, model.classes, model.template, model.templates) == (True, (), None, [])
    assert decision.answers["town"].label_mass is None
    assert "answers decisions" in api.client.get("/v1/models").json()["models"][0]["description"]
    assert "answers decisions alone" in scoreline("models", "--url", url).stdout
    (tmp_path / "states.csv").write_text(f'text\n"{STATE}"\n')
    (tmp_path / "questions.json").write_text(json.dumps(BODY["questions"]))
    given = (
        "--state-column",
        "text",
        "--questions",
        str(tmp_path / "questions.json"),
        "-o",
        str(tmp_path / "out.jsonl"),
    )
    ran = scoreline("run", str(tmp_path / "states.csv"), *given, "--url", url)
    assert ran.returncode == 0, ran.stderr
    assert json.loads((tmp_path / "out.jsonl").read_text())["great"] == decision["great"]


ONE: Json = {"query": "a", "items": ["b"], "labels": ["A"]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/score", ONE),
        ("/v1/score", ONE | {"labels": None, "label_token_ids": [1]}),
        ("/v1/jobs", ONE),
        ("/v1/likelihood", {"query": "a", "items": ["b"]}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 1, "temperature": 0}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ],
)
def test_anything_but_decisions_is_refused(path: str, body: Json, api: RunningApi) -> None:
    answer = api.client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert "has a head for decisions and gives no other scores" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("question", "most"), [(URGENCY, 6), (TEAM, 16)])
def test_a_question_that_the_head_has_no_rows_for_is_refused(question: Json, most: int, api: RunningApi) -> None:
    names = [str(n) for n in range(most + 1)]
    many = question | {"criteria": names if question is URGENCY else dict.fromkeys(names)}
    answer = api.client.post("/v1/systemone", json={"state": "", "questions": {"a": many}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_many_options")
    assert f"has {most + 1} options; the model has {most} labels" in answer.json()["error"]["message"]
