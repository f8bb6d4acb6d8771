"""Calls to ``/v1/score`` while a worker is busy with a large job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.deployment import Deployment
from tests.services import PostgresServer, RedisServer, wait_until

ITEMS = 3_000
CALLS = 5


@pytest.mark.slow
def test_calls_are_scored_correctly_while_the_batch_of_a_large_job_is_running(
    tmp_path: Path, postgres: PostgresServer, redis_server: RedisServer
) -> None:
    """The batch holds the whole job. So a call that waited for the batch would be answered after the job has ended."""
    sentence = "It was a long day by the sea, and the weather stayed as fine as anybody could remember."
    job = {
        "query": "Query: what is the weather like?\n",
        "items": [f"Document {n}: {sentence}\nRelevant:" for n in range(ITEMS)],
        "labels": [" yes", " no"],
        "priority": "bulk",
    }
    calls = [
        {
            "query": f"Query: who wrote poem {n}?\n" * (1 + 6 * n),
            "items": [f"Document: Poem {n} was written at night.\nRelevant:"],
            "labels": [" yes", " no"],
            "return_logits": True,
        }
        for n in range(CALLS)
    ]
    deployment = Deployment(
        tmp_path, postgres.url(postgres.create_database()), redis_server.url, claim_seconds=3_600, poll_seconds=600
    )
    with deployment:
        deployment.migrate()
        deployment.start_api()
        deployment.start_worker()

        def score(body: dict[str, object]) -> dict[str, object]:
            response = deployment.client.post("/v1/score", json=body)
            assert response.status_code == 200, response.text
            answer: dict[str, object] = response.json()
            return {name: answer[name] for name in ("scores", "logits")}

        job_id = deployment.submit(job)
        wait_until(lambda: deployment.job(job_id)["progress"]["scored_items"] > 0, "the job is being scored")
        beside = [score(body) for body in calls]
        progress = deployment.job(job_id)
        assert progress["status"] == "running"
        assert progress["progress"]["scored_items"] < ITEMS
        wait_until(lambda: deployment.job(job_id)["status"] == "succeeded", "the job to end", 180)

        def batches() -> list[int]:
            return [line["items"] for line in deployment.events("worker", "scored") if not line["interactive"]]

        wait_until(lambda: bool(batches()), "the worker says that it has scored the job")
        assert batches() == [ITEMS]
        assert [score(body) for body in calls] == beside  # == on floats: bit for bit
