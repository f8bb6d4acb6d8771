"""One API, several models: added, changed and retired under load, while processes are killed."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from tests.end_to_end.deployment import AUTHORIZATION, Deployment
from tests.end_to_end.small_models import ITEMS, LABELS, QUERY, add_weights, expected_scores
from tests.forked.running import DEPLOYED, run
from tests.scoring.tokenizing.tokenizer_families import llama3, mistral_v03, qwen2_5
from tests.services import RedisServer, wait_until

pytestmark = pytest.mark.slow

CALLS = int(os.environ.get("CALLS_OF_SEVERAL_MODELS", "600"))
JOBS = 50
CALLERS = 6
BODY = {"query": QUERY, "items": ITEMS, "labels": LABELS}
PASSING = {503: {"model_unavailable", "overloaded", "storage_unavailable", "server_stopping"}, 504: {"timeout"}}
"""The refusals that a client may get while processes are killed: it sends the request again."""


class Models:
    """The checkpoints, what each gives, and which of them a name may mean now."""

    def __init__(self, folder: Path) -> None:
        made = {
            "alpha": add_weights(qwen2_5(folder / "alpha").directory, architectures=["Qwen2ForCausalLM"]),
            "beta": add_weights(llama3(folder / "beta").directory, architectures=["LlamaForCausalLM"]),
            "gamma": add_weights(mistral_v03(folder / "gamma").directory, architectures=["MistralForCausalLM"]),
            "delta": add_weights(qwen2_5(folder / "delta").directory, seed=8, architectures=["Qwen2ForCausalLM"]),
            "beta-2": add_weights(llama3(folder / "beta-2").directory, seed=9, architectures=["LlamaForCausalLM"]),
        }
        self.directories = made
        self.expected = {name: expected_scores(path, QUERY, ITEMS, LABELS) for name, path in made.items()}
        self.means = {"alpha": {"alpha"}, "beta": {"beta"}, "gamma": {"gamma"}}
        self.retired: set[str] = set()

    def which(self, scores: list[list[float]]) -> str:
        """Return the checkpoint that gave some scores."""
        found = [name for name, one in self.expected.items() if np.allclose(scores, one, atol=1e-5)]
        assert len(found) == 1, found
        return found[0]


class Load:
    """Callers that send calls and jobs until all are answered."""

    def __init__(self, url: str, models: Models) -> None:
        self.url = url
        self.models = models
        self.answered = Counter[str]()
        self.refused = Counter[tuple[int, str]]()
        self.jobs: dict[str, str] = {}  # ids, with what their models may be
        self.faults: list[str] = []
        self._left = CALLS
        self._lock = threading.Lock()

    def run(self, seed: int) -> None:
        choice = random.Random(seed)
        with httpx2.Client(base_url=self.url, timeout=60.0, trust_env=False, headers=AUTHORIZATION) as client:
            while self._take():
                name = choice.choice([*self.models.means])
                before = set(self.models.means[name])
                is_job = choice.random() < JOBS / CALLS
                self._send(client, name, before, is_job=is_job)

    def _take(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left >= 0

    def _send(self, client: httpx2.Client, name: str, before: set[str], *, is_job: bool) -> None:
        """Send one request until it is answered."""
        while True:
            try:
                answer = client.post("/v1/jobs" if is_job else "/v1/score", json={**BODY, "model": name})
            except httpx2.TransportError:
                self.refused[0, "the api was killed"] += 1
                time.sleep(0.05)
                continue
            body = answer.json()
            if answer.status_code in (200, 202):
                self._take_answer(name, before, body, is_job=is_job)
                return
            code = body["error"]["code"]
            self.refused[answer.status_code, code] += 1
            if answer.status_code == 404 and name in self.models.retired:
                return
            if code not in PASSING.get(answer.status_code, ()):
                self.faults.append(f"{name}: {answer.status_code} {answer.text}")
                return
            time.sleep(0.05)

    def _take_answer(self, name: str, before: set[str], body: dict[str, Any], *, is_job: bool) -> None:
        if body["model"] != name:
            self.faults.append(f"{name} was answered by {body['model']}")
        if is_job:
            self.jobs[body["id"]] = name
            return
        found = self.models.which(body["scores"])
        self.answered[found] += 1
        if found not in before | self.models.means.get(name, set()):
            self.faults.append(f"{name} was scored by {found}")


def catalogue(deployment: Deployment, *words: str) -> None:
    """Change the catalogue as an operator does."""
    ended = run("-m", "operations.models", *words, imports=DEPLOYED, environment=deployment.environment)
    assert ended.returncode == 0, ended.stderr


def test_models_come_and_go_under_load_and_nothing_is_lost(
    tmp_path: Path, postgres_url: str, redis_server: RedisServer
) -> None:
    models = Models(tmp_path / "checkpoints")
    deployment = Deployment(
        tmp_path,
        postgres_url,
        redis_server.url,
        model=models.directories["alpha"],
        model_name="alpha",
        dtype="float32",
        lease_seconds=3,
        worker_fresh_seconds=4,
        prefix_cache_bytes=2**24,
    )
    several = {"SCORELINE_WORKER_MODELS": "beta,gamma,delta", "SCORELINE_WORKER_MODELS_BYTES": str(3 * 2**24)}
    with deployment:
        for name in ("beta", "gamma"):
            catalogue(deployment, "add", "--model", str(models.directories[name]), name)
        alpha = deployment.start_worker("alpha")
        deployment.environment |= several
        worker = deployment.start_worker("several")
        api = deployment.start_api()
        load = Load(str(deployment.client.base_url), models)
        with ThreadPoolExecutor(CALLERS) as callers:
            calling = [callers.submit(load.run, seed) for seed in range(CALLERS)]

            def answered(share: float) -> None:
                wait_until(
                    lambda: load.answered.total() >= share * CALLS or all(one.done() for one in calling), "", 240
                )

            answered(0.1)
            catalogue(deployment, "add", "--model", str(models.directories["delta"]), "delta")
            wait_until(lambda: deployment.client.get("/v1/models/delta").status_code == 200, "delta is served")
            models.means["delta"] = {"delta"}
            answered(0.25)
            worker.kill()
            worker = deployment.start_worker("several-2")
            answered(0.4)
            models.means["beta"].add("beta-2")
            catalogue(deployment, "set", "--model", str(models.directories["beta-2"]), "beta")
            wait_until(lambda: load.answered["beta-2"] > 0, "the second revision answers", 60)
            models.means["beta"].discard("beta")
            answered(0.6)
            api.kill()
            deployment.start_api()
            answered(0.7)
            models.retired.add("gamma")
            catalogue(deployment, "retire", "gamma")
            wait_until(lambda: deployment.client.get("/v1/models/gamma").status_code == 404, "gamma is gone")
            del models.means["gamma"]
            answered(0.8)
            alpha.kill()
            del deployment.environment["SCORELINE_WORKER_MODELS"]
            deployment.start_worker("alpha-2")
            for one in calling:
                one.result(240)
        for job_id, name in load.jobs.items():
            found = models.which(deployment.result(job_id)["scores"])
            assert found == name or (name, found) == ("beta", "beta-2")
    assert load.faults == []
    assert {*load.answered} == {*models.directories}
    assert load.answered.total() + len(load.jobs) + load.refused[404, "model_not_found"] == CALLS
    print(load.answered, load.refused, len(load.jobs))
