"""Cohere's own client, unmodified, ranks documents here, and leaves no job running whatever becomes of its call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import cohere
import httpx
import pytest
from cohere.core.api_error import ApiError
from cohere.errors import BadRequestError, GatewayTimeoutError, UnauthorizedError
from sqlalchemy import select

from api.budget import Kind
from jobs.store.tables import jobs
from tests.api.serving import KEY, UNKNOWN_KEY, RunningApi, StandInWorker, eventually

QUERY = "What is in England"
DOCUMENTS = ["London", "Paris is in France", "The answer is 4", "item after item"]


def client_of(api: RunningApi, key: str = KEY, timeout: float = 20.0) -> cohere.ClientV2:
    return cohere.ClientV2(api_key=key, base_url=api.url, timeout=timeout)


def statuses(api: RunningApi) -> list[str]:
    """Return the statuses of all jobs."""
    with api.app.state.service.store.database.read() as tx:
        return list(tx.scalars(select(jobs.c.status).order_by(jobs.c.id)))


def test_the_second_version_of_the_client_ranks(api: RunningApi) -> None:
    ours = api.client.post("/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS}).json()["results"]
    answer = client_of(api).rerank(model="tiny", query=QUERY, documents=DOCUMENTS, top_n=3, max_tokens_per_doc=100)
    found = [(result.index, result.relevance_score) for result in answer.results]
    assert found == [(result["index"], result["relevance_score"]) for result in ours[:3]]
    assert answer.id is not None
    assert answer.id.startswith("job_")
    assert answer.meta is not None
    assert answer.meta.billed_units is not None
    assert answer.meta.billed_units.search_units == 1


def test_the_first_version_of_the_client_ranks_and_gets_documents(api: RunningApi) -> None:
    client = cohere.Client(api_key=KEY, base_url=api.url)
    answer = client.rerank(model="tiny", query=QUERY, documents=DOCUMENTS, return_documents=True)
    assert sorted(result.index for result in answer.results) == [0, 1, 2, 3]
    for result in answer.results:
        assert result.document is not None
        assert result.document.text == DOCUMENTS[result.index]


def test_errors_are_the_exceptions_of_the_client(api: RunningApi) -> None:
    with pytest.raises(BadRequestError) as caught:
        client_of(api).rerank(model="tiny", query=QUERY, documents=DOCUMENTS, top_n=0)
    assert caught.value.body["error"]["code"] == "invalid_request"
    with pytest.raises(UnauthorizedError):
        client_of(api, UNKNOWN_KEY).rerank(model="tiny", query=QUERY, documents=DOCUMENTS)


@contextmanager
def held(on_sqlite: tuple[RunningApi, StandInWorker]) -> Iterator[RunningApi]:
    """Give a server whose worker claims nothing during the block."""
    api, worker = on_sqlite
    worker.gate.clear()
    yield api
    worker.gate.set()


def test_calls_that_the_client_repeats_leave_no_job_running(on_sqlite: tuple[RunningApi, StandInWorker]) -> None:
    with held(on_sqlite) as api:
        with pytest.raises(GatewayTimeoutError) as caught:
            client_of(api).rerank(
                model="tiny",
                query=QUERY,
                documents=DOCUMENTS,
                request_options={"max_retries": 1, "additional_body_parameters": {"timeout": 0.2}},
            )
        assert isinstance(caught.value, ApiError)
        found = statuses(api)
        assert len(found) == 2, "the client calls once more after a 504"
        assert set(found) <= {"cancelled", "expired"}


def test_a_client_that_waits_no_longer_leaves_no_job_running(on_sqlite: tuple[RunningApi, StandInWorker]) -> None:
    with held(on_sqlite) as api:
        with pytest.raises(httpx.TimeoutException):
            client_of(api, timeout=1.0).rerank(model="tiny", query=QUERY, documents=DOCUMENTS)
        budget = api.budget
        eventually(lambda: budget.open[Kind.REQUEST].used.total == 0, "the server gives the call up")
        # On a slow machine the client may have gone before the job was stored.
        assert set(statuses(api)) <= {"cancelled"}
