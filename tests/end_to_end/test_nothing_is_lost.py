"""Real processes are killed: every accepted job is still scored, with the same scores."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.end_to_end.deployment import Deployment
from tests.services import PostgresServer, RedisServer, wait_until

LEASE_SECONDS = 2


def long_job(items: int) -> dict[str, object]:
    """Return a job that takes the demonstration model some seconds: every item is a page of text."""
    pages = [" ".join(f"Sentence {i} of page {n} is about the weather." for i in range(40)) for n in range(items)]
    return {
        "query": "Query: what is the weather like?\n",
        "items": [f"Document: {page}\nRelevant:" for page in pages],
        "labels": [" yes", " no"],
        "return_logprobs": True,
        "return_logits": True,
    }


@pytest.fixture
def deployment(tmp_path: Path, postgres: PostgresServer, redis_server: RedisServer) -> Deployment:
    return Deployment(
        tmp_path,
        postgres.url(postgres.create_database()),
        redis_server.url,
        lease_seconds=LEASE_SECONDS,
        sweep_seconds=0.5,
        poll_seconds=0.5,
        chunk_items=5,
    )


@pytest.mark.slow
def test_killing_a_worker_in_the_middle_of_a_job_changes_no_score(deployment: Deployment) -> None:
    with deployment:
        deployment.migrate()
        deployment.start_api()
        worker = deployment.start_worker()
        undisturbed = deployment.result(deployment.submit(long_job(20)))

        job_id = deployment.submit(long_job(20))
        wait_until(lambda: deployment.job(job_id)["progress"]["scored_items"] > 0, "the first scores")
        worker.send_signal(signal.SIGSTOP)
        scored = deployment.job(job_id)["progress"]["scored_items"]
        worker.kill()
        worker.wait()
        assert 0 < scored < 20, "the kill came too late to interrupt anything"
        assert deployment.job(job_id)["status"] == "running"

        deployment.start_worker("second-worker")
        disturbed = deployment.result(job_id)
        for field in ("scores", "logprobs", "logits"):
            assert disturbed[field] == undisturbed[field], field  # == on floats: bit for bit


@pytest.mark.slow
def test_no_job_is_lost_when_redis_is_emptied_while_jobs_wait(
    deployment: Deployment, redis_server: RedisServer
) -> None:
    body = {"query": "Query: tea\n", "items": ["Document: Green tea.\nRelevant:"], "labels": [" yes", " no"]}
    with deployment:
        deployment.migrate()
        deployment.start_api()
        worker = deployment.start_worker()
        worker.send_signal(signal.SIGSTOP)  # so that all of them wait, and their rings with them
        job_ids = [deployment.submit(body) for _ in range(30)]
        redis_server.flush()
        worker.send_signal(signal.SIGCONT)
        scores = [deployment.result(job_id)["scores"] for job_id in job_ids]
        assert scores == scores[:1] * len(job_ids)


@pytest.mark.slow
def test_a_shuffled_backlog_is_claimed_as_groups_by_query(deployment: Deployment) -> None:
    queries = ["Query: how do I repair a bicycle?\n"] * 100 + ["Query: what is a good soup recipe?\n"] * 100
    random.Random(7).shuffle(queries)
    with deployment:
        deployment.migrate()
        deployment.start_api()
        job_ids = [
            deployment.submit({"query": query, "items": [f"Document: note {n}.\nRelevant:"], "labels": [" yes", " no"]})
            for n, query in enumerate(queries)
        ]
        deployment.start_worker()
        for job_id in job_ids:
            deployment.result(job_id, 180)
        wait_until(
            lambda: sum(line["chunks"] for line in deployment.events("worker", "scored")) >= len(job_ids), "its log"
        )
        claims = deployment.events("worker", "scored")
    assert sum(line["chunks"] for line in claims) == len(job_ids)
    groups = sum(line["groups"] for line in claims)
    print(f"{len(job_ids)} jobs of 2 queries: {len(claims)} claims, {groups} groups in them")
    # At most one claim reaches past the end of one query's backlog into the other's.
    assert groups <= len(claims) + 1
    assert len(claims) < 13
