"""Two versions of a model run at once, as in the middle of an upgrade: neither scores the other's work."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.deployment import MODEL, Deployment
from tests.services import PostgresServer, RedisServer, wait_until

BODY = {
    "query": "Review: The room was spotless and the staff were lovely.\nSentiment:",
    "items": ["", " very"],
    "labels": [" positive", " negative"],
    "return_logprobs": True,
}
REFUSED = "the workers serve something else: work is refused"


def with_another_tokenizer(directory: Path) -> Path:
    """Copy the demonstration model with the ids of two tokens exchanged."""
    shutil.copytree(MODEL, directory)
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    ids = tokenizer["model"]["vocab"]
    ids["Ġpositive"], ids["Ġnegative"] = ids["Ġnegative"], ids["Ġpositive"]
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return directory


@pytest.fixture
def versions(
    tmp_path: Path, postgres: PostgresServer, redis_server: RedisServer
) -> Iterator[tuple[Deployment, Deployment]]:
    """The old and the new version under one name, on one database and one Redis. Nothing runs yet."""
    changed = with_another_tokenizer(tmp_path / "changed")
    database_url = postgres.url(postgres.create_database())
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    settings = {"lease_seconds": 2, "sweep_seconds": 0.5, "poll_seconds": 0.2}
    with (
        Deployment(tmp_path / "old", database_url, redis_server.url, **settings) as old,
        Deployment(tmp_path / "new", database_url, redis_server.url, model=changed, **settings) as new,
    ):
        yield old, new


@pytest.mark.slow
def test_a_half_upgraded_deployment_scores_nothing_wrongly(versions: tuple[Deployment, Deployment]) -> None:
    old, new = versions
    old.migrate()
    old.start_api()
    new.start_worker()

    # The only worker has another tokenizer: nothing is accepted that it could get, once the API has looked at the
    # workers again. Work that is accepted before that waits, because no claim gives it to this worker.
    wait_until(lambda: old.client.get("/readyz").status_code == 503, "the API to know the worker")
    for path in ("/v1/jobs", "/v1/score"):
        response = old.client.post(path, json=BODY)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "model_unavailable")
        assert int(response.headers["retry-after"]) >= 1
    response = old.client.get("/readyz")
    assert response.status_code == 503
    assert "tokenizer or classes: " in response.json()["error"]["message"]
    (line,) = old.events("api", REFUSED)
    (difference,) = line["differences"]
    assert difference.startswith("tokenizer or classes: ")
    assert difference in response.json()["error"]["message"]

    # With a worker of its own the old version serves, beside the new one.
    old_worker = old.start_worker()
    new.start_api()
    both = {"live": 2, "matching": 1}
    wait_until(lambda: old.client.get("/readyz").json().get("workers") == both, "the old API to know both workers")
    expected = old.result(old.submit(BODY))
    assert expected["scores"] != new.result(new.submit(BODY))["scores"], "the two could not be told apart"

    # The old worker dies with a job accepted for it. The new one works on, past it.
    old_worker.send_signal(signal.SIGSTOP)
    job_id = old.submit(BODY)
    old_worker.kill()
    old_worker.wait()
    for _ in range(3):
        new.result(new.submit(BODY))
    assert old.job(job_id)["status"] == "queued"

    old.start_worker("old-worker-again")
    assert old.result(job_id)["scores"] == expected["scores"]
    assert old.result(job_id)["logprobs"] == expected["logprobs"]  # == on floats: bit for bit
    wait_until(lambda: len(old.events("old-worker-again", "scored")) == 1, "its log")
