"""``evaluate``, ``calibrate`` and ``threshold`` have the service score a file, by the machinery of ``run``."""

from __future__ import annotations

import json
import math
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from judgement.artefacts import read
from scoreline import Client
from tests.scoreline.judging.files import begun, judge, said
from tests.scoreline.running import ROOT, Up
from tests.scoreline.runs.files import read_csv, write_csv
from tests.services import wait_until

README = ROOT / "README.md"
LABELS = ("--label", " yes", "--label", " no")
TEXTS = ("--item-column", "item", "--query", "The capital of France", *LABELS)
ROWS = [{"item": f" is number {n}", "truth": ("yes", "no")[n % 2]} for n in range(40)]


def shares(client: Client, query: str, rows: list[dict[str, Any]], labels: list[str]) -> list[list[float]]:
    return client.score(query, [row["item"] for row in rows], labels=labels, apply_softmax=True).scores


def test_a_file_is_scored_as_a_call_scores_its_rows(shared_up: Up, client: Client, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "in.csv", ROWS)
    outcome = judge(
        "evaluate", source, "--truth", "truth", *TEXTS, "--json", tmp_path / "out.json", "--url", shared_up.url
    )
    assert outcome.returncode == 0, outcome.stderr
    (system,) = json.loads((tmp_path / "out.json").read_text())["systems"]
    scores = shares(client, "The capital of France", ROWS, [" yes", " no"])
    right = sum((yes >= no) == (row["truth"] == "yes") for (yes, no), row in zip(scores, ROWS, strict=True))
    assert system["metrics"]["accuracy"]["value"] == pytest.approx(right / 40)
    assert system["prompt"]["labels"] == [" yes", " no"]
    assert system["model"] is None  # the stand-in worker does not say what it is
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.json"]


SYSTEMS = """
[plain]
[other]
query = "The largest city of Japan"
label = [" no", " yes"]
means = ["no", "yes"]
"""


def test_two_prompts_are_compared_on_the_same_rows(shared_up: Up, client: Client, tmp_path: Path) -> None:
    source, systems = write_csv(tmp_path / "in.csv", ROWS), tmp_path / "systems.toml"
    systems.write_text(SYSTEMS)
    words = ("evaluate", source, "--truth", "truth", *TEXTS, "--systems", systems, "--json", tmp_path / "out.json")
    outcome = judge(*words, SCORELINE_URL=shared_up.url)
    assert outcome.returncode == 0, outcome.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    (pair,) = report["differences"]
    plain, other = report["systems"]
    assert (pair["base"], pair["system"]) == ("plain", "other") == (plain["name"], other["name"])
    for name, figure in pair["metrics"].items():
        assert figure["value"] == pytest.approx(other["metrics"][name]["value"] - plain["metrics"][name]["value"])
    scores = shares(client, "The largest city of Japan", ROWS, [" yes", " no"])
    right = sum((yes >= no) == (row["truth"] == "yes") for (yes, no), row in zip(scores, ROWS, strict=True))
    assert other["metrics"]["accuracy"]["value"] == pytest.approx(right / 40)
    assert "other less plain" in outcome.stdout


def test_a_command_that_is_killed_goes_on_where_it_was(shared_up: Up, client: Client, tmp_path: Path) -> None:
    source, systems = write_csv(tmp_path / "in.csv", ROWS), tmp_path / "systems.toml"
    words = ("evaluate", source, "--truth", "truth", *TEXTS, "--systems", systems)
    systems.write_text('[a]\nquery = "killed"\n[b]\nquery = "killed, too"\n')
    known = {job.id for job in client.jobs()}

    def new_jobs() -> int:
        return len({job.id for job in client.jobs()} - known)

    with shared_up.worker_frozen():
        process = begun(*words, log=tmp_path / "log", SCORELINE_URL=shared_up.url)
        wait_until(lambda: new_jobs() == 2, "both systems have their jobs")
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    assert (tmp_path / "in.csv.scoring").is_dir()
    outcome = judge(*words, SCORELINE_URL=shared_up.url)
    assert outcome.returncode == 0, outcome.stderr
    assert new_jobs() == 2, "nothing was scored again"
    assert not (tmp_path / "in.csv.scoring").exists()


def test_a_system_that_is_refused_ends_the_command_and_is_mended_in_the_file(
    shared_up: Up, client: Client, tmp_path: Path
) -> None:
    source, systems = write_csv(tmp_path / "in.csv", ROWS), tmp_path / "systems.toml"
    words = ("evaluate", source, "--truth", "truth", *TEXTS, "--systems", systems)
    systems.write_text('[a]\n[b]\nquery = "b"\nmodel = "nobody serves it"\n')
    said_of_failure = judge(*words, SCORELINE_URL=shared_up.url)
    assert "nobody serves it" in said_of_failure.stderr.splitlines()[-1]
    systems.write_text('[a]\n[b]\nquery = "b"\n')
    outcome = judge(*words, SCORELINE_URL=shared_up.url)
    assert outcome.returncode == 0, outcome.stderr
    assert not (tmp_path / "in.csv.scoring").exists()


def test_an_artefact_names_the_prompt_and_a_calibration_is_for_no_other(shared_up: Up, tmp_path: Path) -> None:
    rows = [{"item": f" is number {n}", "truth": ("yes", "no")[n % 3 % 2]} for n in range(400)]
    source, other = write_csv(tmp_path / "in.csv", rows[:200]), write_csv(tmp_path / "other.csv", rows[200:])
    words = ("--truth", "truth", "--item-column", "item", *LABELS, "--url", shared_up.url)
    outcome = judge("calibrate", source, "--query", "The capital of France", *words, "-o", tmp_path / "one.json")
    assert outcome.returncode == 0, outcome.stderr
    artefact = read(tmp_path / "one.json")
    assert artefact.prompt == {"query": "The capital of France", "labels": [" yes", " no"], "apply_softmax": True}
    threshold = ("threshold", other, *words, "--max-error", "0.5", "-o", tmp_path / "two.json")
    wrong = judge(*threshold, "--query", "The capital of Japan", "--calibration", tmp_path / "one.json")
    assert "one.json is for another prompt" in wrong.stderr.splitlines()[-1]


def test_a_calibration_is_fitted_to_what_is_left_without_a_baseline(
    shared_up: Up, client: Client, tmp_path: Path
) -> None:
    rows = [{"item": f" is number {n}", "truth": ("yes", "no")[n % 3 % 2]} for n in range(200)]
    source = write_csv(tmp_path / "in.csv", rows)
    folder = shared_up.data / "calibrations"
    words = ("calibrate", source, "--truth", "truth", *TEXTS, "--baseline", "", "--baseline", "N/A")
    outcome = judge(*words, "-o", folder / "with-a-baseline.json", "--url", shared_up.url)
    assert outcome.returncode == 0, outcome.stderr
    artefact = read(folder / "with-a-baseline.json")
    assert artefact.prompt["baseline"] == ["", "N/A"]
    evaluated = judge("evaluate", *words[1:], "--json", tmp_path / "out.json", "--url", shared_up.url)
    assert evaluated.returncode == 0, evaluated.stderr
    (system,) = json.loads((tmp_path / "out.json").read_text())["systems"]
    assert system["metrics"]["log_loss"]["value"] == pytest.approx(artefact.figures["before"]["log_loss"])
    adjusted = client.score(
        "The capital of France", [row["item"] for row in rows], labels=[" yes", " no"], baseline=["", "N/A"]
    ).adjusted
    assert adjusted is not None
    losses = [-math.log(one[("yes", "no").index(row["truth"])]) for one, row in zip(adjusted, rows, strict=True)]
    assert artefact.figures["before"]["log_loss"] == pytest.approx(sum(losses) / len(losses))


def test_a_question_is_judged_by_the_probabilities_of_its_options(
    shared_up: Up, client: Client, tmp_path: Path
) -> None:
    questions = {
        "team": {"type": "choice", "instructions": "Which team?", "criteria": {"a": None, "b": None, "c": None}}
    }
    (tmp_path / "questions.json").write_text(json.dumps(questions))
    rows = [{"text": f"number {n}", "team": "abc"[n % 3]} for n in range(30)]
    source = write_csv(tmp_path / "in.csv", rows)
    words = ("--truth", "team", "--state-column", "text", "--questions", tmp_path / "questions.json")
    outcome = judge("evaluate", source, *words, "--json", tmp_path / "out.json", "--url", shared_up.url)
    assert outcome.returncode == 0, outcome.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["labels"] == ["a", "b", "c"]
    values = [client.decide(row["text"], questions)["team"] for row in rows]
    right = sum(value == row["team"] for value, row in zip(values, rows, strict=True))
    assert report["systems"][0]["metrics"]["accuracy"]["value"] == pytest.approx(right / 30)
    assert report["systems"][0]["order_flips"] is None

    written = ("--json", tmp_path / "out.json", "--html", tmp_path / "out.html")
    outcome = judge("evaluate", source, *words, "--permute", "3", *written, "--url", shared_up.url)
    assert outcome.returncode == 0, outcome.stderr
    (system,) = json.loads((tmp_path / "out.json").read_text())["systems"]
    flips = [client.decide(row["text"], questions, permute=3).answers["team"].flips for row in rows]
    changed = [share > 0 for share in flips if share is not None]
    assert system["order_flips"] == pytest.approx({"orders": sum(filter(None, flips)) / 30, "rows": sum(changed) / 30})
    assert any(changed)
    assert f"In {sum(changed) / 30:.1%} of the rows, an order of the options" in (tmp_path / "out.html").read_text()


@pytest.mark.slow
def test_the_threshold_of_the_readme_is_made_and_names_the_model(demonstration: Up, tmp_path: Path) -> None:
    (block,) = re.findall(r"^```\n(scoreline threshold .*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    texts = ("The soup was cold and the waiter forgot us.", "The room was spotless and the staff were lovely.")
    new = write_csv(tmp_path / "new.csv", [{"text": text} for text in texts])
    places = {".scoreline": str(demonstration.data), "new.csv": str(new), "decided.csv": str(tmp_path / "decided.csv")}
    for command in block.replace("$'", "'").replace("\\\n", " ").splitlines():
        words = shlex.split(command.replace("\\n", "\n"))[1:]
        given = [
            next((word.replace(*one) for one in places.items() if word.startswith(one[0])), word) for word in words
        ]
        outcome = judge(*given, SCORELINE_URL=demonstration.url)
        assert outcome.returncode == 0, outcome.stderr
    rows = read_csv(tmp_path / "decided.csv")
    assert [row["action"] for row in rows] == ["negative", "positive"]
    assert float(rows[1]["positive"]) > 0.9
    artefact = read(demonstration.data / "calibrations" / "sure.json")
    assert set(artefact.model) == {"model", "revision", "weights_fingerprint", "tokenizer_fingerprint"}
    assert artefact.labels == ("positive", "negative")
    assert 0.5 < artefact.parameters["threshold"] < 1.0
    assert 0.0 < artefact.figures["abstained"] < 0.7


@pytest.mark.parametrize(
    ("systems", "says"),
    [
        ("[a]\nlabels = []\n", "there is no option 'labels'; it may have"),
        ("[a]\nlabel = 7\n", "[a]: label must be a list of texts"),
        ("a = 1\n", "must have a table for each system, such as [short]"),
        ("[a\n", "is not TOML"),
        ('[a]\n[b]\nlabel = [" yes", " good"]\n', "say by --means what each is called in the file"),
    ],
)
def test_a_wrong_file_of_systems_is_refused_in_one_line(systems: str, says: str, shared_up: Up, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "in.csv", [row | {"truth": "yes"} for row in ROWS])
    (tmp_path / "systems.toml").write_text(systems)
    words = ("evaluate", source, "--truth", "truth", *TEXTS, "--systems", tmp_path / "systems.toml")
    assert says in said(judge(*words, SCORELINE_URL=shared_up.url))
    assert not (tmp_path / "in.csv.scoring").exists()


def test_true_labels_are_looked_at_before_anything_is_scored(shared_up: Up, client: Client, tmp_path: Path) -> None:
    before = len(list(client.jobs()))
    source = write_csv(tmp_path / "in.csv", [*ROWS[:-1], ROWS[-1] | {"truth": "maybe"}])
    outcome = judge("evaluate", source, "--truth", "truth", *TEXTS, SCORELINE_URL=shared_up.url)
    assert "line 41: its 'truth', 'maybe', is none of the labels yes, no" in said(outcome)
    outcome = judge("evaluate", source, "--truth", "truth", *TEXTS[:-2], SCORELINE_URL=shared_up.url)
    assert "prompt has one label only: give another --label" in said(outcome)
    assert len(list(client.jobs())) == before
