"""A run may name a calibration or a threshold of the service, and it may have a baseline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from judgement.applying import apply, decide
from judgement.artefacts import Kind, write
from scoreline.client import Client
from scoring.tokenizing.tokenization import TextTokenizer
from tests.api.artefacts import LABELS, PROMPT, artefact
from tests.scoreline.judging.files import judge
from tests.scoreline.running import Up
from tests.scoreline.runs.files import read_csv, write_csv

TEXTS = ["great", "bad", "so so", "This movie", "London"]
OPTIONS: tuple[str, ...] = (
    "--item-column",
    "text",
    "--query",
    PROMPT["query"],
    "--item-template",
    PROMPT["item_template"],
)


def test_a_run_writes_what_to_do_with_each_row_and_calibrated_scores(
    shared_up: Up, client: Client, model_directory: Path, tmp_path: Path
) -> None:
    calibration = artefact(TextTokenizer.load(model_directory).fingerprint, "weights")
    parameters = {"threshold": 0.9, "set_bound": None}
    threshold = replace(calibration, kind=Kind.THRESHOLD, method="learn-then-test", parameters=parameters)
    for name, one in (("mild", calibration), ("sure", threshold)):
        write(one, shared_up.data / "calibrations" / f"{name}.json")
    source, target = write_csv(tmp_path / "in.csv", [{"text": text} for text in TEXTS]), tmp_path / "out.csv"
    words: tuple[str | Path, ...] = (
        "run",
        source,
        "-o",
        target,
        *OPTIONS,
        "--label",
        LABELS[0],
        "--label",
        LABELS[1],
        "--softmax",
    )
    outcome = judge(*words, "--threshold", "sure", SCORELINE_URL=shared_up.url)
    assert outcome.returncode == 0, outcome.stderr
    fields: dict[str, Any] = {"labels": LABELS, "item_template": PROMPT["item_template"]}
    shares = client.score(PROMPT["query"], TEXTS, **fields, apply_softmax=True).scores
    assert [row["action"] for row in read_csv(target)] == decide(threshold, shares).actions
    assert [float(row["yes"]) for row in read_csv(target)] == pytest.approx([yes for yes, _ in shares])
    outcome = judge(*words, "--calibration", "mild", "--restart", SCORELINE_URL=shared_up.url)
    assert outcome.returncode == 0, outcome.stderr
    found = apply(calibration, shares)[:, 0].tolist()
    assert [float(row["yes"]) for row in read_csv(target)] == pytest.approx(found)
    assert "action" not in read_csv(target)[0]
    result = client.score(PROMPT["query"], TEXTS, **fields, threshold="sure")
    assert (result.action, result.calibrated) == (decide(threshold, shares).actions, None)
    assert list(result.to_pandas()["action"]) == result.action
    wrong = judge(*words, "--threshold", "unknown", "--restart", SCORELINE_URL=shared_up.url)
    assert "there is no artefact 'unknown'; there are mild, sure" in wrong.stderr.splitlines()[-1]


def test_a_run_with_a_baseline_writes_scores_without_its_share(shared_up: Up, client: Client, tmp_path: Path) -> None:
    texts = [f"{text} {n}" for n in range(220) for text in TEXTS]  # more than a job has whose answer has its scores
    source, target = write_csv(tmp_path / "in.csv", [{"text": text} for text in texts]), tmp_path / "out.csv"
    of_labels = ("--label", LABELS[0], "--label", LABELS[1])
    outcome = judge(
        "run",
        source,
        "-o",
        target,
        *OPTIONS,
        *of_labels,
        "--baseline",
        "",
        "--baseline",
        "N/A",
        SCORELINE_URL=shared_up.url,
    )
    assert outcome.returncode == 0, outcome.stderr
    fields: dict[str, Any] = {"labels": LABELS, "item_template": PROMPT["item_template"]}
    result = client.score(PROMPT["query"], TEXTS, **fields, baseline=["", "N/A"])
    assert result.adjusted is not None
    assert list(result.to_pandas()["adjusted"]) == result.adjusted
    assert result.baseline is not None
    assert result.baseline.scores == client.score(PROMPT["query"], ["", "N/A"], **fields).scores
    expected = client.score(PROMPT["query"], texts[:3], **fields, baseline=["", "N/A"]).adjusted
    assert expected is not None
    found = [[float(row["yes"]), float(row["no"])] for row in read_csv(target)]
    assert len(found) == len(texts)
    assert found[:3] == [pytest.approx(row) for row in expected]
    assert all(sum(row) == pytest.approx(1.0) for row in found)
