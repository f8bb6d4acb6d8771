"""A request may have a baseline: texts that say nothing, whose share of each label is taken from what the items get."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from judgement.applying import apply
from judgement.artefacts import Artefact, write
from tests.api.artefacts import LABELS, PROMPT, artefact, serving_artefacts
from tests.api.batches.running import line, openai_of, read, run
from tests.api.serving import Json, RunningApi

ITEMS = ["great", "bad", "so so", "This movie"]
NOTHING = ["", "N/A"]
BODY: Json = PROMPT | {"items": ITEMS}
WITH: Json = BODY | {"baseline": NOTHING}


class Served:
    """An API with a calibration for a prompt with a baseline, and one for a prompt without."""

    def __init__(self, api: RunningApi, calibration: Artefact) -> None:
        self.api, self.calibration = api, calibration

    def shares(self, items: list[str], **fields: Any) -> np.ndarray[Any, Any]:
        """The probabilities of the labels, [N, 2], each row with a sum of 1."""
        return np.array(self.api.score(**BODY | fields | {"items": items, "apply_softmax": True})["scores"])

    def adjusted(self, **fields: Any) -> list[list[float]]:
        """What the items are expected to get, [N, 2], by the formula of the paper."""
        quotients = self.shares(ITEMS, **fields) / np.exp(np.log(self.shares(NOTHING, **fields)).mean(axis=0))
        expected: list[list[float]] = (quotients / quotients.sum(axis=1, keepdims=True)).tolist()
        return expected


@pytest.fixture(scope="module")
def served(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving_artefacts(sqlite_template, tmp_path_factory) as (api, folder, fingerprint):
        plain = artefact(fingerprint)
        adjusted = replace(plain, prompt=PROMPT | {"baseline": NOTHING, "temperature": 2.0})
        write(plain, folder / "plain.json")
        write(adjusted, folder / "adjusted.json")
        yield Served(api, adjusted)


@pytest.mark.parametrize(
    "fields", [{}, {"return_logprobs": True, "return_logits": True}, {"label_scoring": "sequence"}]
)
def test_scores_are_shown_with_and_without_what_the_baseline_gets(fields: Json, served: Served) -> None:
    answer, plain = served.api.score(**WITH, **fields), served.api.score(**BODY, **fields)
    assert answer["adjusted"] == pytest.approx(np.array(served.adjusted(**fields)))
    assert answer["adjusted"] != pytest.approx(served.shares(ITEMS, **fields))
    of_texts = served.api.score(**BODY | fields | {"items": NOTHING})
    assert answer["baseline"] == {"scores": of_texts["scores"], "label_mass": of_texts["label_mass"]}
    same = plain.keys() - {"id", "created", "usage"}
    assert {name: answer[name] for name in same} == {name: plain[name] for name in same}
    tokens = [one["usage"]["prompt_tokens"] for one in (answer, plain, of_texts)]
    assert tokens[0] == tokens[1] + tokens[2]


def test_the_temperature_divides_before_the_baseline_is_taken_away(served: Served) -> None:
    fields: Json = {"apply_softmax": True, "temperature": 3.0}
    answer = served.api.score(**WITH, **fields)
    assert answer["adjusted"] == pytest.approx(np.array(served.adjusted(**fields)))
    assert answer["adjusted"] != pytest.approx(np.array(served.adjusted()))


def test_at_a_low_temperature_labels_keep_their_distance(served: Served) -> None:
    fields: Json = {"apply_softmax": True, "temperature": 0.02, "return_logits": True}
    items, nothing = (
        np.array(served.api.score(**BODY | fields | {"items": one})["logits"]) for one in (ITEMS, NOTHING)
    )
    left = (items - nothing.mean(axis=0)) / 0.02
    assert np.abs(left[:, 0] - left[:, 1]).max() > 69  # by their probabilities, it could be no more
    expected = np.exp(left - np.logaddexp.reduce(left, axis=1, keepdims=True))
    assert served.api.score(**WITH, **fields)["adjusted"] == pytest.approx(expected, rel=1e-4, abs=0)


def test_a_job_and_a_line_of_a_batch_have_the_same_answer(served: Served) -> None:
    expected = served.api.score(**WITH)
    job = served.api.wait(served.api.submit(**WITH)["id"])
    client = openai_of(served.api)
    (of_batch,) = read(client, run(client, [line("a", WITH)]).output_file_id)
    for result in (job["result"], of_batch["response"]["body"]):
        assert {name: result[name] for name in ("scores", "adjusted", "baseline")} == {
            name: expected[name] for name in ("scores", "adjusted", "baseline")
        }


def test_the_texts_of_a_baseline_are_the_last_items_of_progress_and_pages(served: Served) -> None:
    job = served.api.wait(served.api.submit(**WITH, calibration=None)["id"])
    assert job["progress"] == {"total_items": 6, "scored_items": 6}
    rows = served.api.client.get(f"/v1/jobs/{job['id']}/scores").json()["data"]
    assert [row["scores"] for row in rows] == [*job["result"]["scores"], *job["result"]["baseline"]["scores"]]
    assert not any("adjusted" in row for row in rows)


def test_token_ids_may_have_a_baseline(served: Served) -> None:
    body: Json = {"query": [5, 6], "items": [[7], [8, 9]], "baseline": [[]], "label_token_ids": [70, 71]}
    answer = served.api.score(**body, apply_softmax=True)
    prior = np.array(answer["baseline"]["scores"][0])
    quotients = np.array(answer["scores"]) / prior
    assert answer["adjusted"] == pytest.approx(quotients / quotients.sum(axis=1, keepdims=True))


def test_an_artefact_is_applied_to_what_is_left_without_its_baseline(served: Served) -> None:
    answer = served.api.score(**WITH, calibration="adjusted")
    adjusted = served.adjusted(temperature=2.0)
    assert answer["calibrated"] == pytest.approx(apply(served.calibration, adjusted))
    job = served.api.wait(served.api.submit(**WITH, calibration="adjusted")["id"])
    assert job["result"]["calibrated"] == answer["calibrated"]
    rows = served.api.client.get(f"/v1/jobs/{job['id']}/scores").json()["data"]
    assert not any("calibrated" in row for row in rows)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (BODY | {"calibration": "adjusted"}, "baseline is '', 'N/A' there, and not given here"),
        (BODY | {"baseline": ["?"], "calibration": "adjusted"}, "baseline is '', 'N/A' there, and '?' here"),
        (WITH | {"calibration": "plain"}, "baseline is not given there, and '', 'N/A' here"),
    ],
)
def test_an_artefact_for_another_baseline_is_refused(body: Json, says: str, served: Served) -> None:
    response = served.api.client.post("/v1/score", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_artefact")
    assert says in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"baseline": []}, "baseline", "baseline must be a list of 1 to 16 items that say nothing"),
        ({"baseline": ["a"] * 17}, "baseline", "baseline must be a list of 1 to 16"),
        ({"baseline": "N/A"}, "baseline", "baseline must be a list of 1 to 16"),
        ({"baseline": ["", 7]}, "baseline[1]", "baseline[1] must be a string or a list of token ids"),
        ({"baseline": ["", [7]]}, "baseline[1]", "query and baseline must both be text or both be token ids"),
        ({"baseline": ["", "\ud800"]}, "baseline[1]", "baseline[1]"),
        ({"baseline": ["", "word " * 3_000]}, "baseline[1]", "query and baseline[1] make "),
        ({"labels": [LABELS] * 4}, "baseline", "a baseline is for one list of labels"),
        ({"items": ["a"] * 999}, "baseline", "baseline needs a result that is read at once"),
    ],
)
def test_a_baseline_that_makes_no_sense_is_refused(change: Json, param: str, says: str, served: Served) -> None:
    content = json.dumps(WITH | change)
    response = served.api.client.post("/v1/jobs", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 413), response.text
    error = response.json()["error"]
    assert says in error["message"]
    assert error["param"] == param


def test_json_lines_have_no_baseline(served: Served) -> None:
    content = "\n".join(map(json.dumps, (WITH | {"items": None}, *ITEMS)))
    headers = {"Content-Type": "application/x-ndjson"}
    response = served.api.client.post("/v1/jobs", content=content, headers=headers)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "baseline")
