"""Likelihoods by the client: calls, jobs that are submitted, uploaded and read, events and batches."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest

from scoreline import AsyncClient, Client, Job, JobScores, LikelihoodResult
from scoreline.client.operations.jobs import PAGE_ITEMS
from tests.scoreline.client.unreliable import Got, Reply, answering, passed_on
from tests.scoreline.running import Up

QUERY = "The capital of"
ITEMS = [" France", "", " Japan is Tokyo"]
SHOWN = ("logprob", "num_tokens", "is_greedy", "token_logprobs", "tokens")


def columns(result: LikelihoodResult | None) -> list[Any]:
    """What was computed for the items, without what differs between two calls."""
    assert result is not None
    return [getattr(result, name) for name in SHOWN]


def test_likelihoods_come_in_the_order_of_the_items(client: Client) -> None:
    result = client.likelihood("The capital of", [" France", ""], return_tokens=True, return_token_logprobs=True)
    assert result.num_tokens == [len(client.tokenize(" France")), 0]
    assert result.tokens == [client.tokenize(" France"), []]
    assert result.token_logprobs is not None
    assert result.logprob[0] == pytest.approx(sum(value or 0 for value in result.token_logprobs[0]), rel=1e-5)
    assert (result.logprob[1], result.is_greedy[1]) == (0, True)


def test_a_job_of_likelihoods_has_what_the_call_has_however_it_is_sent_and_read(client: Client) -> None:
    shown: dict[str, Any] = {"return_token_logprobs": True, "return_tokens": True}
    wanted = client.likelihood(QUERY, ITEMS, **shown)
    submitted = client.submit_likelihood(QUERY, ITEMS, **shown, metadata={"run": "7"}, priority="bulk")
    assert (submitted.metadata, submitted.priority) == ({"run": "7"}, "bulk")
    for sent in (submitted, client.upload_likelihood(QUERY, iter(ITEMS), **shown)):
        job = client.wait(sent)
        assert (sent.kind, job.kind, job.result) == ("likelihood", "likelihood", None)
        assert columns(job.likelihoods) == columns(client.likelihood_result(job)) == columns(wanted)
        lines = list(client.likelihoods(job.id))
        assert [line.index for line in lines] == [0, 1, 2]
        assert [[getattr(line, name) for line in lines] for name in SHOWN] == columns(wanted)
    plain = client.wait(client.submit_likelihood(QUERY, ITEMS)).likelihoods
    assert plain is not None
    assert (plain.logprob, plain.token_logprobs, plain.tokens) == (wanted.logprob, None, None)


def test_a_job_of_likelihoods_is_made_once_for_a_key(client: Client) -> None:
    made = [client.submit_likelihood(QUERY, ITEMS, idempotency_key="likelihoods").id for _ in range(2)]
    assert made[0] == made[1]


def test_all_likelihoods_of_a_large_job_are_one_result(client: Client) -> None:
    items = [f" item {n}" for n in range(PAGE_ITEMS + 200)]
    job = client.wait(client.upload_likelihood("a", items, return_tokens=True))
    assert job.likelihoods is None
    result = client.likelihood_result(job)
    assert result.tokens is not None
    assert len(result.tokens) == len(result.logprob) == len(items)
    assert [len(tokens) for tokens in result.tokens] == result.num_tokens
    assert result.logprob == [line.logprob for line in client.likelihoods(job, page_items=700)]
    assert (result.token_logprobs, result.prompt_tokens) == (None, job.prompt_tokens)


def test_pages_that_are_shorter_than_asked_for_are_read_to_the_end(client: Client, shared_up: Up) -> None:
    job = client.wait(client.submit_likelihood("a", [" b"] * 7))

    def answer(got: Got) -> Reply:
        reply = passed_on(shared_up.url, got)
        if "/scores" not in got.path:
            return reply
        assert isinstance(reply.body, bytes)
        page = json.loads(reply.body)
        if len(page["data"]) > 2:
            page |= {"data": page["data"][:2], "has_more": True, "next_offset": page["data"][2]["index"]}
        return Reply(200, page)

    with answering(answer) as server, Client(server.url) as other:
        assert [line.index for line in other.likelihoods(job)] == list(range(7))


def test_a_job_is_read_by_what_it_holds(client: Client) -> None:
    of_likelihoods = client.wait(client.submit_likelihood(QUERY, ITEMS))
    of_scores = client.wait(client.submit(QUERY, ITEMS, label_token_ids=[5]))
    question = {"great": {"type": "noul", "instructions": "Is it great?"}}
    of_a_decision = client.wait(client.submit_decision("a", question))
    wrong: list[Callable[[], object]] = [
        lambda: next(client.scores(of_likelihoods)),
        lambda: client.result(of_likelihoods),
        lambda: next(client.likelihoods(of_scores)),
        lambda: client.likelihood_result(of_scores),
        lambda: client.likelihood_result(of_a_decision),
    ]
    for read in wrong:
        with pytest.raises(ValueError, match="read it"):
            read()


def test_events_have_the_likelihoods(client: Client) -> None:
    job = client.wait(client.submit_likelihood(QUERY, ITEMS))
    parts = [event for event in client.events(job, scores=True) if isinstance(event, JobScores)]
    assert [line for part in parts for line in part.likelihoods] == list(client.likelihoods(job))
    assert not any(part.items for part in parts)


def test_likelihoods_come_from_batches(client: Client) -> None:
    body = {"query": QUERY, "items": ITEMS}
    (one,) = client.batch_results(client.wait_batch(client.batch({"a": body}, endpoint="/v1/likelihood"), 60))
    assert (one.scores, one.ranking, one.error) == (None, None, None)
    assert columns(one.likelihoods) == columns(client.likelihood(QUERY, ITEMS))


def test_a_dry_run_of_likelihoods_submits_nothing(client: Client) -> None:
    newest = client.submit_likelihood(QUERY, ITEMS).id
    wanted = client.dry_run_likelihood(QUERY, ITEMS)
    assert (wanted.total_items, wanted.prompt_tokens) == (3, client.likelihood(QUERY, ITEMS).prompt_tokens)
    assert next(iter(client.jobs())).id == newest


def test_the_asynchronous_client_has_them_too(client: Client, shared_up: Up) -> None:
    async def found() -> tuple[LikelihoodResult | None, list[float | None]]:
        async with AsyncClient(shared_up.url) as other:
            job: Job = await other.wait(await other.upload_likelihood(QUERY, ITEMS))
            return job.likelihoods, [line.logprob async for line in other.likelihoods(job)]

    result, lines = asyncio.run(found())
    assert columns(result) == columns(client.likelihood(QUERY, ITEMS))
    assert lines == client.likelihood(QUERY, ITEMS).logprob


def test_the_options_of_jobs_of_likelihoods_are_those_of_jobs_and_of_calls() -> None:
    def options(method: Any) -> set[str]:
        return set(inspect.signature(method).parameters)

    of_jobs = options(Client.submit) - options(Client.score)
    of_calls = options(Client.likelihood) - {"timeout", "on_timeout"}
    assert options(Client.submit_likelihood) == options(Client.upload_likelihood) == of_jobs | of_calls
    assert options(Client.dry_run_likelihood) == (of_calls | {"priority"}) - {"idempotency_key"}
