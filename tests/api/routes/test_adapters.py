"""Every call and job may name an adapter of the folder as its model, and is scored with that adapter alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scoring.layout import ChunkWork, GroupWork, ScoredChunk
from tests.api.batches.running import line, openai_of, read, run
from tests.api.every_route import BODY, COMPLETION, DECISION, DECISION_OF_OPENAI, LIKELIHOOD, RANKING
from tests.api.serving import Json, RunningApi, StandInWorker, eventually, running_api, score_chunk
from tests.api.tiny_model import make_model_directory

CALLS: dict[str, Json] = {
    "/v1/score": BODY,
    "/v1/likelihood": LIKELIHOOD,
    "/v1/systemone": DECISION,
    "/v1/decisions": DECISION_OF_OPENAI,
    "/v1/completions": COMPLETION,
    "/v1/rerank": RANKING,
}
NAMES = {"tiny": None, "default": None, "tiny:mine": "mine", "mine": "mine", "tiny:other.one": "other.one"}


class Served(NamedTuple):
    api: RunningApi
    worker: StandInWorker
    got: list[GroupWork]  # the group of each chunk that the worker has scored


def add_adapter(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / name).write_text("{}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of adapters, in which there are other things, too."""
    folder = tmp_path_factory.mktemp("adapters")
    for name in ("mine", "other.one", ".hidden", "with space"):
        add_adapter(folder / name)
    (folder / "incomplete").mkdir()
    (folder / "incomplete" / "adapter_config.json").write_text("{}")
    (folder / "file").write_text("")
    add_adapter(folder.parent / "outside")
    return folder


@pytest.fixture(scope="module")
def served(folder: Path, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An API with a worker that notes what it gets."""
    own, got = tmp_path_factory.mktemp("served"), list[GroupWork]()
    database = Path(shutil.copy(sqlite_template, own / "scoreline.db"))

    def noted(group: GroupWork, chunk: ChunkWork) -> ScoredChunk:
        got.append(group)
        return score_chunk(group, chunk)

    directory = make_model_directory(own / "model")
    with running_api(directory, f"sqlite:///{database}", own, adapter_folder=folder) as (api, worker):
        assert worker is not None
        worker.score_chunk = noted
        yield Served(api, worker, got)


def adapters_of(got: list[GroupWork]) -> set[str | None]:
    found = {group.adapter for group in got}
    got.clear()
    return found


@pytest.mark.parametrize("path", CALLS)
def test_a_call_names_an_adapter_as_its_model(path: str, served: Served) -> None:
    api, _, got = served
    for name, adapter in NAMES.items():
        answer = api.client.post(path, json={**CALLS[path], "model": name})
        assert answer.status_code == 200, answer.text
        assert adapters_of(got) == {adapter}
        assert answer.json()["model"] == ("tiny" if adapter is None else f"tiny:{adapter}")


@pytest.mark.parametrize("path", [*CALLS, "/v1/jobs", "/v1/tokenize"])
@pytest.mark.parametrize(
    "name",
    ["tiny:absent", "absent", "incomplete", "file", "with space", ".hidden", "../outside", "tiny:", "mine:tiny", ""],
)
def test_an_adapter_that_is_not_there_is_no_model(path: str, name: str, served: Served) -> None:
    api, _, got = served
    body = CALLS.get(path, BODY if path == "/v1/jobs" else {"text": "a"})
    answer = api.client.post(path, json={**body, "model": name})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert not got


def test_jobs_sets_lines_and_files_name_adapters(served: Served) -> None:
    api, _, got = served
    body = {**BODY, "model": "tiny:mine"}
    ids = [api.client.post("/v1/jobs", json=body).json()["id"]]
    ids += [one["body"]["id"] for one in api.client.post("/v1/jobs/sets", json={"jobs": [body]}).json()["data"]]
    first = {name: value for name, value in body.items() if name != "items"}
    lines = "\n".join(map(json.dumps, [first, *BODY["items"]]))
    ids.append(
        api.client.post("/v1/jobs", content=lines, headers={"Content-Type": "application/x-ndjson"}).json()["id"]
    )

    def job(job_id: str) -> Any:
        return api.client.get(f"/v1/jobs/{job_id}").json()

    for job_id in ids:
        eventually(lambda job_id=job_id: job(job_id)["status"] == "succeeded", "the job succeeds")  # type: ignore[misc]
        assert (job(job_id)["model"], job(job_id)["result"]["model"]) == ("tiny:mine", "tiny:mine")
    batch = run(openai_of(api), [line("one", body), line("two", body | {"model": "tiny"})])
    answers = {one["custom_id"]: one["response"]["body"] for one in read(openai_of(api), batch.output_file_id)}
    assert [answers[name]["model"] for name in ("one", "two")] == ["tiny:mine", "tiny"]
    assert adapters_of(got) == {"mine", None}


def test_equal_queries_with_different_adapters_are_never_one_group(
    served: Served,
) -> None:
    api, worker, got = served
    worker.gate.clear()
    names = ("tiny", "tiny:mine", "tiny:other.one", "mine")
    ids = [api.client.post("/v1/jobs", json={**BODY, "model": name}).json()["id"] for name in names]
    worker.gate.set()
    for job_id in ids:
        eventually(
            lambda job_id=job_id: api.client.get(f"/v1/jobs/{job_id}").json()["status"] == "succeeded",  # type: ignore[misc]
            "the job succeeds",
        )
    assert {group.adapter: len(group.chunks) for group in got} == {None: 1, "mine": 2, "other.one": 1}
    got.clear()


def test_the_models_are_listed_with_what_they_are_of(served: Served) -> None:
    api = served.api
    listed = api.client.get("/v1/models").json()
    assert [(one["id"], one["parent"]) for one in listed["data"]] == [
        ("tiny", None),
        ("tiny:mine", "tiny"),
        ("tiny:other.one", "tiny"),
    ]
    assert [one["name"] for one in listed["models"]] == ["tiny", "tiny:mine", "tiny:other.one", "default"]
    for name in ("tiny:mine", "mine"):
        assert api.client.get(f"/v1/models/{name}").json()["id"] == "tiny:mine"
    assert api.client.get("/v1/models/absent").status_code == 404


def test_an_adapter_that_comes_is_served_without_a_restart(folder: Path, served: Served) -> None:
    api, _, got = served
    body = {**BODY, "model": "tiny:new"}
    assert api.client.post("/v1/score", json=body).status_code == 404
    add_adapter(folder / "new")
    assert api.client.post("/v1/score", json=body).status_code == 200
    shutil.rmtree(folder / "new")
    assert api.client.post("/v1/score", json=body).status_code == 404
    assert adapters_of(got) == {"new"}
