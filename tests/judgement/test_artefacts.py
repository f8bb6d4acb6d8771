"""An artefact is what was written, or is refused; and it is applied as it was fitted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from judgement.applying import ABSTAIN, Rule, apply, decide, read_rules, without_prior, write_rules
from judgement.artefacts import Artefact, Kind, read, write
from judgement.sample import JudgementError

CALIBRATION = Artefact(
    kind=Kind.CALIBRATION,
    name="reviews",
    created="2026-01-31",
    model={"model": "tiny", "weights_fingerprint": "ab", "tokenizer_fingerprint": "cd"},
    prompt={"query": "Review: ", "labels": [" yes", " no"]},
    labels=("yes", "no"),
    data={"file": "in.csv", "digest": "12", "truth": "truth", "rows": 400, "clusters": 400},
    counts={"yes": 150, "no": 250},
    method="temperature",
    parameters={"temperature": 2.0},
    figures={"gain_in_log_loss": {"value": 0.1, "low": 0.05, "high": 0.15}},
)
THRESHOLD = replace(
    CALIBRATION, kind=Kind.THRESHOLD, method="learn-then-test", parameters={"threshold": 0.7, "set_bound": None}
)
SHARES = [[0.9, 0.1], [0.4, 0.6], [0.64, 0.16]]


def edited(path: Path, change: dict[str, Any]) -> Path:
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return path


@pytest.mark.parametrize("artefact", [CALIBRATION, THRESHOLD, replace(THRESHOLD, calibration=CALIBRATION)])
def test_what_is_read_is_what_was_written(artefact: Artefact, tmp_path: Path) -> None:
    write(artefact, tmp_path / "one.json")
    found = read(tmp_path / "one.json")
    assert found == artefact
    assert found.id == artefact.id == json.loads((tmp_path / "one.json").read_text())["id"]


NEVER = -np.inf


@pytest.mark.parametrize(
    ("row", "baseline", "temperature", "expected"),
    [
        (np.log([0.5, 0.5]), np.log([[0.8, 0.2], [0.2, 0.2]]), 1.0, [1 / 3, 2 / 3]),  # the prior is 0.4 to 0.2
        ([0, -11], [[0, -8]], 0.1, [1, np.exp(-30)]),
        ([-2, -140], [[-2, -80]], 1.0, [1, np.exp(-60)]),
        ([0, -1], [[0, -1]], 1e-310, [0.5, 0.5]),
        ([NEVER, NEVER], [[0, -1]], 1.0, [0, 0]),
        ([0, NEVER, 0], [[0, NEVER, 0]], 1.0, [0.5, 0, 0.5]),
        ([np.log(2), 0, 0], [[NEVER, NEVER, 0]], 1.0, [2 / 3, 1 / 3, 0]),
        ([0, 0], [[NEVER, NEVER], [0, 0]], 1.0, [0.5, 0.5]),
    ],
)
def test_what_a_baseline_gets_is_taken_away(
    row: list[float], baseline: list[list[float]], temperature: float, expected: list[float]
) -> None:
    (found,) = without_prior(np.array([row], np.float64), np.array(baseline, np.float64), temperature)
    assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=0)


def test_the_id_is_that_of_the_content() -> None:
    assert replace(CALIBRATION, parameters={"temperature": 2.0}).id == CALIBRATION.id
    assert replace(CALIBRATION, parameters={"temperature": 2.1}).id != CALIBRATION.id
    assert replace(THRESHOLD, calibration=CALIBRATION).id != THRESHOLD.id


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"parameters": {"temperature": 1.0}}, "was edited: its id is not that of its content"),
        ({"id": "0"}, "was edited: its id is not that of its content"),
        ({"labels": 7}, "was edited, and can't be read any more"),
        ({"kind": "other"}, "was edited, and can't be read any more"),
        ({"more": 1}, "was edited: it lacks or adds more"),
        ({"format": 2}, "has format 2, and this version reads format 1"),
        ({"parameters": {"temperature": float("nan")}}, "it has NaN, which is no number"),
    ],
)
def test_a_file_that_was_edited_is_refused(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    write(CALIBRATION, tmp_path / "one.json")
    with pytest.raises(JudgementError, match=says) as raised:
        read(edited(tmp_path / "one.json", change))
    assert "\n" not in str(raised.value)


def test_an_edited_calibration_in_a_threshold_is_found(tmp_path: Path) -> None:
    write(replace(THRESHOLD, calibration=CALIBRATION), tmp_path / "one.json")
    inner = json.loads((tmp_path / "one.json").read_text())["calibration"] | {"name": "other"}
    with pytest.raises(JudgementError, match=r"the calibration in .* was edited"):
        read(edited(tmp_path / "one.json", {"calibration": inner}))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"object": "list"}', "[" * 100_000])
def test_another_file_is_no_artefact(content: str, tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(content)
    with pytest.raises(JudgementError, match="is no artefact"):
        read(tmp_path / "one.json")


def test_what_can_not_be_written_as_json_has_no_id() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        _ = replace(CALIBRATION, parameters={"temperature": float("nan")}).id


def test_a_temperature_divides_the_logits() -> None:
    expected = np.sqrt([[0.9, 0.1], [0.4, 0.6], [0.8, 0.2]])
    assert apply(CALIBRATION, SHARES) == pytest.approx(expected / expected.sum(axis=1, keepdims=True))


def test_rows_below_the_threshold_are_left_to_others() -> None:
    assert decide(THRESHOLD, SHARES).actions == ["yes", ABSTAIN, "yes"]
    assert decide(replace(THRESHOLD, calibration=CALIBRATION), SHARES).actions == ["yes", ABSTAIN, ABSTAIN]
    assert decide(THRESHOLD, SHARES).sets is None


def test_a_choice_has_a_set_of_labels_with_the_most_probable_first() -> None:
    choice = replace(THRESHOLD, labels=("a", "b", "c"), parameters={"threshold": 0.7, "set_bound": 0.3})
    found = decide(choice, [[0.2, 0.5, 0.3], [0.05, 0.05, 0.9], [0.8, 0.1, 0.1]])
    assert found.sets == [["b", "c"], ["c"], ["a"]]
    assert found.actions == [ABSTAIN, "c", "a"]


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("identity", {}),
        ("platt", {"slope": 1.0, "intercept": 0.0}),
        ("vector", {"weights": [1.0, 1.0], "biases": [0.0, 0.0]}),
        ("isotonic", {"log_odds": [-1e-9, 0.0], "probabilities": [0.5, 0.5]}),
    ],
)
def test_every_method_gives_shares(method: str, parameters: dict[str, Any]) -> None:
    found = apply(replace(CALIBRATION, method=method, parameters=parameters), [[0.9, 0.1], [0.0, 1.0], [1.0, 0.0]])
    assert found.sum(axis=1) == pytest.approx([1.0] * 3)
    assert np.isfinite(found).all()
    if method != "isotonic":
        assert found == pytest.approx(np.array([[0.9, 0.1], [0.0, 1.0], [1.0, 0.0]]), abs=1e-12)


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ([[0.2, 0.3, 0.5]], "reviews is for the 2 labels yes, no"),
        ([[0.2, float("nan")]], "must be numbers from 0 on"),
        ([[0.2, -0.1]], "must be numbers from 0 on"),
    ],
)
def test_other_probabilities_are_refused(shares: list[list[float]], says: str) -> None:
    with pytest.raises(JudgementError, match=says):
        apply(CALIBRATION, shares)


def test_a_row_without_any_probability_is_left_to_others() -> None:
    assert apply(CALIBRATION, [[0.0, 0.0], [1.0, 1.0]]).tolist() == [[0.0, 0.0], [0.5, 0.5]]
    choice = replace(THRESHOLD, labels=("a", "b", "c"), parameters={"threshold": 0.0, "set_bound": 0.3})
    assert decide(choice, [[0.0, 0.0, 0.0]]).sets == [["a", "b", "c"]]
    assert decide(replace(choice, parameters={"threshold": 0.1, "set_bound": 0.3}), [[0.0] * 3]).actions == [ABSTAIN]


@pytest.mark.parametrize("artefact", [CALIBRATION, THRESHOLD, replace(THRESHOLD, calibration=CALIBRATION)])
def test_what_a_job_keeps_of_an_artefact_does_what_the_artefact_does(artefact: Artefact) -> None:
    rule = read_rules(write_rules({"": Rule.of(artefact, "asked")}))[""]
    assert rule == Rule.of(artefact, "asked")
    assert (rule.name, rule.id, rule.weights) == ("asked", artefact.id, "ab")
    assert rule.calibrated(SHARES).tolist() == apply(artefact, SHARES).tolist()
    if artefact.kind is Kind.THRESHOLD:
        assert rule.decided(rule.calibrated(SHARES)) == decide(artefact, SHARES)


def test_a_calibration_decides_nothing() -> None:
    with pytest.raises(JudgementError, match="reviews is a calibration, and no threshold"):
        decide(CALIBRATION, SHARES)
