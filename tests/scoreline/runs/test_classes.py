"""A run and the other commands with a model that has classes, which nobody has to name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from judgement.rankings import ranking_metrics
from judgement.statistics import value_of
from scoreline import frames
from scoreline.client import Client, NotFound
from scoreline.exit_codes import CommandError
from scoreline.templates import model_of
from tests.api.models.listing import Listing, described
from tests.api.serving import running_api
from tests.api.tiny_model import make_classifier_directory, make_model_directory
from tests.scoreline.judging.files import judge
from tests.scoreline.running import Up, scoreline
from tests.scoreline.runs.files import LABELS, execute, plan_of, read_csv, write_csv

NAMES = ("news", "spam", "an offer")
ROWS = [{"id": str(n), "query": "This", "item": f" movie number {n}"} for n in range(9)]


@pytest.fixture(scope="module")
def url(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("classes")
    directory = make_classifier_directory(folder / "model", id2label=dict(enumerate(NAMES)))
    database = Path(shutil.copy(sqlite_template, folder / "scoreline.db"))
    turned = make_classifier_directory(folder / "turned", id2label=dict(enumerate(NAMES[::-1])))
    with running_api(directory, f"sqlite:///{database}", folder) as (api, _):
        listing = Listing(api)
        others = described("turned", turned, aliases=["other"]), described("plain", make_model_directory(folder / "p"))
        one = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
        reranker = make_classifier_directory(folder / "reranker", id2label={0: "relevant"}, **one)
        for listed in listing.put(*others, described("reranker", reranker)):
            listing.work(listed)
        yield str(api.client.base_url)
        listing.close()


def test_a_run_writes_a_column_for_each_class_or_for_those_that_it_names(url: str, tmp_path: Path) -> None:
    source, every, some = write_csv(tmp_path / "in.csv", ROWS), tmp_path / "every.csv", tmp_path / "some.csv"
    execute(plan_of(source, every, labels=(), rows=4), url)
    execute(plan_of(source, some, labels=("spam",), rows=4), url)
    assert list(read_csv(every)[0]) == [*ROWS[0], *NAMES]
    assert list(read_csv(some)[0]) == [*ROWS[0], "spam"]
    assert [row["spam"] for row in read_csv(some)] == [row["spam"] for row in read_csv(every)]
    with Client(url) as client:
        expected = client.score("This", [row["item"] for row in ROWS]).scores
    assert [[float(row[name]) for name in NAMES] for row in read_csv(every)] == expected


def test_commands_show_the_classes(url: str) -> None:
    shown = scoreline("score", "--url", url, "--query", "a", "--item", "b", "--json")
    assert len(json.loads(shown.stdout)["scores"][0]) == len(NAMES)
    assert "news" in scoreline("score", "--url", url, "--query", "a", "--item", "b").stdout
    assert "classes: “news”, “spam”, “an offer”" in scoreline("models", "--url", url).stdout


def test_the_classes_are_those_of_the_model_that_is_named(url: str, tmp_path: Path) -> None:
    target, items = tmp_path / "out.csv", [row["item"] for row in ROWS]
    execute(plan_of(write_csv(tmp_path / "in.csv", ROWS), target, labels=(), options={"model": "other"}), url)
    rows = read_csv(target)
    assert list(rows[0]) == [*ROWS[0], *NAMES[::-1]]
    table = pd.DataFrame({"item": items})
    scored = frames.score(table, "item", query="This", labels=(), model="turned", url=url)
    assert list(scored.columns) == ["item", *NAMES[::-1]]
    with Client(url) as client:
        expected = client.score("This", items, model="turned").scores
        best = [NAMES[::-1][scores.index(max(scores))] for scores in expected]
        judged = client.evaluate(items, best, query="This", model="turned")
    assert [[float(row[name]) for name in NAMES[::-1]] for row in rows] == expected
    assert scored[[*NAMES[::-1]]].to_numpy().tolist() == expected
    assert judged.systems["prompt"]["accuracy"]["value"] == 1


@pytest.mark.parametrize(
    "options",
    [
        {"model": "reranker"},
        {"model": "plain", "labels": [" yes"]},
        {"model": "plain", "labels": [" yes", " no"]},
        {"model": "plain", "labels": [" no", " yes"], "template": "yes-no"},
    ],
)
def test_rankings_are_by_the_first_label_whatever_its_scores_are(
    options: dict[str, Any], url: str, tmp_path: Path
) -> None:
    items, grades = [row["item"] for row in ROWS], [n % 3 for n in range(len(ROWS))]
    rows = [row | {"grade": grade} for row, grade in zip(ROWS, grades, strict=True)]
    source, systems = write_csv(tmp_path / "in.csv", rows), tmp_path / "systems.toml"
    entries = [f"{name.replace('labels', 'label')} = {json.dumps(value)}" for name, value in options.items()]
    systems.write_text("\n".join(["[one]", *entries]))
    words = ("--query-column", "query", "--item-column", "item", "--systems", systems, "--url", url)
    outcome = judge("evaluate", source, "--truth", "grade", "--ranking", *words, "--json", tmp_path / "out.json")
    assert outcome.returncode == 0, outcome.stderr
    shares = len(options.get("labels", ())) > 1
    with Client(url) as client:
        first = [one[0] for one in client.score("This", items, **options, apply_softmax=shares).scores]
    assert len(set(first)) == len(items)
    expected, _ = ranking_metrics(first, grades, np.zeros(len(items), np.int64), 10)
    (system,) = json.loads((tmp_path / "out.json").read_text())["systems"]
    found = {name: figure["value"] for name, figure in system["metrics"].items()}
    assert found == pytest.approx({name: value_of(one, 1) for name, one in expected.items()})


def test_a_model_without_classes_has_a_label_mass_beside_others_with_classes(url: str, tmp_path: Path) -> None:
    source, target = write_csv(tmp_path / "in.csv", ROWS), tmp_path / "out.csv"
    execute(plan_of(source, target, labels=LABELS, options={"model": "plain"}), url)
    assert list(read_csv(target)[0]) == [*ROWS[0], "yes", "no", "label_mass"]


def test_a_name_means_the_model_that_it_means_to_the_service(client: Client) -> None:
    (tiny,) = client.models()
    ids = ("tiny", "tiny:spam", "triage", "triage:spam")
    models = [replace(tiny, id=name, aliases=("t",) if name == "triage" else ()) for name in ids]
    meant = {None: "tiny", "default": "tiny", "spam": "tiny:spam", "t": "triage", "t:spam": "triage:spam"}
    assert {name: model_of(models, name).id for name in meant} == meant
    assert [model_of(models, name).id for name in ids] == [*ids]
    for name in ("other", "t:other"):
        with pytest.raises(NotFound, match=name):
            model_of(models, name)


def test_a_model_without_classes_needs_labels(shared_up: Up, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "in.csv", ROWS)
    with pytest.raises(CommandError, match="there is nothing to score"):
        execute(plan_of(source, tmp_path / "out.csv", labels=()), shared_up.url)
