"""Answers say what computed their scores, if they are asked to."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from jobs.store.provenance import Provenance
from tests.api.serving import RunningApi, StandInWorker
from tests.databases import ON_BOTH
from tests.provenances import OTHER, SOME

Fresh = tuple[RunningApi, StandInWorker]

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is", " Japan is"], "label_token_ids": [70, 71]}
SERIAL = replace(SOME, algorithms=("serial",))


def shown(provenance: Provenance) -> dict[str, Any]:
    return asdict(provenance) | {"algorithms": list(provenance.algorithms)}


def test_a_call_says_what_computed_it_only_if_asked(fresh: Fresh) -> None:
    api, worker = fresh
    worker.provenance = SERIAL
    assert "provenance" not in api.score(**BODY)
    for _ in range(2):
        assert api.score(**BODY, return_provenance=True)["provenance"] == [shown(SERIAL)]
    ranked = {"query": "capital", "documents": ["Paris", "Rome"], "return_provenance": True}
    assert api.client.post("/v1/rerank", json=ranked).json()["provenance"] == [shown(SERIAL)]


def test_a_call_whose_result_is_too_large_for_a_notice_says_it_too(fresh: Fresh) -> None:
    api, worker = fresh
    worker.provenance = SERIAL
    body = BODY | {"items": [f" {n}" for n in range(600)], "return_provenance": True}
    assert api.score(**body)["provenance"] == [shown(SERIAL)]


def test_scores_of_a_worker_that_recorded_nothing_are_shown_as_not_known(fresh: Fresh) -> None:
    api, _ = fresh
    assert api.score(**BODY, return_provenance=True)["provenance"] == [None]


def test_a_job_says_what_computed_it_once_it_has_ended(fresh: Fresh) -> None:
    api, worker = fresh
    worker.gate.clear()
    worker.provenance = SERIAL
    job = api.submit(**BODY)
    assert "provenance" not in job
    assert "provenance" not in api.client.get(job["urls"]["self"]).json()
    worker.gate.set()
    done = api.wait(job["id"])
    assert done["provenance"] == [shown(SERIAL)]
    assert "provenance" not in done["result"]
    assert all("provenance" not in listed for listed in api.client.get("/v1/jobs").json()["data"])
    asked = api.wait(api.submit(**BODY, return_provenance=True)["id"])
    assert asked["result"]["provenance"] == asked["provenance"] == [shown(SERIAL)]


@ON_BOTH
def test_a_job_that_two_different_workers_computed_names_both(fresh: Fresh) -> None:
    api, worker = fresh
    worker.provenance = SERIAL
    worker.budget = 1  # a chunk for each claim

    def become_another() -> None:
        worker.provenance = OTHER

    worker.after_batch = become_another
    items = [f" item {n}" for n in range(1_001)]  # more than the job object shows, so the scores are not read with it
    done = api.wait(api.submit(**BODY | {"items": items})["id"])
    assert done["provenance"] == [shown(SERIAL), shown(OTHER)]
    few = api.wait(api.submit(**BODY | {"items": items[:2]})["id"])
    assert few["provenance"] == [shown(OTHER)]


def test_a_job_without_items_was_computed_by_nothing(fresh: Fresh) -> None:
    api, _ = fresh
    job = api.submit(**BODY | {"items": []})
    assert api.client.get(job["urls"]["self"]).json()["provenance"] == []
