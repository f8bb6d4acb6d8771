"""A run and the other commands with a model that has classes, which nobody has to name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scoreline.client import Client
from scoreline.exit_codes import CommandError
from tests.api.serving import running_api
from tests.api.tiny_model import make_classifier_directory
from tests.scoreline.running import Up, scoreline
from tests.scoreline.runs.files import execute, plan_of, read_csv, write_csv

NAMES = ("news", "spam", "an offer")
ROWS = [{"id": str(n), "query": "This", "item": f" movie number {n}"} for n in range(9)]


@pytest.fixture(scope="module")
def url(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("classes")
    directory = make_classifier_directory(folder / "model", id2label=dict(enumerate(NAMES)))
    database = Path(shutil.copy(sqlite_template, folder / "scoreline.db"))
    with running_api(directory, f"sqlite:///{database}", folder) as (api, _):
        yield str(api.client.base_url)


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


def test_a_model_without_classes_needs_labels(shared_up: Up, tmp_path: Path) -> None:
    source = write_csv(tmp_path / "in.csv", ROWS)
    with pytest.raises(CommandError, match="there is nothing to score"):
        execute(plan_of(source, tmp_path / "out.csv", labels=()), shared_up.url)
