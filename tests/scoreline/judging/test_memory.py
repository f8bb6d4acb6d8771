"""``evaluate`` of the clients judges rows in memory as the command judges those of a file."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from judgement.sample import JudgementError
from scoreline import AsyncClient, Client, Evaluation, InvalidRequest, MapProgress, NotFound
from scoreline.judging.backlog import Backlog
from scoreline.judging.evaluation import samples_of
from scoreline.judging.labelled import Labelled
from scoreline.judging.scored import Scored
from scoreline.runs.prompts import Columns
from tests.scoreline.judging.files import judge
from tests.scoreline.running import ROOT, Up
from tests.scoreline.runs.files import write_csv

LABELS = [" yes", " no"]
OPTIONS: dict[str, Any] = {"query": "The capital of France", "labels": LABELS}
ITEMS = [f" is number {n}" for n in range(40)]
TRUTH = [("yes", "no")[n * n % 3 % 2] for n in range(40)]
SYSTEMS: dict[str, Any] = {
    "plain": {},
    "other": {"query": "Japan", "item_template": "{item}!", "labels": {"no": " no", "yes": " yes"}},
}
TOML = """
[plain]
[other]
query = "Japan"
item-template = "{item}!"
label = [" no", " yes"]
means = ["no", "yes"]
"""


def commanded(up: Up, folder: Path, rows: list[dict[str, Any]], *words: str | Path) -> dict[str, Any]:
    """Return what the command says of the rows, as if it had them in memory."""
    source = write_csv(folder / "in.csv", rows)
    options = ("--truth", "truth", "--item-column", "items", "--label", LABELS[0], "--label", LABELS[1])
    outcome = judge("evaluate", source, *options, *words, "--json", folder / "out.json", "--url", up.url)
    assert outcome.returncode == 0, outcome.stderr
    report: dict[str, Any] = json.loads((folder / "out.json").read_text())
    for system in report["systems"]:
        system["worst"] = [{"item": one.pop("line") - 2, **one} for one in system["worst"]]
    return report | {"file": "the items"}


def test_the_report_is_that_of_the_command_for_both_clients(shared_up: Up, client: Client, tmp_path: Path) -> None:
    rows = [{"items": item, "truth": true} for item, true in zip(ITEMS, TRUTH, strict=True)]
    (tmp_path / "systems.toml").write_text(TOML)
    words = ("--query", "The capital of France", "--systems", tmp_path / "systems.toml")
    expected = commanded(shared_up, tmp_path, rows, *words)
    found = client.evaluate(ITEMS, TRUTH, systems=SYSTEMS, **OPTIONS)
    report = {**found.report, "digest": expected["digest"]}
    assert report == expected
    assert len(found.report["systems"][1]["worst"]) > 3
    assert found.systems["other"] == expected["systems"][1]["metrics"]
    assert found.differences["other", "plain"] == expected["differences"][0]["metrics"]
    assert found.warnings == expected["warnings"]

    async def awaited() -> Evaluation:
        async with AsyncClient(shared_up.url) as client:
            return await client.evaluate(np.array(ITEMS), pd.Series(TRUTH), systems=SYSTEMS, **OPTIONS)

    assert asyncio.run(awaited()) == found


def test_a_row_whose_scores_are_all_0_is_named_as_the_rows_are() -> None:
    labelled = Labelled.in_memory({"items": ["a", "b", "c"], "truth": ["yes", "no", "no"]}, "truth")
    scored = Scored("one", ("yes", "no"), [None, [0.5, 0.5], [0.0, 0.0]])
    with pytest.raises(JudgementError, match="item 2: its probabilities must be numbers from 0 on"):
        samples_of(labelled, [scored], [1, 2], [0, 1, 2])


@pytest.mark.slow
def test_a_real_model_is_measured_and_named_as_the_command_does(demonstration: Up, tmp_path: Path) -> None:
    table = pd.read_csv(ROOT / "examples" / "reviews.csv")[:60]
    source = write_csv(tmp_path / "in.csv", table.to_dict("records"))
    words = ["--truth", "sentiment", "--item-column", "text", "--query", "Review: ", "--json", f"{tmp_path}/out.json"]
    words += ["--item-template", "{item}\nSentiment:", "--label", " positive", "--label", " negative"]
    outcome = judge("evaluate", source, *words, SCORELINE_URL=demonstration.url)
    assert outcome.returncode == 0, outcome.stderr
    expected = json.loads((tmp_path / "out.json").read_text())
    with Client(demonstration.url) as client:
        options: dict[str, Any] = {"item_template": "{item}\nSentiment:", "labels": [" positive", " negative"]}
        found = client.evaluate(table["text"], table["sentiment"], query="Review: ", **options)
    (system,), (same,) = found.report["systems"], expected["systems"]
    assert {**system, "worst": []} == {**same, "worst": []}
    assert system["model"]["weights_fingerprint"]


def test_rows_of_a_query_are_a_group_and_groups_may_be_others(shared_up: Up, client: Client, tmp_path: Path) -> None:
    queries = [f"query {n % 7}" for n in range(40)]
    rows = [
        {"items": item, "truth": true, "queries": query}
        for item, true, query in zip(ITEMS, TRUTH, queries, strict=True)
    ]
    expected = commanded(shared_up, tmp_path, rows, "--query-column", "queries")
    found = client.evaluate(ITEMS, TRUTH, queries=queries, labels=LABELS)
    assert {**found.report, "digest": expected["digest"]} == expected
    assert found.report["clusters"] == 7
    again = client.evaluate(ITEMS, TRUTH, queries=queries, labels=LABELS, groups=np.arange(40) // 4)
    assert again.report["clusters"] == 10
    assert again.systems["prompt"]["accuracy"]["value"] == found.systems["prompt"]["accuracy"]["value"]
    own = client.evaluate(ITEMS, TRUTH, queries=queries, labels=LABELS, systems={"own": {"query": "Japan"}})
    alone = client.evaluate(ITEMS, TRUTH, query="Japan", labels=LABELS, groups=queries)
    assert own.systems["own"] == alone.systems["prompt"] != found.systems["prompt"]
    doubled = client.evaluate(ITEMS * 2, TRUTH * 2, keep_duplicates=True, **OPTIONS)
    assert (doubled.report["rows"], doubled.report["clusters"]) == (80, 40)


def test_what_is_judged_may_come_from_a_table(client: Client) -> None:
    table = pd.DataFrame({"text": ITEMS, "is_right": [true == "yes" for true in TRUTH]}, index=range(100, 140))
    found = client.evaluate(
        table["text"], table["is_right"], query=OPTIONS["query"], labels={True: LABELS[0], False: LABELS[1]}
    )
    assert found.report["labels"] == ["True", "False"]
    assert found.systems["prompt"] == client.evaluate(ITEMS, TRUTH, **OPTIONS).systems["prompt"]


def test_a_template_brings_its_labels(client: Client) -> None:
    (model,) = client.models()
    template = model.templates[0]
    called = [label.strip() for label in template.labels]
    truth = [called[n % 2] for n in range(40)]
    found = client.evaluate(ITEMS, truth, query="what is it?", template=template.name)
    assert found.report["labels"] == called
    assert found.report["systems"][0]["prompt"]["template"] == template.name


def test_a_report_is_shown_and_written(client: Client, tmp_path: Path) -> None:
    found = client.evaluate(["<script>", *ITEMS[1:]], TRUTH, systems={"<b>": {}, "a": {"query": "a"}}, **OPTIONS)
    found.save(tmp_path / "report.html")
    found.save(str(tmp_path / "report.JSON"))
    page = (tmp_path / "report.html").read_text()
    assert page == found.html()
    assert json.loads((tmp_path / "report.JSON").read_text()) == json.loads(found.json()) == found.report
    assert "What the scores of the items are worth" in page
    assert '<th scope="col">item</th>' in page
    shown = found._repr_html_()
    assert shown in page
    assert "a less &lt;b&gt;, on the same rows" in shown
    for part in ("<script", "<b>", "<style", "<body"):
        assert part not in shown
    accuracy = found.systems["a"]["accuracy"]["value"]
    assert repr(found).startswith("Evaluation(40 rows, accuracy of <b>: ")
    assert repr(found).endswith(f"a: {accuracy:.4f})")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"truth": TRUTH[:-1]}, "there are 40 items, and truth has 39 entries"),
        ({"queries": ["q"] * 41, "query": None}, "there are 40 items, and queries has 41 entries"),
        ({"items": [], "truth": []}, "there are no items"),
        ({"truth": ["maybe", *TRUTH[1:]]}, "item 0: its 'truth', 'maybe', is none of the labels yes, no"),
        ({"truth": [*TRUTH[:3], None, *TRUTH[4:]]}, "item 3: there is no true label in 'truth'"),
        ({"truth": [*TRUTH[:3], float("nan"), *TRUTH[4:]]}, "item 3: there is no true label in 'truth'"),
        ({"truth": pd.Series([*TRUTH[:39], pd.NA])}, "item 39: there is no true label in 'truth'"),
        ({"truth": ["yes"] * 40}, "all rows have the same true label"),
        ({"items": [*ITEMS[:3], float("nan"), *ITEMS[4:]]}, "item 3: there is no text in 'items'"),
        ({"items": [*ITEMS[:3], " ", *ITEMS[4:]]}, "item 3: there is no text in 'items'"),
        ({"items": [*ITEMS[:3], 7, *ITEMS[4:]]}, "item 3: its 'items' is a number: make it a text"),
        ({"items": [*ITEMS[:39], ITEMS[2]]}, "item 39: it has the texts of item 2: .* with keep_duplicates=True$"),
        ({"groups": [None] * 40}, "item 0: there is nothing in 'groups'"),
        ({"queries": ["q"] * 40}, "either query, one text for all items, or queries"),
        ({"labels": " yes"}, "prompt: labels must be a list of texts, or a mapping of names to texts"),
        ({"labels": [LABELS] * 40}, "prompt: labels must be a list of texts"),
        ({"labels": [" yes"], "truth": ["yes"] * 40}, "at least two labels"),
        ({"labels": [" yes", "yes"]}, "prompt: two labels are called the same: tell them apart by labels={name: "),
        ({"labels": None}, "give labels, or a template, which has some"),
        ({"systems": {}}, "there are no systems"),
        ({"systems": {"a": {}, "b": {"labels": [" yes", " good"]}}}, "a has the labels yes, no, and b has yes, good"),
    ],
)
def test_what_can_not_be_judged_is_said_in_one_line_and_nothing_is_scored(
    changed: dict[str, Any], says: str, client: Client
) -> None:
    before = len(list(client.jobs()))
    with pytest.raises(ValueError, match=says) as error:
        client.evaluate(**{"items": ITEMS, "truth": TRUTH, **OPTIONS, **changed})
    assert "\n" not in str(error.value)
    assert "--" not in str(error.value)
    assert len(list(client.jobs())) == before


def test_other_mistakes_are_those_of_other_methods(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="items must be a list of texts, not one text"):
        client.evaluate("a", ["yes"], **OPTIONS)
    with pytest.raises(TypeError, match="name one of its columns"):
        client.evaluate(pd.DataFrame({"a": ITEMS}), TRUTH, **OPTIONS)
    with pytest.raises(TypeError, match=r"systems\['a'\] has an unexpected option 'label'"):
        client.evaluate(ITEMS, TRUTH, systems={"a": {"label": LABELS}}, **OPTIONS)  # type: ignore[typeddict-unknown-key]
    with pytest.raises(NotFound, match="nobody serves it"):
        client.evaluate(ITEMS, TRUTH, model="nobody serves it", **OPTIONS)
    with pytest.raises(InvalidRequest, match="query"):
        client.evaluate(ITEMS, TRUTH, labels=LABELS)


def test_an_item_that_is_refused_is_named_by_its_place_and_not_by_that_in_its_job(client: Client) -> None:
    told: list[MapProgress] = []
    options: dict[str, Any] = {"queries": [f"query {n % 7}" for n in range(40)], "labels": LABELS}
    with pytest.raises(InvalidRequest) as error:
        client.evaluate(
            [*ITEMS[:38], "long " * 5_000, ITEMS[39]], TRUTH, concurrency=2, progress=told.append, **options
        )
    assert error.value.param == "items[38]"
    assert "items[38]" in error.value.message
    assert "items[5]" not in error.value.message
    assert [one.pairs for one in told] == [1, 2, 3], "that of the fourth query"


def test_without_its_packages_the_error_says_what_to_install() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules['numpy'] = None\n"
        "from scoreline import Client\n"
        "try:\n    Client('http://127.0.0.1:1').evaluate(['a'], ['b'])\n"
        "except ImportError as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == 'evaluate needs numpy: pip install "scoreline[judgement]"\n'


ROWS = [{"query": f"q{n % 2}", "item": f"item {n}"} for n in range(4)]


def test_the_jobs_of_systems_stand_side_by_side_and_each_has_the_options_of_its_own() -> None:
    columns = Columns("query", "item")
    backlog = Backlog(ROWS, [(columns, {"labels": ["a"]}), (columns, {"labels": ["b"]})])
    found = [(query, items, more["labels"]) for query, items, more in backlog.pairs]  # type: ignore[misc]
    even, odd = ["item 0", "item 2"], ["item 1", "item 3"]
    assert found == [("q0", even, ["a"]), ("q0", even, ["b"]), ("q1", odd, ["a"]), ("q1", odd, ["b"])]


def test_scores_of_two_models_are_not_mixed() -> None:
    backlog = Backlog(ROWS, [(Columns("query", "item"), {})])
    names = ("model", "revision", "weights_fingerprint", "tokenizer_fingerprint")

    def results(*weights: str) -> list[Any]:
        return [
            SimpleNamespace(
                adjusted=None,
                baseline=None,
                scores=[[n], [n + 1]],
                provenance=[None, SimpleNamespace(**dict.fromkeys(names, one))],
            )
            for n, one in zip((0.0, 2.0), weights, strict=True)
        ]

    (answers,) = backlog.read(results("same", "same"))
    assert answers.shares == [[0.0], [2.0], [1.0], [3.0]], "each row has its own, in the order of the rows"
    assert answers.model == dict.fromkeys(names, "same")
    with pytest.raises(JudgementError, match="the model was replaced while the texts were scored"):
        backlog.read(results("same", "other"))
