"""The API counts the scores that artefacts are applied to, and says when they have left those of the artefact."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from api.drift import LOOK_SECONDS
from jobs.score_counts import Cell, add_counts, sum_counts
from jobs.store.database import Database
from judgement.artefacts import read, write
from judgement.drift import LABEL, MASS, SCORE, Reference
from scoring.tokenizing.tokenization import TextTokenizer
from settings.store import StoreSettings
from tests.api.artefacts import PROMPT, artefact
from tests.api.batches.running import line, openai_of, run
from tests.api.serving import Json, RunningApi, running_api
from tests.api.tiny_model import make_model_directory
from tests.databases import ON_BOTH

ITEMS = ["great", "bad", "so so", "This movie", "", "London"]
BODY: Json = PROMPT | {"items": ITEMS, "calibration": "reviews"}
GREAT: Json = {"type": "noul", "instructions": "Is it great?"}
HOURS = (0, 2**31 - 1)
"""All of them."""


def reference(rows: int = 1_000) -> Reference:
    random = np.random.default_rng(1)
    first = random.uniform(0.05, 0.95, rows)
    return Reference.of(np.stack([first, 1 - first], axis=1), random.uniform(0.2, 0.9, rows))


def artefacts(directory: Path, folder: Path) -> dict[str, str]:
    """Write some artefacts, and return their ids."""
    plain = artefact(TextTokenizer.load(directory).fingerprint, figures={"reference": reference().written()})
    found = {
        "reviews": plain,
        "any-query": replace(plain, prompt=PROMPT | {"query": None}),
        "great": replace(plain, prompt={"questions": {"a": GREAT}, "is_object": False}),
        "old": replace(plain, figures={}),
    }
    for name, one in found.items():
        write(one, folder / f"{name}.json")
    return {name: one.id for name, one in found.items()}


@ON_BOTH
def test_each_item_is_counted_once_however_often_it_is_read(store_url: str, tmp_path: Path) -> None:
    directory, folder = make_model_directory(tmp_path / "model"), tmp_path / "artefacts"
    folder.mkdir()
    ids = artefacts(directory, folder)
    with running_api(directory, store_url, tmp_path, calibrations=folder) as (api, _):
        answer = api.score(**BODY)
        job = api.wait(api.submit(**BODY)["id"])
        for _ in range(3):
            api.client.get(f"/v1/jobs/{job['id']}")
        api.score(**BODY | {"calibration": "any-query"})  # rows of a query are a group, of which one counts
        api.score(**BODY | {"calibration": "old"})
        api.score(**BODY | {"calibration": None})
        run(openai_of(api), [line("a", BODY)])
        lines = "\n".join(map(json.dumps, (BODY | {"items": None}, *ITEMS)))
        sent = api.client.post("/v1/jobs", content=lines, headers={"Content-Type": "application/x-ndjson"}).json()
        api.wait(sent["id"])
        body: Json = {"state": "I saw London.", "questions": {"a": GREAT, "b": GREAT}, "calibration": {"a": "great"}}
        decided = api.client.post("/v1/systemone", json=body).json()
        assert decided["judged"]
    # What is counted and not added yet is added at the end.
    with closing(Database.open(StoreSettings(database_url=store_url))) as database:
        found = sum_counts(database, *HOURS)
    shares, mass = np.array(answer["scores"]), np.array(answer["label_mass"])
    shares /= shares.sum(axis=1, keepdims=True)
    assert {name: sum(cells.values()) for (one, name), cells in found.items() if one == ids["reviews"]} == {
        SCORE: 4 * len(ITEMS),
        LABEL: 4 * len(ITEMS),
        MASS: 4 * len(ITEMS),
    }
    for name, expected in reference().count(shares, mass).items():
        assert found[ids["reviews"], name] == {cell: 4 * n for cell, n in enumerate(expected.tolist()) if n}
    for name in ("any-query", "great"):
        assert {sum(cells.values()) for (one, _), cells in found.items() if one == ids[name]} == {1}
    assert not [one for one, _ in found if one == ids["old"]]


def counted_rows(url: str, artefact_id: str) -> int:
    with closing(Database.open(StoreSettings(database_url=url))) as database:
        return sum(sum_counts(database, *HOURS).get((artefact_id, SCORE), {}).values())


def ended(api: RunningApi, **body: Any) -> str:
    """Have a job computed, and return its id. Its scores are not read."""
    job_id: str = api.submit(**body)["id"]
    assert api.client.get(f"/v1/jobs/{job_id}/events").status_code == 200  # it ends with the job
    return job_id


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ([(0, 2), (2, 2), (4, 2)], 6),
        ([(0, 1), (0, 6)], 6),
        ([(0, 4), (2, 4), (0, 6)], 6),
        ([(3, 3)], 0),  # what lies before it may be read, too
        ([(0, 3), (0, 3)], 3),
    ],
)
def test_pages_count_what_follows_what_was_counted(
    pages: list[tuple[int, int]], expected: int, sqlite_url: str, tmp_path: Path
) -> None:
    directory, folder = make_model_directory(tmp_path / "model"), tmp_path / "artefacts"
    folder.mkdir()
    ids = artefacts(directory, folder)
    with running_api(directory, sqlite_url, tmp_path, calibrations=folder) as (api, _):
        job_id = ended(api, **BODY)
        for offset, limit in pages:
            answer = api.client.get(f"/v1/jobs/{job_id}/scores", params={"offset": offset, "limit": limit})
            assert len(answer.json()["data"]) == limit
        job_id = ended(api, **BODY | {"calibration": "any-query"})
        for offset in range(6):
            api.client.get(f"/v1/jobs/{job_id}/scores", params={"offset": offset, "limit": 1})
    assert counted_rows(sqlite_url, ids["reviews"]) == expected
    assert counted_rows(sqlite_url, ids["any-query"]) == 1


def test_of_decisions_and_jobs_with_a_baseline_only_whole_results_count(sqlite_url: str, tmp_path: Path) -> None:
    directory, folder = make_model_directory(tmp_path / "model"), tmp_path / "artefacts"
    folder.mkdir()
    ids = artefacts(directory, folder)
    adjusted = replace(read(folder / "reviews.json"), prompt=PROMPT | {"baseline": [""]})
    write(adjusted, folder / "adjusted.json")
    questions: Json = {"questions": {"b": GREAT, "a": GREAT, "c": GREAT}, "calibration": {"a": "great"}}
    decision: Json = {"kind": "decision", "state": "I saw London.", **questions}
    with running_api(directory, sqlite_url, tmp_path, calibrations=folder) as (api, _):
        for body in (decision, BODY | {"baseline": [""], "calibration": "adjusted"}):
            job_id = ended(api, **body)
            path = f"/v1/jobs/{job_id}/scores"
            for query in ({"limit": 1}, {"offset": 1}, {"offset": 1, "limit": 1}):
                assert api.client.get(path, params=query).status_code == 200
            assert api.client.get(path, headers={"Accept": "application/x-ndjson"}).status_code == 200
            assert api.wait(job_id)["result"]
    assert counted_rows(sqlite_url, ids["great"]) == 1
    assert counted_rows(sqlite_url, adjusted.id) == len(ITEMS)


def metrics_of(api: RunningApi) -> dict[str, float]:
    lines = api.client.get("/metrics").text.splitlines()
    return {
        name: float(value) for name, value in (one.rsplit(" ", 1) for one in lines if "scoreline_artefact_" in one[:19])
    }


def test_an_operator_is_told_when_scores_have_left_those_of_the_artefact(store_url: str, tmp_path: Path) -> None:
    directory, folder = make_model_directory(tmp_path / "model"), tmp_path / "artefacts"
    folder.mkdir()
    ids, hour = artefacts(directory, folder), int(time.time() // 3600)
    same = {name: np.array(counts) for name, counts in reference(2_000).counts.items()}
    moved: dict[str, Any] = same | {SCORE: same[SCORE][::-1] * np.arange(10)}
    counts = {
        Cell(ids[name], hour - 1 - n % 2, distribution, cell): int(rows)
        for n, (name, of_name) in enumerate({"reviews": moved, "any-query": same}.items())
        for distribution, cells in of_name.items()
        for cell, rows in enumerate(cells)
    }
    with closing(Database.open(StoreSettings(database_url=store_url))) as database:
        add_counts(database, counts)
        add_counts(database, {Cell(ids["any-query"], hour - 30, SCORE, 0): 10**6})  # too long ago
    (folder / "edited.json").write_text((folder / "reviews.json").read_text().replace("0.5", "0.6"))
    with running_api(directory, store_url, tmp_path, calibrations=folder) as (api, _):
        found = metrics_of(api)
        drifted = {name: value for name, value in found.items() if name.startswith("scoreline_artefact_drifted")}
        of = 'scoreline_artefact_drifted{{artefact="{}",distribution="{}"}}'.format
        assert drifted == {
            of(name, distribution): float((name, distribution) == ("reviews", SCORE))
            for name in ("reviews", "any-query")
            for distribution in (SCORE, LABEL, MASS)
        }
        assert found[f'scoreline_artefact_rows{{artefact="any-query",distribution="{SCORE}"}}'] == 2_000
        (warning,) = api.client.get("/v1/overview").json()["warnings"]
        assert "'reviews' is applied to are no longer like those that it was made from (score)" in warning
        assert LOOK_SECONDS < 3600


@pytest.mark.parametrize("name", ["gone", "changed"])
def test_an_artefact_counts_nothing_while_its_file_is_another_one(name: str, sqlite_url: str, tmp_path: Path) -> None:
    directory, folder = make_model_directory(tmp_path / "model"), tmp_path / "artefacts"
    folder.mkdir()
    ids = artefacts(directory, folder)
    with running_api(directory, sqlite_url, tmp_path, calibrations=folder, with_worker=False) as (api, _):
        worker = api.worker()
        worker.start()
        worker.stop()  # it was seen, so that jobs are taken
        job = api.submit(**BODY)
        file = folder / "reviews.json"
        written = file.read_text()
        file.unlink() if name == "gone" else file.write_text((folder / "any-query.json").read_text())
        worker = api.worker()
        worker.start()
        assert api.wait(job["id"])["result"]["calibrated"]
        file.write_text(written)
        assert api.score(**BODY | {"items": ITEMS[:2]})["calibrated"]
        worker.stop()
    assert counted_rows(sqlite_url, ids["reviews"]) == 2
