"""Two models side by side: an API and workers for each, on one database (docs/several-models.md)."""

from __future__ import annotations

from pathlib import Path

from tests.api.serving import running_api
from tests.api.tiny_model import TinyModel
from tests.databases import quick_on

BODY = {"query": [1, 2], "items": [[3], [4]], "label_token_ids": [5, 6]}


@quick_on("sqlite")
def test_each_api_serves_its_model_and_shows_the_jobs_of_all(model: TinyModel, store_url: str, tmp_path: Path) -> None:
    with (
        running_api(model.directory, store_url, tmp_path / "one", model_name="tiny") as (one, _),
        running_api(model.directory, store_url, tmp_path / "two", model_name="two", with_worker=False) as (two, _),
    ):
        assert [shown["id"] for shown in two.client.get("/v1/models").json()["data"]] == ["two"]
        assert two.client.post("/v1/jobs", json={**BODY, "model": "tiny"}).json()["error"]["code"] == "model_not_found"
        waiting = two.client.post("/v1/jobs", json=BODY).json()["id"]
        scored = one.client.post("/v1/jobs", json=BODY).json()["id"]
        assert one.client.get(f"/v1/jobs/{scored}", headers={"Prefer": "wait=20"}).json()["status"] == "succeeded"

        seen_by_the_other = two.client.get(f"/v1/jobs/{scored}").json()
        assert (seen_by_the_other["status"], seen_by_the_other["model"]) == ("succeeded", "tiny")
        assert one.client.get(f"/v1/jobs/{waiting}").json()["status"] == "queued", "no worker serves its model"
        assert two.client.post("/v1/score", json=BODY).json()["error"]["code"] == "model_unavailable"
