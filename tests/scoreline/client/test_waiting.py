"""Waiting for jobs: their ends are exceptions unless they succeeded."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from scoreline import (
    Client,
    Conflict,
    Job,
    JobCancelled,
    JobEnd,
    JobEnded,
    JobExpired,
    JobFailed,
    JobProgress,
    JobScores,
    ScorelineError,
    TimedOut,
    Unavailable,
    Unreachable,
)
from scoreline.client.doubts import Doubts
from scoreline.client.exchange.flow import Exchange, Flow, Sleep
from scoreline.client.exchange.sending import Service
from scoreline.client.operations.batches import wait_batch
from scoreline.client.operations.jobs import PAGE_ITEMS
from scoreline.client.operations.waiting import wait
from scoring.conversion import warnings_of_scores
from tests.scoreline.client.unreliable import Got, Reply, answering
from tests.scoreline.running import Up


def test_a_job_that_was_cancelled_is_an_exception_with_the_job(shared_up: Up, client: Client) -> None:
    with shared_up.worker_frozen():
        cancelled = client.cancel(client.submit("a", ["b"], label_token_ids=[1]))
    with pytest.raises(JobCancelled, match=cancelled.id) as raised:
        client.wait(cancelled)
    assert raised.value.job is not None
    assert (raised.value.job.id, raised.value.job.status) == (cancelled.id, "cancelled")


@pytest.mark.parametrize(
    ("status", "error", "kind", "code"),
    [
        ("failed", {"code": "internal_error", "message": "no luck"}, JobFailed, "internal_error"),
        ("expired", None, JobExpired, "job_expired"),
    ],
)
def test_a_job_that_failed_or_has_expired_is_an_exception_with_the_job(
    job_object: dict[str, object], status: str, error: object, kind: type[JobEnded], code: str
) -> None:
    ended = {**job_object, "status": status, "error": error}
    with answering(lambda _: Reply(200, ended)) as server, Client(server.url) as client:
        with pytest.raises(kind) as raised:
            client.wait("job_1")
        assert (type(raised.value), raised.value.code, raised.value.job_id) == (kind, code, "job_1")
        assert raised.value.job is not None
        assert raised.value.job.status == status


def test_waiting_for_longer_than_the_caller_allows_is_a_timeout(job_object: dict[str, object]) -> None:
    asked: list[str] = []

    def answer(got: Got) -> Reply:
        asked.append(got.headers["Prefer"])
        return Reply(200, {**job_object, "status": "running"})

    with answering(answer) as server, Client(server.url) as client:
        with pytest.raises(TimedOut, match="job_1 is still running after") as raised:
            client.wait("job_1", 0.05)
        assert isinstance(raised.value, TimeoutError)
        assert raised.value.job_id == "job_1"
    assert asked[0] == "wait=1"


@pytest.mark.parametrize("operation", [wait, wait_batch])
@pytest.mark.parametrize(
    "failure",
    [Unreachable("unreachable", "no answer"), Unavailable("server_starting", "not yet", 503, retry_after=90.0)],
)
def test_whoever_waits_for_a_service_that_is_away_waits_as_long_as_the_caller_allows(
    monkeypatch: pytest.MonkeyPatch, operation: Callable[..., Flow[object]], failure: ScorelineError
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    service = Service("http://nowhere", timeout=30, retry_seconds=20, outage_seconds=300, was_reached=True)

    def carry_out(flow: Flow[object]) -> None:
        nonlocal now
        command = next(flow)
        while True:
            if isinstance(command, Sleep):
                now += command.seconds
                command = next(flow)
            else:
                assert isinstance(command, Exchange)
                if operation is wait:
                    assert command.request.headers["Prefer"] == f"wait={math.ceil(min(30, 40.5 - now))}"
                command = flow.throw(failure)

    with pytest.raises(TimedOut, match="the_id is not known to have ended in time"):
        carry_out(operation(service, "the_id", 40.5))
    assert now == 40.5


def test_the_progress_of_a_job_is_told_until_its_end(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Job] = []
    job = client.wait(client.submit("a", ["b", "c"], label_token_ids=[1]), progress=seen.append, bar=True)
    assert seen[-1] == job
    assert job.scored_items == 2
    shown = capsys.readouterr()
    assert "2/2" in shown.err
    assert shown.out == ""


def test_jobs_are_listed_over_pages_and_by_status(client: Client) -> None:
    made = [client.submit("a", ["b"], label_token_ids=[n]).id for n in range(5)]
    for job_id in made:
        client.wait(job_id)
    listed = [job.id for _, job in zip(range(5), client.jobs(status="succeeded", page_jobs=2), strict=False)]
    assert listed == made[::-1]
    behind = next(iter(client.jobs(after=made[-1])))
    assert behind.id == made[-2]


def test_all_scores_of_a_large_job_are_one_result(client: Client) -> None:
    items = [f"item {n}" for n in range(1_500)]
    job = client.wait(client.upload("a", items, label_token_ids=[1, 2], return_logprobs=True))
    assert job.result is None
    result = client.result(job)
    assert [len(result.scores), len(result.logprobs or []), len(result.label_mass or [])] == [1_500] * 3
    assert result.scores == [item.scores for item in client.scores(job)]
    assert result.logits is None


def test_the_result_of_a_large_job_has_all_that_the_result_of_a_small_one_has(client: Client) -> None:
    results = []
    for count in (3, PAGE_ITEMS + 1):
        items = [f"item {n % 3}" for n in range(count)]
        job = client.wait(client.upload("a", items, label_token_ids=[1], return_provenance=True))
        assert (job.result is None) == (count > PAGE_ITEMS)
        results.append(client.result(job))
    small, large = results
    assert large.provenance is not None
    assert large.provenance == small.provenance


@pytest.mark.parametrize(("label_scoring", "warned"), [("token", 1), ("sequence", 0)])
def test_the_result_of_a_large_job_warns_of_a_small_label_mass_of_one_token_labels(
    job_object: dict[str, object], label_scoring: str, warned: int
) -> None:
    line = {"index": 0, "scores": [0.5], "label_mass": 0.001}
    page = {"object": "list", "data": [line], "has_more": False, "next_offset": None}
    job = {**job_object, "status": "succeeded", "warnings": ["odd"], "label_scoring": label_scoring}

    def answer(got: Got) -> Reply:
        return Reply(200, page if "/scores" in got.path else job)

    with answering(answer) as server, Client(server.url) as client:
        odd, *others = client.result("job_1").warnings
    assert (odd, len(others)) == ("odd", warned)


@pytest.mark.parametrize("small", [0, 0.05, 0.1, 0.7])
@pytest.mark.parametrize("items", [0, 1, 99, 100, 1_234])
@pytest.mark.parametrize("labels", [1, 2, 9])
def test_the_warnings_of_a_large_job_are_those_of_the_service(items: int, small: float, labels: int) -> None:
    random = np.random.default_rng(0)
    mass = np.where(random.random(items) < small, 0.099, 0.5)
    scores, counts = random.random((items, labels)), random.integers(1, labels + 1, items, np.int32)
    scores[:, labels // 2 :] /= 1_000
    doubts = Doubts()
    for n in range(items):
        doubts.add(n, scores[n, : counts[n]].tolist(), float(mass[n]))
    assert doubts.warnings() == warnings_of_scores(mass, scores, counts)


def test_quantiles_of_the_label_mass_are_those_of_all_items() -> None:
    doubts, masses = Doubts(), np.random.default_rng(0).random(1_000)
    assert doubts.quantiles(0.5) == []
    for mass in masses.tolist():
        doubts.add(0, [1.0], mass)
    np.testing.assert_allclose(doubts.quantiles(0.1, 0.5, 0.9), np.quantile(masses, [0.1, 0.5, 0.9]), rtol=0.05)


def test_a_job_that_has_not_succeeded_has_no_result(shared_up: Up, client: Client) -> None:
    with shared_up.worker_frozen():
        scores = client.submit("a", ["b"], label_token_ids=[1])
        likelihoods = client.submit_likelihood("a", ["b"])
        with pytest.raises(Conflict, match="is still queued, so it has no result") as raised:
            client.result(scores)
        assert (raised.value.code, raised.value.job_id) == ("job_not_finished", scores.id)
        with pytest.raises(Conflict, match="is still queued, so it has no result"):
            client.likelihood_result(likelihoods)
        with pytest.raises(ValueError, match="a job of scores"):
            client.likelihood_result(scores)
        client.cancel(scores)
        client.cancel(likelihoods)
    with pytest.raises(JobCancelled):
        client.result(scores)
    with pytest.raises(JobCancelled):
        client.likelihood_result(likelihoods)


def test_a_dry_run_says_what_a_job_would_take_and_submits_nothing(client: Client) -> None:
    before = next(iter(client.jobs())).id if any(True for _ in client.jobs()) else None
    wanted = client.dry_run("a query that is long enough to be computed once " * 8, ["b", "c"], label_token_ids=[1])
    assert (wanted.total_items, wanted.waits_for) == (2, [])
    assert wanted.prompt_tokens > wanted.work > 0
    assert (next(iter(client.jobs())).id if before else None) == before


def test_events_tell_of_a_job_until_its_end(client: Client) -> None:
    job = client.submit("a", [f"item {n}" for n in range(300)], label_token_ids=[1])
    seen = list(client.events(job, scores=True))
    assert isinstance(seen[0], JobProgress | JobScores)
    assert isinstance(seen[-1], JobEnd)
    assert seen[-1].job is not None
    assert seen[-1].job.status == "succeeded"
    scores = [item for event in seen if isinstance(event, JobScores) for item in event.items]
    assert [item.index for item in scores] == list(range(300))
    middle = next(event for event in seen if isinstance(event, JobScores))
    again = list(client.events(job, scores=True, last_event_id=middle.id))
    left = [item for event in again if isinstance(event, JobScores) for item in event.items]
    assert left == scores[len(middle.items) :]
    assert list(client.events(job, last_event_id=seen[-1].id)) == []
