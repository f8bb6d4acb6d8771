"""A request may name a calibration or a threshold, which is applied to its scores if it was made for just that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from judgement.applying import ABSTAIN, apply, decide
from judgement.artefacts import Artefact, Kind, write
from judgement.artefacts import read as read_artefact
from scoreline.client import Client
from tests.api.artefacts import LABELS, PROMPT, THREE, artefact, serving_artefacts
from tests.api.batches.running import line, openai_of, read, run
from tests.api.serving import Json, RunningApi

BODY: Json = PROMPT | {"items": ["great", "bad", "so so", "This movie", ""]}
WEIGHTS = "ab" * 32


def made(fingerprint: str) -> dict[str, Artefact]:
    calibration = artefact(fingerprint)
    other = artefact(fingerprint, parameters={"temperature": 3.0})
    of_model = dict(calibration.model)
    threshold = replace(
        calibration,
        kind=Kind.THRESHOLD,
        method="learn-then-test",
        parameters={"threshold": 0.95, "set_bound": None},
        calibration=calibration,
    )
    of_three: dict[str, Any] = {"prompt": PROMPT | {"labels": THREE}, "labels": ("yes", "no", "maybe")}
    return {
        "reviews": calibration,
        "other": other,
        "warm": replace(calibration, prompt=PROMPT | {"temperature": 2.0}),
        "refunds": threshold,
        "plain": replace(threshold, calibration=None),
        "three": replace(threshold, calibration=None, parameters={"threshold": 0.5, "set_bound": 0.3}, **of_three),
        "any-query": replace(calibration, prompt=PROMPT | {"query": None}),
        "no-model": replace(calibration, model={}),
        "other-tokenizer": replace(calibration, model=of_model | {"tokenizer_fingerprint": "cd"}),
        "other-weights": replace(calibration, model=of_model | {"weights_fingerprint": WEIGHTS}),
        "of-an-adapter": replace(calibration, model=of_model | {"model": "tiny:mine"}),
        "question": replace(calibration, prompt={"questions": {"a": {"type": "noul"}}, "is_object": False}),
        "of-a-template": replace(calibration, prompt={"query": None, "labels": [], "template": "yes-no"}),
    }


class Served(NamedTuple):
    api: RunningApi
    folder: Path
    artefacts: dict[str, Artefact]


@pytest.fixture(scope="module")
def served(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving_artefacts(sqlite_template, tmp_path_factory) as (api, folder, fingerprint):
        artefacts = made(fingerprint)
        for name, one in artefacts.items():
            write(one, folder / f"{name}.json")
        (folder / "edited.json").write_text((folder / "reviews.json").read_text().replace("0.5", "0.6"))
        (folder / "huge.json").write_text(" " * 2**20 + "{}")
        yield Served(api, folder, artefacts)


def shares_of(api: RunningApi, **fields: Any) -> list[list[float]]:
    scores: list[list[float]] = api.score(**BODY | {"apply_softmax": True} | fields)["scores"]
    return scores


@pytest.mark.parametrize("fields", [{}, {"apply_softmax": True, "temperature": 7.0}, {"return_logprobs": True}])
def test_a_calibration_gives_probabilities_beside_the_scores(fields: Json, served: Served) -> None:
    api = served.api
    answer = api.score(**BODY, **fields, calibration="reviews")
    assert answer["calibrated"] == apply(served.artefacts["reviews"], shares_of(api)).tolist()
    plain = api.score(**BODY, **fields)
    assert answer["scores"] == plain["scores"]
    assert not {"calibrated", "action", "label_set"} & plain.keys()
    assert not {"action", "label_set"} & answer.keys()


def test_what_is_calibrated_has_the_temperature_that_the_artefact_was_fitted_with(served: Served) -> None:
    found = served.api.score(**BODY, calibration="warm")["calibrated"]
    assert found == apply(served.artefacts["warm"], shares_of(served.api, temperature=2.0)).tolist()
    assert found != served.api.score(**BODY, calibration="reviews")["calibrated"]


@pytest.mark.parametrize("also", [{}, {"calibration": "reviews"}])
def test_a_threshold_says_what_to_do_with_each_item(also: Json, served: Served) -> None:
    answer = served.api.score(**BODY, threshold="refunds", **also)
    expected = decide(served.artefacts["refunds"], shares_of(served.api))
    assert answer["action"] == expected.actions
    assert set(expected.actions) >= {ABSTAIN, "yes"} or set(expected.actions) >= {ABSTAIN, "no"}
    assert answer["calibrated"] == apply(served.artefacts["reviews"], shares_of(served.api)).tolist()
    assert "label_set" not in answer


def test_a_threshold_without_a_calibration_decides_by_the_scores(served: Served) -> None:
    answer = served.api.score(**BODY, threshold="plain")
    assert answer["action"] == decide(served.artefacts["plain"], shares_of(served.api)).actions
    assert "calibrated" not in answer


def test_a_choice_has_sets_in_every_form_of_an_answer(served: Served) -> None:
    api, body = served.api, BODY | {"labels": THREE}
    expected = decide(served.artefacts["three"], shares_of(api, labels=THREE))
    assert expected.sets is not None
    assert len({len(one) for one in expected.sets}) > 1
    answer = api.score(**body, threshold="three")
    assert (answer["action"], answer["label_set"]) == (expected.actions, expected.sets)
    job = api.wait(api.submit(**body, threshold="three")["id"])
    assert (job["result"]["action"], job["result"]["label_set"]) == (expected.actions, expected.sets)
    path = f"/v1/jobs/{job['id']}/scores"
    for page in ({"offset": 1, "limit": 3}, {"offset": 0}):
        rows = api.client.get(path, params=page).json()["data"]
        assert rows
        assert [(row["action"], row["label_set"]) for row in rows] == [
            (expected.actions[row["index"]], expected.sets[row["index"]]) for row in rows
        ]
    lines = api.client.get(path, headers={"Accept": "application/x-ndjson"}).text.splitlines()
    assert [json.loads(one)["label_set"] for one in lines] == expected.sets


def test_json_lines_and_batches_name_an_artefact_as_calls_do(served: Served) -> None:
    api, items = served.api, BODY["items"]
    first: Json = {**BODY, "items": None, "threshold": "refunds"}
    content = "\n".join(map(json.dumps, (first, *items)))
    headers = {"Content-Type": "application/x-ndjson"}
    sent = api.client.post("/v1/jobs", content=content, headers=headers)
    assert sent.status_code == 202, sent.text
    answer = api.score(**BODY, threshold="refunds")
    assert api.wait(sent.json()["id"])["result"]["action"] == answer["action"]
    lines = [line("a", BODY | {"threshold": "refunds"}), line("b", BODY | {"calibration": "other-weights"})]
    client = openai_of(api)
    batch = run(client, lines)
    (of_batch,), (refused,) = read(client, batch.output_file_id), read(client, batch.error_file_id)
    assert of_batch["response"]["body"]["calibrated"] == answer["calibrated"]
    assert refused["response"]["body"]["error"]["code"] == "invalid_artefact"
    first["calibration"], first["threshold"] = "other-weights", None
    content = "\n".join(map(json.dumps, (first, *items)))
    sent = api.client.post("/v1/jobs", content=content, headers=headers)
    assert (sent.status_code, sent.json()["error"]["code"]) == (400, "invalid_artefact")


def test_provenance_has_the_ids(served: Served) -> None:
    api, artefacts = served.api, served.artefacts
    for field, name, expected in (
        ("calibration", "reviews", {"calibration": artefacts["reviews"].id}),
        ("threshold", "refunds", {"calibration": artefacts["reviews"].id, "threshold": artefacts["refunds"].id}),
        ("threshold", "plain", {"calibration": None, "threshold": artefacts["plain"].id}),
    ):
        job = api.wait(api.submit(**BODY | {field: name, "return_provenance": True})["id"])
        for found in (job["provenance"], job["result"]["provenance"]):
            assert found
            assert all(expected.items() <= one.items() for one in found)


def test_a_finished_job_keeps_what_its_artefact_was(served: Served) -> None:
    api, file = served.api, served.folder / "passing.json"
    write(served.artefacts["reviews"], file)
    job = api.wait(api.submit(**BODY, calibration="passing")["id"])
    write(served.artefacts["other"], file)
    changed = api.score(**BODY, calibration="passing")["calibrated"]
    assert changed == apply(served.artefacts["other"], shares_of(api)).tolist()
    file.unlink()
    again = api.client.get(f"/v1/jobs/{job['id']}").json()["result"]
    assert again["calibrated"] == job["result"]["calibrated"] != changed
    refused = api.client.post("/v1/score", json=BODY | {"calibration": "passing"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_artefact")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"calibration": "unknown"}, "there is no artefact 'unknown'; there are any-query, "),
        ({"calibration": "../reviews"}, "there is no artefact '../reviews'"),
        ({"calibration": "edited"}, "edited.json was edited: its id is not that of its content"),
        ({"calibration": "huge"}, "huge.json is no artefact"),
        ({"calibration": 7}, "calibration must be the name of an artefact"),
        ({"calibration": "refunds"}, "'refunds' is a threshold, and no calibration"),
        ({"threshold": "reviews"}, "'reviews' is a calibration, and no threshold"),
        ({"threshold": "refunds", "calibration": "other"}, "'refunds' was made with another calibration"),
        ({"threshold": "plain", "calibration": "reviews"}, "'plain' was made without a calibration"),
        ({"calibration": "no-model"}, "it does not say of which model they are"),
        ({"calibration": "other-tokenizer"}, "is for another model, or another tokenizer: tiny"),
        ({"calibration": "other-weights"}, "is for another model: for other weights of the same name"),
        ({"calibration": "of-an-adapter"}, "is for another model: tiny:mine"),
        ({"calibration": "question"}, "is for a question, which is asked at /v1/systemone"),
        ({"query": "Text: "}, "is for another prompt: query is 'Review: ' there"),
        ({"item_template": None}, "is for another prompt: item_template is '{item}\\nSentiment:' there, and not given"),
        ({"query_template": "{query}."}, "query_template is not given there, and '{query}.' here"),
        ({"item_first": True, "item_template": None}, "is for another prompt"),
        ({"label_scoring": "sequence"}, "label_scoring is 'token' there, and 'sequence' here"),
        ({"labels": [" no", " yes"]}, "is for other labels: ' yes', ' no'"),
        ({"labels": THREE}, "is for other labels: ' yes', ' no'"),
        ({"labels": None, "label_token_ids": [70, 71]}, "is for other labels"),
        ({"labels": [LABELS] * 5}, "is for one list of labels, and each item has its own"),
        ({"query": [5], "items": [[6]], "item_template": None}, "is for texts, and query and items are token ids"),
        ({"calibration": "of-a-template"}, "is for another prompt"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/score", "/v1/jobs"])
def test_an_artefact_for_something_else_is_refused_by_name(path: str, change: Json, says: str, served: Served) -> None:
    body = BODY | ({} if "threshold" in change else {"calibration": "reviews"}) | change
    if "label_token_ids" in body or isinstance(body["query"], list):
        body.pop("labels")
        body["label_token_ids"] = [70, 71]
    response = served.api.client.post(path, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert says in error["message"]
    assert "\n" not in error["message"]
    assert str(served.folder) not in error["message"]
    assert error["param"] in ("calibration", "threshold")


TEAM: Json = {"type": "choice", "instructions": "Which one?", "criteria": {"Paris": "France", "London": None}}
GREAT: Json = {"type": "noul", "instructions": "Is it great?"}
DECISION: Json = {"state": "I saw London.", "questions": {"town": TEAM, "great": GREAT, "plain": GREAT}}


def add_artefacts_of_questions(served: Served) -> dict[str, Artefact]:
    of_team: dict[str, Any] = {
        "prompt": {"questions": {"team": TEAM}, "is_object": False},
        "labels": ("in France", "in England"),
    }
    calibration = replace(served.artefacts["reviews"], **of_team)
    threshold = replace(served.artefacts["three"], **of_team, calibration=calibration)
    great = replace(served.artefacts["plain"], prompt={"questions": {"a": GREAT}, "is_object": True})
    of_texts = replace(great, prompt={"questions": {"a": GREAT}, "is_object": False})
    found = {"team": threshold, "team-calibration": calibration, "great-object": great, "great": of_texts}
    for name, one in found.items():
        write(one, served.folder / f"{name}.json")
    return found


def test_the_answers_of_questions_are_calibrated_and_decided_by_name(served: Served) -> None:
    api, artefacts = served.api, add_artefacts_of_questions(served)
    plain = api.client.post("/v1/systemone", json=DECISION).json()
    assert "judged" not in plain
    body = DECISION | {"threshold": {"town": "team", "great": "great"}, "calibration": {"town": "team-calibration"}}
    answer = api.client.post("/v1/systemone", json=body).json()
    assert answer["answers"] == plain["answers"]
    of_town, of_great = plain["answers"]["town"]["probabilities"], plain["answers"]["great"]["noul"]
    shares = [[of_town["Paris"], of_town["London"]]]
    decided = decide(artefacts["team"], shares)
    assert decided.sets is not None
    assert answer["judged"]["town"] == {
        "calibrated": dict(zip(["Paris", "London"], apply(artefacts["team"], shares)[0].tolist(), strict=True)),
        "action": decided.actions[0],
        "label_set": decided.sets[0],
        "calibration": artefacts["team-calibration"].id,
        "threshold": artefacts["team"].id,
    }
    actions = decide(artefacts["great"], [[of_great, 1 - of_great]]).actions
    of_question = {"action": actions[0], "calibration": None, "threshold": artefacts["great"].id}
    assert answer["judged"] == {"town": answer["judged"]["town"], "great": of_question}
    job = api.wait(api.submit(**body, kind="decision")["id"])
    assert job["result"]["judged"] == answer["judged"]


def test_openai_s_words_of_a_question_have_the_same_artefacts(served: Served) -> None:
    api, _ = served.api, add_artefacts_of_questions(served)
    named: Json = {"threshold": {"town": "team", "great": "great"}}
    judged = api.client.post("/v1/systemone", json=DECISION | named).json()["judged"]
    choices = [{"value": "Paris", "description": "France"}, {"value": "London"}]
    questions: list[Json] = [
        {"type": "choice", "name": "town", "instructions": "Which one?", "choices": choices},
        {"type": "predicate", "name": "great", "instructions": "Is it great?"},
        {"type": "predicate", "instructions": "Is it great?"},
    ]
    body: Json = {"input": DECISION["state"], "questions": questions} | named
    assert api.client.post("/v1/decisions", json=body).json()["judged"] == judged
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    for change, says in (
        ({"input": messages}, "'team' is for a state that is a text"),
        ({"threshold": {"great": "team"}}, "'team' is for another question"),
        ({"threshold": {"nobody": "team"}}, "there is no question 'nobody'"),
        ({"questions": [questions[0], questions[1] | {"name": "town"}]}, "there are several questions 'town'"),
    ):
        error = api.client.post("/v1/decisions", json=body | change).json()["error"]
        assert says in error["message"], error
        assert error["code"] == ("invalid_request" if says.startswith("there") else "invalid_artefact")


@pytest.mark.parametrize(
    ("kind", "criteria", "sent"),
    [
        ("score", ["low: later", "now"], {"levels": [{"label": "low", "description": "later"}, {"label": "now"}]}),
        ("choice", {"true": "a", "false": None}, {"choices": [{"value": True, "description": "a"}, {"value": False}]}),
    ],
)
def test_what_the_model_does_not_see_makes_no_other_question(
    served: Served, kind: str, criteria: Any, sent: Json
) -> None:
    questions = {"a": {"type": kind, "instructions": "How?", "criteria": criteria}}
    made_for: Json = {"questions": questions, "is_object": False}
    write(replace(served.artefacts["reviews"], prompt=made_for), served.folder / "how.json")
    named = {"calibration": {"a": "how"}}
    ours = served.api.client.post("/v1/systemone", json={"state": "S", "questions": questions} | named).json()
    body = {"input": "S", "questions": [sent | {"type": kind, "name": "a", "instructions": "How?"}]} | named
    theirs = served.api.client.post("/v1/decisions", json=body).json()
    assert list(theirs["judged"]["a"]["calibrated"].values()) == list(ours["judged"]["a"]["calibrated"].values())


def test_an_artefact_is_for_orders_only_where_they_differ(served: Served) -> None:
    artefacts = add_artefacts_of_questions(served)
    in_two = replace(artefacts["team"], prompt={**artefacts["team"].prompt, "permute": 2})
    write(in_two, served.folder / "team-2.json")
    body = DECISION | {"threshold": {"great": "great", "town": "team-2"}, "permute": "balanced"}
    answer = served.api.client.post("/v1/systemone", json=body).json()
    assert answer["judged"].keys() == {"great", "town"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"threshold": "team"}, "threshold must be an object with the name of an artefact for each question"),
        ({"threshold": {"other": "team"}}, "there is no question 'other'"),
        ({"threshold": {"great": "team"}}, "'team' is for another question: 'Which one?'"),
        ({"threshold": {"great": "great-object"}}, "'great-object' is for a state that is an object"),
        ({"threshold": {"town": "refunds"}}, "'refunds' is for labels, which are scored at /v1/score"),
        (
            {"threshold": {"town": "team"}, "permute": 2},
            "'team' is for other orders of the options: permute is not given there, and 2 here",
        ),
        ({"calibration": {"town": "nothing"}}, "there is no artefact 'nothing'"),
    ],
)
def test_an_artefact_for_another_question_is_refused_by_name(change: Json, says: str, served: Served) -> None:
    add_artefacts_of_questions(served)
    response = served.api.client.post("/v1/systemone", json=DECISION | change)
    error = response.json()["error"]
    assert response.status_code == 400
    assert says in error["message"]
    assert error["param"] in ("calibration", "threshold")


def test_a_ranking_is_calibrated_by_the_labels_of_its_template(served: Served) -> None:
    api, ranking = served.api, {"query": "capital", "documents": ["Paris", "London", "Tokyo"]}
    calibration = served.artefacts["of-a-template"]
    write(
        replace(calibration, kind=Kind.THRESHOLD, parameters={"threshold": 0.6, "set_bound": None}),
        served.folder / "r.json",
    )
    plain = api.client.post("/v1/rerank", json=ranking).json()["results"]
    found = api.client.post("/v1/rerank", json=ranking | {"calibration": "of-a-template"}).json()["results"]
    shares = [[one["relevance_score"], 1 - one["relevance_score"]] for one in plain]
    assert [one.pop("calibrated") for one in found] == pytest.approx(apply(calibration, shares))
    assert found == plain
    decided = api.client.post("/v1/rerank", json=ranking | {"threshold": "r"}).json()["results"]
    assert [one["action"] for one in decided] == decide(read_artefact(served.folder / "r.json"), shares).actions
    other = api.client.post("/v1/rerank", json=ranking | {"calibration": "reviews"})
    assert (other.status_code, other.json()["error"]["param"]) == (400, "calibration")


def test_an_artefact_may_be_for_any_query(served: Served) -> None:
    body = BODY | {"query": "Another: "}
    found = served.api.score(**body, calibration="any-query")["calibrated"]
    assert found == apply(served.artefacts["any-query"], shares_of(served.api, query="Another: ")).tolist()


def test_a_likelihood_has_nothing_to_calibrate(served: Served) -> None:
    body = {"query": "a", "items": ["b"], "calibration": "reviews"}
    response = served.api.client.post("/v1/likelihood", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported_parameter")


def test_without_a_folder_there_is_no_artefact(on_sqlite: tuple[RunningApi, object]) -> None:
    response = on_sqlite[0].client.post("/v1/score", json=BODY | {"calibration": "reviews"})
    assert "there are none" in response.json()["error"]["message"]


def test_models_list_the_artefacts_that_were_made_for_them(served: Served) -> None:
    listed, alone = served.api.client.get("/v1/models").json()["data"][0], served.api.client.get("/v1/models/tiny")
    assert alone.json() == listed
    shown = {one.pop("name"): one for one in listed["artefacts"]}
    others = {"no-model", "other-tokenizer", "of-an-adapter", "edited", "huge"}
    assert shown.keys() >= served.artefacts.keys() - others
    assert not shown.keys() & others
    assert shown["three"] == {
        "kind": "threshold",
        "labels": ["yes", "no", "maybe"],
        "id": served.artefacts["three"].id,
    }
    with Client(served.api.url, api_key="") as client:
        assert {one.name for one in client.models()[0].artefacts if one.kind == "calibration"} == {
            name for name in shown if shown[name]["kind"] == "calibration"
        }
