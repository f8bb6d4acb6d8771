"""The list of models is one for clients of OpenAI's interface and one for clients of System One."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from tests.api.serving import RunningApi, eventually, running_api
from tests.api.tiny_model import TinyModel


def test_each_name_that_a_request_may_give_is_listed_with_the_day_since_which_it_is_served(api: RunningApi) -> None:
    eventually(lambda: api.client.get("/v1/models").json()["data"][0]["live_workers"] == 1, "the worker is seen")
    answer = api.client.get("/v1/models")
    (model,) = answer.json()["data"]
    since = datetime.fromtimestamp(model["created"], UTC).strftime("%Y-%m-%d")
    described = {"description": answer.json()["models"][0]["description"], "release_date": since}
    assert answer.json()["models"] == [{"name": name, **described} for name in ("tiny", "default")]
    assert "tiny" in described["description"]
    assert str(model["max_model_len"]) in described["description"]
    assert answer.headers["x-typesafe-request-id"] == answer.headers["x-request-id"]


def test_a_model_without_workers_is_served_since_today(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, model_name="default") as (api, _):
        before = datetime.now(UTC).strftime("%Y-%m-%d")
        (named,) = api.client.get("/v1/models").json()["models"]
        assert named["name"] == "default"
        assert before <= named["release_date"] <= datetime.now(UTC).strftime("%Y-%m-%d")
