"""OpenAI's own client, unmodified, works here, and repeats no call that would become a second job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from sqlalchemy import select

from api.budget import Kind
from jobs.store.tables import jobs
from jobs.tenancy.keys import Scope, create_key
from tests.api.serving import KEY, UNKNOWN_KEY, RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is", ""], "label_token_ids": [70, 71]}


def client_of(api: RunningApi, key: str = "EMPTY", **options: Any) -> OpenAI:
    """Return the client, which sends a key in any case."""
    return OpenAI(api_key=key, base_url=f"{api.url}/v1", **options)


def score(client: OpenAI, **changes: Any) -> Any:
    return client.post("/score", cast_to=object, body=BODY | changes)


def statuses(api: RunningApi) -> list[str]:
    """Return the statuses of all jobs."""
    with api.app.state.service.store.database.read() as tx:
        return list(tx.scalars(select(jobs.c.status).order_by(jobs.c.id)))


def test_a_server_without_keys_takes_any_key_of_the_client(api: RunningApi) -> None:
    ours = api.score(**BODY)
    theirs = score(client_of(api))
    assert theirs["scores"] == ours["scores"]


def test_models_are_listed_and_retrieved(api: RunningApi) -> None:
    client = client_of(api)
    (model,) = client.models.list()
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "scoreline")
    assert client.models.retrieve("tiny") == model
    assert client.models.retrieve("default") == model
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("org/gpt-17")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert "org/gpt-17" in caught.value.message


def test_a_model_of_the_hub_is_retrieved_by_its_name_with_a_slash(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, model_name="Org/Tiny-1") as (api, _):
        assert client_of(api).models.retrieve("Org/Tiny-1").id == "Org/Tiny-1"


def test_default_is_the_served_model(api: RunningApi) -> None:
    assert score(client_of(api), model="default")["model"] == "tiny"
    answer = api.client.post("/v1/rerank", json={"model": "default", "query": "London", "documents": ["Paris"]})
    assert answer.json()["model"] == "tiny"
    assert api.submit(**BODY, model="default")["model"] == "tiny"
    assert api.client.post("/v1/tokenize", json={"model": "default", "text": "a"}).json()["model"] == "tiny"


def test_errors_of_requests_are_the_exceptions_of_the_client(api: RunningApi) -> None:
    client = client_of(api)
    with pytest.raises(openai.BadRequestError) as invalid:
        score(client, label_token_ids=[])
    assert (invalid.value.code, invalid.value.param) == ("empty_label_token_ids", "label_token_ids")
    assert invalid.value.type == "invalid_request_error"
    assert invalid.value.request_id
    with pytest.raises(openai.NotFoundError) as missing:
        score(client, model="gpt-17")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError) as stranger:
        client_of(api, UNKNOWN_KEY).models.list()
    assert stranger.value.code == "invalid_api_key"


def test_errors_of_keys_and_limits_are_the_exceptions_of_the_client(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"host": "0.0.0.0", "with_worker": False, "max_open_requests_per_tenant": 1}
    with running_api(model.directory, sqlite_url, tmp_path, **settings) as (api, _):
        database = api.app.state.service.store.database
        key, _ = create_key(database, "acme", "reads", [Scope.READ])
        with pytest.raises(openai.PermissionDeniedError) as forbidden:
            score(client_of(api, key))
        assert forbidden.value.code == "insufficient_scope"
        with pytest.raises(openai.AuthenticationError):
            client_of(api, "EMPTY").models.list()
        client = client_of(api, KEY, max_retries=0)
        with pytest.raises(openai.InternalServerError) as unavailable:
            score(client)
        assert (unavailable.value.status_code, unavailable.value.code) == (503, "model_unavailable")
        assert int(unavailable.value.response.headers["retry-after"]) >= 1


def test_too_many_requests_are_a_rate_limit_error(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"max_buffered_body_bytes_per_tenant": 10}
    with running_api(model.directory, sqlite_url, tmp_path, **settings) as (api, _):
        with pytest.raises(openai.RateLimitError) as caught:
            score(client_of(api, max_retries=0))
        assert caught.value.code == "too_many_open_requests"


@pytest.fixture
def held(on_sqlite: tuple[RunningApi, StandInWorker]) -> Iterator[RunningApi]:
    """A server whose worker claims nothing."""
    api, worker = on_sqlite
    worker.gate.clear()
    yield api
    worker.gate.set()


def test_a_call_that_timed_out_is_not_repeated_and_names_its_job(on_sqlite: tuple[RunningApi, StandInWorker]) -> None:
    api, worker = on_sqlite
    worker.gate.clear()
    with pytest.raises(openai.InternalServerError) as caught:
        score(client_of(api, max_retries=3), timeout=0.2)
    assert (caught.value.status_code, caught.value.code) == (504, "timeout")
    assert statuses(api) == ["queued"], "the client was told not to repeat it"
    body = caught.value.body
    assert isinstance(body, dict)
    worker.gate.set()
    job = api.wait(body["job_id"])
    assert job["status"] == "succeeded"
    assert caught.value.response.headers["location"] == job["urls"]["self"]


def test_a_client_that_waits_no_longer_leaves_no_job_running_however_often_it_tries(held: RunningApi) -> None:
    with pytest.raises(openai.APITimeoutError):
        score(client_of(held, timeout=0.5, max_retries=1))
    budget = held.budget
    eventually(lambda: budget.open[Kind.REQUEST].used.total == 0, "the server gives the calls up")
    assert set(statuses(held)) <= {"cancelled"}


def test_with_an_idempotency_key_repeated_calls_are_one_job(on_sqlite: tuple[RunningApi, StandInWorker]) -> None:
    api, worker = on_sqlite
    worker.gate.clear()
    headers = {"Idempotency-Key": "once"}
    client = client_of(api, timeout=0.5, max_retries=2)
    with pytest.raises(openai.APITimeoutError):
        client.post("/score", cast_to=object, body=BODY, options={"headers": headers})
    eventually(lambda: len(statuses(api)) == 1, "the call is stored")
    worker.gate.set()
    patient = client_of(api)
    first, second = (patient.post("/score", cast_to=object, body=BODY, options={"headers": headers}) for _ in range(2))
    assert first == second
    assert statuses(api) == ["succeeded"]
