"""Sets of jobs over HTTP: many jobs with one request, each answered as if it were sent, or read, alone."""

from __future__ import annotations

import json
import re
import threading
from contextlib import closing
from typing import Any

import httpx2
import pytest

from api.requests import job_set
from api.requests.job_set import MAX_JOBS
from jobs.store.database import Database
from jobs.tenancy.keys import Scope, create_key
from jobs.tenancy.tenants import set_tenant
from tests.api.models.listing import Listing, described
from tests.api.serving import RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel
from tests.databases import ON_BOTH, quick_on

Fresh = tuple[RunningApi, StandInWorker]

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is"], "label_token_ids": [70, 71]}
WRONG: list[Any] = [
    {},
    {"query": "", "items": ["a"], "label_token_ids": [1]},
    {"query": "a", "items": 7, "label_token_ids": [1]},
    BODY | {"label_token_ids": [-1]},
    BODY | {"items": ["a", "b" * 20_000]},
    BODY | {"model": "another"},
    BODY | {"kind": "dance"},
    BODY | {"priority": "at once"},
    BODY | {"expires_in": -1},
    BODY | {"metadata": {"a": 7}},
    BODY | {"webhook": {"url": "http://localhost/"}},
    BODY | {"do_sample": True, "presence_penalty": 7},
]


def send(client: httpx2.Client, *jobs: Any, **headers: str) -> list[dict[str, Any]]:
    answer = client.post("/v1/jobs/sets", json={"jobs": jobs}, headers=headers)
    assert answer.status_code == 202, answer.text
    entries: list[dict[str, Any]] = answer.json()["data"]
    return entries


def read(client: httpx2.Client, *ids: str, **headers: str) -> list[dict[str, Any]]:
    answer = client.get("/v1/jobs/sets", params={"ids": ",".join(ids)}, headers=headers)
    assert answer.status_code == 200, answer.text
    entries: list[dict[str, Any]] = answer.json()["data"]
    return entries


def numbered(count: int) -> list[dict[str, Any]]:
    return [BODY | {"query": f"query {n}", "metadata": {"n": str(n)}} for n in range(count)]


def test_each_job_of_a_set_is_answered_and_scored_as_if_it_were_sent_alone(api: RunningApi) -> None:
    mixed = [one for pair in zip(WRONG, numbered(len(WRONG)), strict=True) for one in pair]
    mixed.append({"kind": "likelihood", "query": "The", "items": [" end"]})
    entries = send(api.client, *mixed)
    assert len(entries) == len(mixed)
    for body, entry in zip(mixed, entries, strict=True):
        alone = api.client.post("/v1/jobs", json=body)
        assert entry["status_code"] == alone.status_code
        if alone.status_code != 202:
            assert entry["body"] == alone.json()
            continue
        first, second = api.wait(entry["body"]["id"]), api.wait(alone.json()["id"])
        assert first["metadata"] == second["metadata"]
        assert first["result"].get("scores") == second["result"].get("scores")
        assert first["result"]["usage"] == second["result"]["usage"]


def test_what_is_no_job_is_refused_and_fails_no_other(api: RunningApi) -> None:
    garbage: list[Any] = [7, None, "query", [], [[]], True, [BODY]]
    entries = send(api.client, *garbage, BODY)
    assert [entry["status_code"] for entry in entries] == [400] * len(garbage) + [202]
    assert {entry["body"]["error"]["code"] for entry in entries[:-1]} == {"invalid_request"}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"jobs": [{}] * 10_000}, 413, "request_too_large"),
        ({"jobs": []}, 400, "invalid_request"),
        ({"jobs": BODY}, 400, "invalid_request"),
        ({}, 400, "invalid_request"),
        ([BODY], 400, "invalid_request"),
        ({"jobs": [BODY], "query": "a"}, 400, "unknown_parameter"),
    ],
)
def test_what_is_no_set_is_refused_as_a_whole(api: RunningApi, body: Any, status: int, code: str) -> None:
    answer = api.client.post("/v1/jobs/sets", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@ON_BOTH
def test_a_set_is_stored_by_one_transaction(fresh: Fresh) -> None:
    api, worker = fresh
    worker.gate.clear()

    def transactions() -> float:
        found = re.search(r"^scoreline_accepted_together_count (\S+)$", api.client.get("/metrics").text, re.M)
        return float(found[1]) if found else 0.0

    before = transactions()
    entries = send(api.client, *numbered(MAX_JOBS))
    assert transactions() == before + 1
    assert {entry["status_code"] for entry in entries} == {202}
    assert [entry["body"]["metadata"]["n"] for entry in entries] == [str(n) for n in range(MAX_JOBS)]
    assert len({entry["body"]["id"] for entry in entries}) == MAX_JOBS


def test_a_set_is_read_with_its_results_when_all_its_jobs_have_ended(fresh: Fresh) -> None:
    api, worker = fresh
    worker.gate.clear()
    ids = [entry["body"]["id"] for entry in send(api.client, *numbered(5))]
    assert api.client.post(f"/v1/jobs/{ids[1]}/cancel").json()["status"] == "cancelled"
    at_once = read(api.client, *ids, Prefer="wait=0")
    assert [entry["body"]["status"] for entry in at_once] == ["queued", "cancelled", *["queued"] * 3]

    found: list[dict[str, Any]] = []
    waiting = threading.Thread(
        target=lambda: found.extend(read(api.client_with(None), *reversed(ids), Prefer="wait=20"))
    )
    waiting.start()
    worker.gate.set()
    waiting.join()
    assert [entry["body"] for entry in found] == [api.client.get(f"/v1/jobs/{one}").json() for one in reversed(ids)]
    assert [entry["body"]["status"] for entry in found] == [*["succeeded"] * 3, "cancelled", "succeeded"]


def test_a_job_that_is_missing_or_of_another_tenant_is_said_to_be_missing(fresh: Fresh) -> None:
    api, _ = fresh
    with closing(Database.open(api.store)) as store:
        foreign = api.client_with(create_key(store, "acme", "key", frozenset(Scope))[0])
    job = foreign.post("/v1/jobs", json=BODY).json()["id"]
    own = api.submit(**BODY)["id"]
    wrong = [job, "job_1", "", "other", "job_" + "x" * 64]
    entries = read(api.client, own, *wrong, Prefer="wait=1")
    assert [entry["status_code"] for entry in entries] == [200, *[404] * len(wrong)]
    assert {entry["body"]["error"]["code"] for entry in entries[1:]} == {"job_not_found"}
    too_many = api.client.get("/v1/jobs/sets", params={"ids": ",".join([own] * (MAX_JOBS + 1))})
    assert (too_many.status_code, too_many.json()["error"]["code"]) == (400, "invalid_request")
    foreign.close()


def test_the_results_of_a_set_have_as_many_items_as_one_answer_may_have(api: RunningApi) -> None:
    many = BODY | {"items": ["a"] * 600}
    ids = [api.submit(**body)["id"] for body in (many, many, BODY)]
    for one in ids:
        api.wait(one)
    entries = read(api.client, *ids)
    assert ["result" in entry["body"] for entry in entries] == [True, False, True]
    assert [entry["body"]["status"] for entry in entries] == ["succeeded"] * 3


def test_a_job_is_named_once_in_a_set_that_is_read_so_that_its_result_is_not_sent_many_times(api: RunningApi) -> None:
    job = api.submit(**BODY)["id"]
    answer = api.client.get("/v1/jobs/sets", params={"ids": f"{job},{job}"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "ids")


def test_a_key_makes_one_job_whether_it_is_sent_in_a_set_or_alone(fresh: Fresh) -> None:
    api, _ = fresh
    keyed = [one | {"idempotency_key": f"key-{n}"} for n, one in enumerate(numbered(3))]
    ids = [entry["body"]["id"] for entry in send(api.client, *keyed)]
    again = send(api.client, *reversed(keyed), keyed[0])
    assert [entry["body"]["id"] for entry in again] == [*reversed(ids), ids[0]]
    headers = {"Idempotency-Key": "key-1", "Content-Type": "application/json"}
    alone = api.client.post("/v1/jobs", content=json.dumps(numbered(3)[1]), headers=headers)
    assert (alone.status_code, alone.json()["id"]) == (202, ids[1])
    other = send(api.client, BODY | {"idempotency_key": "key-1"}, BODY | {"idempotency_key": "key 2"}, BODY)
    assert [entry["status_code"] for entry in other] == [422, 400, 202]
    assert [entry["body"]["error"]["code"] for entry in other[:2]] == ["idempotency_key_reused", "invalid_request"]
    refused = api.client.post("/v1/jobs/sets", json={"jobs": [BODY]}, headers={"Idempotency-Key": "key-9"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Idempotency-Key")


@ON_BOTH
def test_as_many_jobs_of_a_set_are_stored_as_the_quota_has_room_for(fresh: Fresh) -> None:
    api, worker = fresh
    worker.gate.clear()
    with closing(Database.open(api.store)) as store:
        client = api.client_with(create_key(store, "acme", "key", frozenset(Scope))[0])
        set_tenant(store, "acme", max_waiting_tokens=40)
    keyed = [one | {"idempotency_key": f"key-{n}"} for n, one in enumerate(numbered(10))]
    entries = send(client, *keyed)
    statuses = [entry["status_code"] for entry in entries]
    assert set(statuses) == {202, 429}
    refused = [entry for entry in entries if entry["status_code"] == 429]
    assert {entry["body"]["error"]["code"] for entry in refused} == {"quota_exceeded"}
    assert all(entry["retry_after"] >= 1 for entry in refused)
    assert len(client.get("/v1/jobs").json()["data"]) == statuses.count(202)
    worker.gate.set()
    for entry in entries:
        if entry["status_code"] == 202:
            client.get(f"/v1/jobs/{entry['body']['id']}", headers={"Prefer": "wait=20"})
    stored = {entry["body"]["id"] for entry in entries if entry["status_code"] == 202}

    def accepted() -> set[str]:
        return {entry["body"]["id"] for entry in send(client, *keyed) if entry["status_code"] == 202}

    # What waits is counted again after a pause, and there is room then.
    eventually(lambda: accepted() > stored, "the rest of the set is accepted beside the jobs from before")
    client.close()


def test_a_set_of_which_nothing_can_be_taken_now_is_refused_as_a_whole(
    model: TinyModel, store_url: str, tmp_path: Any
) -> None:
    limits = {"max_waiting_chunks": 2, "chunk_items": 1}
    with running_api(model.directory, store_url, tmp_path, with_worker=False, **limits) as (api, _):
        assert {entry["status_code"] for entry in send(api.client, *numbered(5))} == {202}
        answers: list[httpx2.Response] = []

        def refused() -> bool:  # what waits is counted once a second
            answers.append(api.client.post("/v1/jobs/sets", json={"jobs": numbered(5)}))
            return answers[-1].status_code == 503

        eventually(refused, "a set is refused")
        assert answers[-1].json()["error"]["code"] == "overloaded"
        assert int(answers[-1].headers["retry-after"]) >= 1


@quick_on("sqlite")
def test_a_set_is_read_no_further_than_one_large_job(fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    api, _ = fresh
    monkeypatch.setattr(job_set, "TOKENS_AT_ONCE", 5)
    entries = send(api.client, *numbered(5))
    assert [entry["status_code"] for entry in entries] == [202, *[413] * 4]
    assert "another set" in entries[1]["body"]["error"]["message"]


@quick_on("sqlite")
def test_jobs_that_are_refused_after_long_reading_are_the_last_of_their_set(
    fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, _ = fresh
    refused_late = {"query": "a" * 400, "items": ["a"] * 100 + ["a" * 800], "label_token_ids": [70], "item_first": True}
    assert [entry["status_code"] for entry in send(api.client, refused_late, BODY)] == [400, 202]
    monkeypatch.setattr(job_set, "SECONDS_AT_ONCE", 0.0)
    first, *others = send(api.client, refused_late, BODY, BODY)
    assert "context" in first["body"]["error"]["message"]
    assert [entry["body"]["error"]["code"] for entry in others] == ["request_too_large"] * 2
    assert "s to read: send it in another set" in others[0]["body"]["error"]["message"]


def test_a_dry_run_is_sent_alone(api: RunningApi) -> None:
    [entry] = send(api.client, BODY | {"dry_run": True})
    assert (entry["status_code"], entry["body"]["error"]["code"]) == (400, "unsupported_parameter")


@pytest.mark.parametrize("models_bytes", [1, 2**29])
def test_a_set_names_any_number_of_models_and_those_without_room_are_refused_alone(
    model: TinyModel, sqlite_url: str, tmp_path: Any, models_bytes: int
) -> None:
    with (
        running_api(model.directory, sqlite_url, tmp_path, with_worker=False, models_bytes=models_bytes) as (api, _),
        closing(Listing(api)) as listing,
    ):
        listing.put(*(described(name, model.directory) for name in "abc"))
        waiting = [BODY | {"model": name} for name in (7, "tiny", *"abc", "a")]
        rounds = 0
        while len(waiting) > 1:
            entries = send(api.client, *waiting)
            assert entries[0]["body"]["error"]["param"] == "model"
            refused = [n for n, entry in enumerate(entries) if entry["status_code"] == 503]
            assert {entries[n]["retry_after"] for n in refused} <= {1}
            assert len(refused) < len(waiting) - 1, "some are taken each time"
            waiting = [waiting[0], *(waiting[n] for n in refused)]
            rounds += 1
        assert (rounds == 1) == (models_bytes > 1)


def test_jobs_of_a_set_that_a_limit_refuses_are_counted(model: TinyModel, sqlite_url: str, tmp_path: Any) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, max_item_characters=10) as (api, _):
        long = BODY | {"items": ["a" * 11]}
        assert [entry["status_code"] for entry in send(api.client, long, BODY, long, {})] == [413, 202, 413, 400]
        counted = 'scoreline_refused_requests_total{limit="max_item_characters"} 2.0'
        assert counted in api.client.get("/metrics").text
