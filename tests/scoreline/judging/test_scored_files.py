"""``evaluate``, ``calibrate`` and ``threshold`` on files that have scores already, so that no service is needed."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from benchmarks.judgement.made_up import WORLDS
from judgement.applying import ABSTAIN, decide
from judgement.artefacts import Artefact, read
from tests.scoreline.judging.files import judge, labelled_file, said
from tests.scoreline.runs.files import read_csv, write_csv

SCORES = ("--truth", "truth", "--scores", "yes,no")


def test_a_report_has_every_metric_with_its_interval(tmp_path: Path) -> None:
    source = labelled_file(tmp_path / "in.csv")
    outcome = judge("evaluate", source, *SCORES, "--json", tmp_path / "report.json", "--html", tmp_path / "report.html")
    assert outcome.returncode == 0, outcome.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    (system,) = report["systems"]
    assert list(system["metrics"]) == ["accuracy", "log_loss", "brier", "ece", "auc", "macro_f1"]
    rows = read_csv(source)
    right = sum((float(row["yes"]) >= float(row["no"])) == (row["truth"] == "yes") for row in rows) / len(rows)
    accuracy = system["metrics"]["accuracy"]
    assert accuracy["value"] == pytest.approx(right)
    assert accuracy["low"] < right < accuracy["high"]
    assert re.search(rf"^accuracy +{right:.4f} \(", outcome.stdout, re.MULTILINE)
    assert sum(map(sum, system["confusion"])) == 600
    assert all(one["truth"] != one["answer"] for one in system["worst"])
    assert "600 independent rows; from 2,000 on" in outcome.stderr


class _Page(HTMLParser):
    """Collects what a page has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def test_the_page_loads_nothing_and_names_all_that_it_shows(tmp_path: Path) -> None:
    rows = read_csv(labelled_file(tmp_path / "in.csv"))
    rows[7] |= {"id": "<script>alert(1)</script>", "yes": "1", "no": "1e-9", "truth": "no"}
    source = write_csv(tmp_path / "in.csv", rows)
    words = ("--item-column", "id", "--query-column", "truth", "--keep-duplicates")
    outcome = judge("evaluate", source, *SCORES, *words, "--html", tmp_path / "report.html")
    assert outcome.returncode == 0, outcome.stderr
    text = (tmp_path / "report.html").read_text()
    page = _Page(text)
    assert page.open == []
    assert not re.search(r"(src|href)=|@import|url\(", text)
    assert not page.attributes("script")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert len(page.attributes("caption")) == len(page.attributes("table"))
    assert all("scope" in attributes for attributes in page.attributes("th"))
    (diagram,) = page.attributes("svg")
    names = {attributes.get("id") for _, attributes in page.found}
    assert set(str(diagram["aria-labelledby"]).split()) <= names
    assert page.attributes("html") == [{"lang": "en"}]


def test_rankings_are_judged_by_their_queries(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"query": f"q{n // 4}", "score": -0.5 - n % 4, "grade": int(n % 4 == n // 4 % 2)} for n in range(80)
    ]
    source = write_csv(tmp_path / "in.csv", rows)
    words = ("--truth", "grade", "--scores", "score", "--query-column", "query", "--ranking", "--cutoff", "3")
    outcome = judge("evaluate", source, *words, "--json", tmp_path / "report.json")
    assert outcome.returncode == 0, outcome.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    metrics = report["systems"][0]["metrics"]
    assert list(metrics) == ["ndcg@3", "mrr", "recall@3"]
    assert (metrics["mrr"]["value"], metrics["recall@3"]["value"], report["clusters"]) == (0.75, 1.0, 20)


def artefact_of(path: Path, *words: str | Path) -> Artefact:
    outcome = judge(*words, "-o", path)
    assert outcome.returncode == 0, outcome.stderr
    return read(path)


def test_a_calibration_and_a_threshold_that_uses_it(tmp_path: Path) -> None:
    source, other = labelled_file(tmp_path / "in.csv"), labelled_file(tmp_path / "other.csv", 2_000, seed=1)
    calibration = artefact_of(tmp_path / "reviews.json", "calibrate", source, *SCORES)
    assert (calibration.name, calibration.labels) == ("reviews", ("yes", "no"))
    assert calibration.figures["gain_in_log_loss"]["low"] > 0
    assert calibration.figures["after"]["ece"] < calibration.figures["before"]["ece"]
    words = ("threshold", other, *SCORES, "--max-error", "0.05", "--calibration", tmp_path / "reviews.json")
    threshold = artefact_of(tmp_path / "act.json", *words)
    assert threshold.calibration == calibration
    rows = read_csv(other)
    actions = decide(threshold, [[float(row["yes"]), float(row["no"])] for row in rows]).actions
    acted = [(action, row["truth"]) for action, row in zip(actions, rows, strict=True) if action != ABSTAIN]
    wrong = sum(action != truth for action, truth in acted)
    assert (threshold.figures["acted"], threshold.figures["errors"]) == (len(acted), wrong)
    assert wrong / len(acted) <= 0.05


def test_a_choice_has_sets(tmp_path: Path) -> None:
    source = labelled_file(tmp_path / "in.csv", 1_000, WORLDS["five labels"])
    words = ("threshold", source, "--truth", "truth", "--scores", "a,b,c,d,e", "--max-error", "0.1")
    threshold = artefact_of(tmp_path / "act.json", *words)
    rows = read_csv(source)
    found = decide(threshold, [[float(row[label]) for label in "abcde"] for row in rows])
    assert found.sets is not None
    covered = sum(row["truth"] in one for row, one in zip(rows, found.sets, strict=True)) / len(rows)
    assert covered >= 0.9
    assert threshold.figures["mean_set_size"] == pytest.approx(sum(map(len, found.sets)) / len(rows))


def test_what_others_call_the_labels(tmp_path: Path) -> None:
    rows = [
        row | {"truth": {"yes": "good", "no": "bad"}[row["truth"]]}
        for row in read_csv(labelled_file(tmp_path / "a.csv"))
    ]
    source = write_csv(tmp_path / "in.csv", rows)
    assert judge("evaluate", source, *SCORES, "--means", "good", "--means", "bad").returncode == 0
    assert "line 2: its 'truth', 'bad', is none of the labels yes, no" in said(judge("evaluate", source, *SCORES))


CALIBRATE = ("calibrate", "-o", "{folder}/out.json", *SCORES)
THRESHOLD = ("threshold", "-o", "{folder}/out.json", *SCORES, "--max-error", "0.05")


@pytest.mark.parametrize("command", [("evaluate", *SCORES), CALIBRATE, THRESHOLD], ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"truth": "maybe"}, "line 4: its 'truth', 'maybe', is none of the labels yes, no"),
        ({"truth": ""}, "line 4: there is no true label in 'truth'"),
        ({"yes": "nan"}, "line 4: its 'yes', 'nan', is no number from 0 on"),
        ({"no": ""}, "line 4: its 'no', '', is no number from 0 on"),
        ({"yes": "0", "no": "0.0"}, "line 4: one of its scores, yes, no, must be above 0"),
        ({"id": "1"}, "line 4: it has the texts of line 3: the same row twice proves no more"),
    ],
)
def test_a_wrong_row_is_named_in_one_line(
    command: tuple[str, ...], change: dict[str, str], says: str, tmp_path: Path
) -> None:
    rows = read_csv(labelled_file(tmp_path / "in.csv"))
    rows[2] |= change
    words = [word.format(folder=tmp_path) for word in command]
    texts = ("--item-column", "id")
    source = write_csv(tmp_path / "in.csv", rows)
    assert says in said(judge(*words[:1], source, *words[1:], *(texts if "id" in change else ())))
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("command", "rows", "says"),
    [
        (CALIBRATE, slice(150), "in.csv: there are 150 independent rows, and 200 are needed"),
        (THRESHOLD, slice(50), "in.csv: there are 50 independent rows, and an error of at most 0.05 takes 59"),
        (CALIBRATE, "yes", "in.csv: all rows have the same true label"),
        (THRESHOLD, "yes", "in.csv: all rows have the same true label"),
    ],
)
def test_a_file_that_proves_nothing_is_refused_in_one_line(
    command: tuple[str, ...], rows: slice | str, says: str, tmp_path: Path
) -> None:
    found = read_csv(labelled_file(tmp_path / "in.csv"))
    kept = found[rows] if isinstance(rows, slice) else [row for row in found if row["truth"] == rows]
    words = [word.format(folder=tmp_path) for word in command]
    assert says in said(judge(*words[:1], write_csv(tmp_path / "in.csv", kept), *words[1:]))


def test_where_no_threshold_holds_none_is_written(tmp_path: Path) -> None:
    source = labelled_file(tmp_path / "in.csv", 300)
    words = ("threshold", source, *SCORES, "--max-error", "0.001", "-o", tmp_path / "out.json")
    assert "takes 2995 at least" in said(judge(*words))
    rows = [row | {"truth": ("yes", "no")[n % 2]} for n, row in enumerate(read_csv(source))]
    write_csv(source, rows)
    words = ("threshold", source, *SCORES, "--max-error", "0.05", "-o", tmp_path / "out.json")
    line = said(judge(*words))
    assert "no threshold can be shown to keep the error below 0.05: of the 118 surest independent rows " in line
    assert "are wrong, and at most 1 may be. This file could show 0." in line
    assert not (tmp_path / "out.json").exists()


def test_a_calibration_is_for_other_rows_and_the_same_labels(tmp_path: Path) -> None:
    source = labelled_file(tmp_path / "in.csv")
    artefact_of(tmp_path / "one.json", "calibrate", source, *SCORES)
    words = ("threshold", "--max-error", "0.05", "-o", tmp_path / "out.json", "--calibration", tmp_path / "one.json")
    assert "was fitted on" in said(judge(*words, source, *SCORES))
    other = labelled_file(tmp_path / "other.csv", seed=1)
    assert "is for other labels" in said(judge(*words, other, "--truth", "truth", "--scores", "no,yes"))
    (tmp_path / "one.json").write_text((tmp_path / "one.json").read_text().replace("600", "601"))
    assert "one.json was edited: its id is not that of its content" in said(judge(*words, other, *SCORES))
    (tmp_path / "one.json").unlink()
    assert "one.json can't be read: No such file" in said(judge(*words, other, *SCORES))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--scores", "yes"), "--scores needs a column for each label"),
        (("--scores", "yes,maybe"), "has no column 'maybe'"),
        (
            ("--questions", "q.json", "--state-column", "item", "--baseline", ""),
            "--questions asks about a state, and does not go with --baseline",
        ),
        (
            ("--query-column", "id", "--item-column", "id", "--ranking", "--baseline", "N/A"),
            "--ranking ranks by the model's scores, and does not go with --baseline",
        ),
        (("--scores", "yes,no", "--label", " yes"), "--scores has the file's own scores, and does not go with --label"),
        (("--scores", "yes,no", "--means", "yes"), "give --means once for each column of --scores"),
    ],
)
def test_a_wrong_use_is_one_line(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    outcome = judge("evaluate", labelled_file(tmp_path / "in.csv"), "--truth", "truth", *words)
    assert says in said(outcome)
    assert outcome.returncode == 2
