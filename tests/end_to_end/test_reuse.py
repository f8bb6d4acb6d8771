"""Scores that are used again have the bits that the engine computes, whichever way their items come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scoreline.client import Client
from tests.end_to_end.deployment import KEY, Deployment
from tests.services import RedisServer, wait_until

LABELS = [" positive", " negative"]
QUERY = "Review: "
WORDS = ["lovely", "awful", "clean", "cold", "late", "kind", "loud", "calm"]
ITEMS = [f"The {one} room and the {other} staff.\nSentiment:" for one in WORDS for other in WORDS]


@pytest.mark.slow
def test_jobs_uploads_and_batches_reuse_scores_and_deletions_remove_them(
    tmp_path: Path, postgres_url: str, redis_server: RedisServer
) -> None:
    deployment = Deployment(tmp_path, postgres_url, redis_server.url, reuse_scores_seconds=600)
    with deployment:
        deployment.migrate()
        deployment.start_worker()
        deployment.start_api()
        with Client(str(deployment.client.base_url), api_key=KEY) as client:
            for options in ({}, {"apply_softmax": True}, {"label_scoring": "sequence"}):
                body: dict[str, Any] = {"query": QUERY, "items": ITEMS, "labels": LABELS, **options}
                first = client.wait(client.submit(QUERY, ITEMS, labels=LABELS, **options))
                assert first.reused_items == 0
                assert first.result is not None
                changed = [*ITEMS[:10], "The plate was blue.\nSentiment:", *ITEMS[10:]]
                again = client.wait(client.submit(QUERY, changed, labels=LABELS, **options))
                assert again.result is not None
                assert again.reused_items == len(ITEMS)
                assert [*again.result.scores[:10], *again.result.scores[11:]] == first.result.scores
                assert _without_algorithms(again.raw) == _without_algorithms(first.raw)
                whole = client.submit(QUERY, ITEMS, labels=LABELS, **options)
                assert whole.status == "succeeded", "it ends with its acceptance"
                assert client.result(whole).scores == first.result.scores
                computed = deployment.client.post("/v1/jobs", json=body, headers={"Cache-Control": "no-cache"}).json()
                found = client.wait(computed["id"])
                assert found.reused_items == 0
                assert found.result is not None
                assert found.result.scores == first.result.scores

            # The lines of a batch and of an upload.
            expected = client.score(QUERY, ITEMS[:3], labels=LABELS).scores
            upload = "\n".join(json.dumps(line) for line in ({"query": QUERY, "labels": LABELS}, *ITEMS[:3]))
            headers = {"Content-Type": "application/x-ndjson"}
            sent = deployment.client.post("/v1/jobs", content=upload, headers=headers).json()
            assert (sent["status"], sent["usage"]["reused_items"]) == ("succeeded", 3)
            assert client.result(sent["id"]).scores == expected
            requests = {
                str(n): {"query": QUERY, "items": [item], "labels": LABELS}
                for n, item in enumerate([*ITEMS[:3], "The plate was blue.\nSentiment:"])
            }
            batch = client.wait_batch(client.batch(requests))
            results = [one.scores for one in client.batch_results(batch) if one.scores is not None]
            assert [one.scores[0] for one in results[:3]] == expected
            assert [one.raw["usage"]["reused_items"] for one in results] == [1, 1, 1, 1]

            metrics = deployment.client.get("/metrics").text
            assert "scoreline_tenant_reused_items_total" in metrics
            for job in list(client.jobs()):
                client.delete(job)
            client.delete_batch(batch)
            anew = client.submit(QUERY, ITEMS, labels=LABELS)
            wait_until(lambda: client.get(anew).ended, "the job to end")
            assert client.get(anew).reused_items == 0, "nothing of it is kept any more"


def _without_algorithms(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{name: value for name, value in one.items() if name != "algorithms"} for one in job["provenance"]]
