"""Adapters of a folder: named in requests, scored as if merged, and changed while API and worker run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.architecture.config import DecoderConfig
from scoreline.client import Client, JobFailed, NotFound
from tests.end_to_end.deployment import KEY, Deployment
from tests.end_to_end.small_models import ITEMS, LABELS, QUERY, add_weights, expected_scores
from tests.model.adapters.folders import random_adapter
from tests.scoring.tokenizing.tokenizer_families import qwen2_5
from tests.services import RedisServer


def test_requests_name_adapters_that_come_and_go(tmp_path: Path, sqlite_url: str, redis_server: RedisServer) -> None:
    fields: dict[str, Any] = {"architectures": ["Qwen2ForCausalLM"], "rope_theta": 1e6, "tie_word_embeddings": True}
    directory = add_weights(qwen2_5(tmp_path / "tiny").directory, **fields)
    config, folder = DecoderConfig.from_directory(directory), tmp_path / "adapters"
    folder.mkdir()
    random_adapter(folder / "first", config, 1)
    deployment = Deployment(
        tmp_path,
        sqlite_url,
        redis_server.url,
        model=directory,
        model_name="tiny",
        dtype="float32",
        adapter_folder=folder,
    )
    with deployment:
        worker = deployment.start_worker()
        deployment.start_api()
        with Client(str(deployment.client.base_url), api_key=KEY) as client:

            def scores(model: str | None) -> np.ndarray:
                result = client.score(QUERY, ITEMS, labels=LABELS, model=model, return_provenance=True)
                assert result.raw["model"] == (model or "tiny")
                assert result.provenance is not None
                assert [one.model for one in result.provenance if one is not None] == [model or "tiny"]
                return np.array(result.scores)

            alone, first = scores(None), scores("tiny:first")
            assert np.abs(first - expected_scores(directory, QUERY, ITEMS, LABELS, folder / "first")).max() < 1e-5
            assert np.abs(first - alone).max() > 1e-3
            assert [model.id for model in client.models()] == ["tiny", "tiny:first"]
            with pytest.raises(NotFound, match="there is no model 'tiny:second'"):
                scores("tiny:second")
            random_adapter(folder / "second", config, 2)
            second = scores("tiny:second")
            assert np.abs(second - first).max() > 1e-3
            assert client.score(QUERY, ITEMS, labels=LABELS, model="second").scores == second.tolist()
            job = client.submit(QUERY, ITEMS, labels=LABELS, model="tiny:first")
            assert client.wait(job).result.scores == first.tolist()  # type: ignore[union-attr]
            assert client.get(job).raw["model"] == "tiny:first"
            shutil.rmtree(folder / "first")
            with pytest.raises(NotFound):
                scores("tiny:first")
            assert np.array_equal(scores("tiny:second"), second)
            assert np.array_equal(scores(None), alone)

            worker.terminate()
            worker.wait(20)
            waiting = [client.submit(QUERY, ITEMS, labels=LABELS, model=model) for model in ("tiny:second", "tiny")]
            shutil.rmtree(folder / "second")
            deployment.start_worker("later")
            with pytest.raises(JobFailed, match="there is no adapter 'second' any more"):
                client.wait(waiting[0])
            assert client.wait(waiting[1]).result.scores == alone.tolist()  # type: ignore[union-attr]
    assert "Traceback" not in "".join(map(deployment.log, ("worker", "later", "api")))
