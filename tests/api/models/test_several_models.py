"""One API serves the models of its catalogue, and follows it without a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select

from api.models.catalogue import Catalogue, Found
from api.models.loading import ModelLoader, open_models
from api.text_process.body_reader import LONG_BYTES
from jobs.catalogue import ListedModel, put_models, retire_model
from jobs.store.tables import chunks
from jobs.tenancy.keys import Scope, create_key
from jobs.tenancy.tenants import create_tenant
from settings.scoring import ScoringSettings
from tests.api.models.listing import Listing, described, other_model
from tests.api.serving import Json, RunningApi, eventually, running_api
from tests.api.tiny_model import TinyModel, logprobs

FRENCH = "La capitale de la France est Paris. Oui ou non, peut-etre. La requete et les elements du document."
GERMAN = "Die Hauptstadt ist Berlin. Ja oder nein, vielleicht. Die Frage und das Dokument, und so weiter."
QUERY, ITEMS = "The query is ", ["item", "another item"]
BODY: Json = {"query": QUERY, "items": ITEMS, "label_token_ids": [65, 66]}


@pytest.fixture
def french(tmp_path: Path) -> TinyModel:
    """A model whose tokenizer splits English into more tokens than the other one does."""
    return TinyModel(other_model(tmp_path / "french", FRENCH))


@pytest.fixture
def listing(on_sqlite: tuple[RunningApi, object]) -> Iterator[Listing]:
    listing = Listing(on_sqlite[0])
    yield listing
    listing.close()


def tokens_of(model: TinyModel) -> int:
    """How many tokens the rows of :data:`BODY` have."""
    return sum(len(model.encode(QUERY + item)) for item in ITEMS)


def test_a_request_is_read_and_scored_by_the_model_that_it_names(
    listing: Listing, model: TinyModel, french: TinyModel
) -> None:
    (listed,) = listing.put(described("french", french.directory, aliases=["fr"]))
    listing.work(listed)
    assert tokens_of(model) != tokens_of(french)
    for name, expected in {None: model, "tiny": model, "default": model, "french": french, "fr": french}.items():
        answer = listing.api.score(**BODY, model=name)
        assert answer["usage"]["prompt_tokens"] == tokens_of(expected), name
        assert answer["model"] == ("french" if expected is french else "tiny")
    expected_logprobs = logprobs(french.encode(QUERY + ITEMS[0]))[[65, 66]].tolist()
    answer = listing.api.score(**BODY, model="fr", return_logprobs=True)
    assert answer["logprobs"][0] == pytest.approx(expected_logprobs, abs=1e-5)


def test_all_kinds_of_requests_name_models(listing: Listing, model: TinyModel, french: TinyModel) -> None:
    api = listing.api
    (listed,) = listing.put(described("french", french.directory))
    listing.work(listed)
    expected = tokens_of(french)
    job = api.wait(api.submit(**BODY, model="french")["id"])
    assert (job["status"], job["model"], job["usage"]["prompt_tokens"]) == ("succeeded", "french", expected)
    made = api.client.post("/v1/jobs/sets", json={"jobs": [{**BODY, "model": name} for name in ("french", "tiny")]})
    ended = [api.wait(one["body"]["id"]) for one in made.json()["data"]]
    assert [one["usage"]["prompt_tokens"] for one in ended] == [expected, tokens_of(model)]
    lines = [{**BODY, "items": None, "model": "french"}, *ITEMS]
    uploaded = api.client.post(
        "/v1/jobs",
        content="\n".join(map(json.dumps, lines)),
        headers={"Content-Type": "application/x-ndjson"},
    )
    assert api.wait(uploaded.json()["id"])["usage"]["prompt_tokens"] == expected
    tokens = api.client.post("/v1/tokenize", json={"text": QUERY, "model": "french"}).json()
    assert (tokens["tokens"], tokens["model"]) == (french.encode(QUERY), "french")
    likely = api.client.post("/v1/likelihood", json={"query": QUERY, "items": ITEMS, "model": "french"}).json()
    assert (likely["model"], likely["usage"]["prompt_tokens"]) == ("french", expected)
    shown = api.client.get(f"/v1/jobs/{job['id']}/items", params={"index": 1}).json()
    assert shown["data"][0]["text"] == ITEMS[1]


def test_the_lines_of_a_batch_name_models(listing: Listing, model: TinyModel, french: TinyModel) -> None:
    api = listing.api
    (listed,) = listing.put(described("french", french.directory))
    listing.work(listed)
    names = ["french", "tiny", None, "french", "nobody"]
    lines = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/score", "body": {**BODY, "model": name}}
        for n, name in enumerate(names)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = api.client.post("/v1/files", files={"file": ("lines.jsonl", content)}, data={"purpose": "batch"}).json()
    batch = api.client.post(
        "/v1/batches", json={"input_file_id": file["id"], "endpoint": "/v1/score", "completion_window": "24h"}
    ).json()
    eventually(lambda: api.client.get(f"/v1/batches/{batch['id']}").json()["status"] == "completed", "it ends")
    ended = api.client.get(f"/v1/batches/{batch['id']}").json()
    output = api.client.get(f"/v1/files/{ended['output_file_id']}/content").text.splitlines()
    tokens = {one["custom_id"]: one["response"]["body"]["usage"]["prompt_tokens"] for one in map(json.loads, output)}
    of_french, of_tiny = tokens_of(french), tokens_of(model)
    assert tokens == {"0": of_french, "1": of_tiny, "2": of_tiny, "3": of_french}
    errors = api.client.get(f"/v1/files/{ended['error_file_id']}/content").text
    assert "there is no model" in errors


def test_a_long_body_names_a_model(listing: Listing, french: TinyModel) -> None:
    """It is read in another process, which has to load the model as well, and to learn of it first."""
    (listed,) = listing.put(described("french", french.directory))
    listing.work(listed)
    items = ["item " * 20] * (LONG_BYTES // 100 + 1)
    dry_run = listing.api.client.post("/v1/jobs", json={**BODY, "items": items, "model": "french", "dry_run": True})
    assert dry_run.status_code == 200, dry_run.text
    row = len(french.encode(QUERY + items[0]))
    assert dry_run.json()["usage"]["prompt_tokens"] == row * len(items)


def test_what_was_accepted_is_scored_by_the_version_that_it_was_accepted_for(
    listing: Listing, model: TinyModel, french: TinyModel
) -> None:
    """As nobody serves the first version now, requests get the second at once."""
    (first,) = listing.put(described("changing", french.directory))
    before = listing.api.submit(**BODY, model="changing")
    (second,) = listing.put(described("changing", model.directory))
    assert second.version > first.version
    listing.work(second)
    after = listing.api.wait(listing.api.submit(**BODY, model="changing")["id"])
    assert after["usage"]["prompt_tokens"] == tokens_of(model)
    assert listing.api.client.get(f"/v1/jobs/{before['id']}").json()["status"] == "queued"
    listing.work(first)
    assert listing.api.wait(before["id"])["usage"]["prompt_tokens"] == tokens_of(french)


def test_equal_tokenizers_do_not_make_versions_equal(listing: Listing, french: TinyModel) -> None:
    """The weights of another revision may be others."""
    (first,) = listing.put(described("changing", french.directory))
    waiting = listing.api.submit(**BODY, model="changing")
    (second,) = listing.put(described("changing", french.directory, max_labels=100))
    listing.work(second)
    assert listing.api.score(**BODY, model="changing")["model"] == "changing"
    assert listing.api.client.get(f"/v1/jobs/{waiting['id']}").json()["status"] == "queued"
    listing.work(first)
    assert listing.api.wait(waiting["id"])["status"] == "succeeded"


def test_the_version_before_serves_until_a_worker_has_the_new_one(
    listing: Listing, model: TinyModel, french: TinyModel
) -> None:
    (first,) = listing.put(described("changing", french.directory, aliases=["old"]))
    listing.work(first)
    listing.see(first)
    (second,) = put_models(listing.database, [described("changing", model.directory, aliases=["new"])])
    eventually(lambda: "version" in listing.served("new"), "the alias is known")
    assert listing.served("new")["version"] == first.version
    assert listing.api.score(**BODY, model="new")["usage"]["prompt_tokens"] == tokens_of(french)
    listing.work(second)
    listing.see(second)
    assert listing.api.score(**BODY, model="changing")["usage"]["prompt_tokens"] == tokens_of(model)


def test_a_retired_model_is_gone_and_what_it_was_asked_is_not(listing: Listing, french: TinyModel) -> None:
    (listed,) = listing.put(described("french", french.directory))
    job = listing.api.submit(**BODY, model="french")
    retire_model(listing.database, "french")
    eventually(lambda: "error" in listing.served("french"), "it is gone")
    refused = listing.api.client.post("/v1/score", json={**BODY, "model": "french"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    listing.work(listed)
    assert listing.api.wait(job["id"])["status"] == "succeeded"


def test_a_model_without_workers_takes_jobs_and_no_calls(listing: Listing, french: TinyModel) -> None:
    listing.put(described("french", french.directory))
    refused = listing.api.client.post("/v1/score", json={**BODY, "model": "french"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_unavailable")
    assert "french" in refused.json()["error"]["message"]
    assert listing.api.submit(**BODY, model="french")["status"] == "queued"
    assert listing.api.score(**BODY)["model"] == "tiny"


def test_the_catalogue_says_which_model_is_the_default(listing: Listing, model: TinyModel, french: TinyModel) -> None:
    (listed,) = listing.put(described("french", french.directory, is_default=True))
    listing.work(listed)
    assert listing.api.score(**BODY)["usage"]["prompt_tokens"] == tokens_of(french)
    assert listing.api.score(**BODY, model="tiny")["usage"]["prompt_tokens"] == tokens_of(model)
    overview = listing.api.client.get("/v1/overview").json()
    assert overview["model"] == "french"
    models = listing.api.client.get("/v1/models").json()
    assert [one["id"] for one in models["data"]] == ["french", "tiny"]
    assert models["models"][-1]["name"] == "default"
    assert models["models"][-1]["description"].startswith("french")


def test_a_model_whose_files_are_gone_is_refused_and_harms_no_other(listing: Listing, french: TinyModel) -> None:
    listing.put(described("french", french.directory))
    (french.directory / "tokenizer.json").unlink()
    refused = listing.api.client.post("/v1/score", json={**BODY, "model": "french"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_unavailable")
    assert "'french' can't be loaded" in refused.json()["error"]["message"]
    assert listing.api.score(**BODY)["model"] == "tiny"


def test_a_model_whose_files_have_changed_is_refused(listing: Listing, model: TinyModel, french: TinyModel) -> None:
    """What it was listed with is compared with what is there."""
    listing.put(described("french", french.directory))
    (french.directory / "tokenizer.json").write_bytes((model.directory / "tokenizer.json").read_bytes())
    refused = listing.api.client.post("/v1/score", json={**BODY, "model": "french"})
    assert refused.status_code == 503
    assert "add it to the catalogue again" in refused.json()["error"]["message"]


def test_a_tenant_sees_and_names_the_models_that_it_may_use(listing: Listing, french: TinyModel) -> None:
    (listed,) = listing.put(described("french", french.directory, aliases=["fr"]))
    listing.work(listed)
    create_tenant(listing.database, "acme", models=["french"])
    client = listing.api.client_with(create_key(listing.database, "acme", "of the test", [Scope.SCORE, Scope.READ])[0])
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["french"]
    assert client.get("/v1/models/tiny").status_code == 404
    assert client.post("/v1/score", json={**BODY, "model": "fr"}).status_code == 200
    for name in ("tiny", None):
        refused = client.post("/v1/score", json={**BODY, "model": name})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    assert client.post("/v1/jobs", json={**BODY, "model": "tiny"}).status_code == 404
    assert client.post("/v1/tokenize", json={"text": "a", "model": "tiny"}).status_code == 404


def test_the_overview_shows_what_waits_for_all_models_that_its_caller_may_use(
    listing: Listing, french: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.callers.admission.GOOD_FOR_SECONDS", 0.0)
    monkeypatch.setattr("api.callers.admission.MAX_GOOD_FOR_SECONDS", 0.0)
    listing.put(described("french", french.directory, context_length=64))

    def overview(tenant: str, models: list[str]) -> Json:
        create_tenant(listing.database, tenant, models=models)
        key = create_key(listing.database, tenant, "of the test", list(Scope))[0]
        with listing.api.client_with(key) as client:
            for name in models[:1]:
                assert client.post("/v1/jobs", json={**BODY, "model": name}).status_code == 202
            found: Json = client.get("/v1/overview").json()
            return found

    of_one, of_both = overview("acme", ["french"]), overview("bolt", ["french", "tiny"])
    assert (of_one["model"], of_one["max_model_len"], of_one["workers"]) == ("french", 64, [])
    assert (of_both["model"], len(of_both["workers"])) == ("tiny", 1)
    for found in (of_one, of_both):
        assert (found["waiting"]["chunks"], found["waiting"]["estimated_seconds"]) == (1, None)
    assert overview("cold", [])["error"]["code"] == "model_not_found"


def test_models_make_room_for_each_other(model: TinyModel, tmp_path: Path, sqlite_url: str) -> None:
    """With memory for one tokenizer beside the default, each request finds its own model all the same."""
    with running_api(model.directory, sqlite_url, tmp_path, models_bytes=1) as (api, _):
        listing = Listing(api)
        try:
            texts = {"a": FRENCH, "b": GERMAN}
            others = {name: TinyModel(other_model(tmp_path / name, text)) for name, text in texts.items()}
            for listed in listing.put(*(described(name, one.directory) for name, one in others.items())):
                listing.work(listed)
            for _ in range(2):
                for name, one in {**others, "tiny": model}.items():
                    assert api.score(**BODY, model=name)["usage"]["prompt_tokens"] == tokens_of(one)
            models = api.app.state.service.reading.models
            assert len(models._loaded) == 2
        finally:
            listing.close()


def test_without_a_model_in_the_environment_the_catalogue_is_served(
    model: TinyModel, french: TinyModel, tmp_path: Path, sqlite_url: str
) -> None:
    listed = [described("french", french.directory), described("tiny", model.directory)]
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False) as (api, _):
        listing = Listing(api)
        versions = listing.put(*listed)
        listing.close()
    environment, models = open_models(ScoringSettings(), lambda: Found(versions), 2**20)
    assert environment is None
    assert [entry.card.name for entry in models.catalogue.entries] == ["french", "tiny"]


@pytest.mark.usefixtures("small_steps")
def test_an_upload_goes_on_for_the_version_that_it_began_with(
    model: TinyModel, french: TinyModel, tmp_path: Path, sqlite_url: str
) -> None:
    with running_api(model.directory, sqlite_url, tmp_path, with_worker=False, chunk_items=2) as (api, _):
        listing = Listing(api)
        try:
            (first,) = listing.put(described("changing", french.directory))
            body = {**BODY, "items": None, "model": "changing"}

            def lines() -> Iterator[bytes]:
                yield json.dumps(body).encode() + b"\n"
                yield b'"item"\n' * 40
                eventually(lambda: staged_chunks(listing) >= 2, "the first chunks are stored")
                listing.put(described("changing", model.directory))
                yield b'"item"\n' * 40

            headers = {"Content-Type": "application/x-ndjson"}
            uploaded = api.client.post("/v1/jobs", content=lines(), headers=headers)
            assert uploaded.status_code == 202, uploaded.text
            listing.work(first)
            assert api.wait(uploaded.json()["id"])["progress"]["scored_items"] == 80
        finally:
            listing.close()


def staged_chunks(listing: Listing) -> int:
    with listing.database.read() as tx:
        return int(tx.scalar(select(func.count()).select_from(chunks)) or 0)


def test_the_name_of_an_adapter_means_the_default_of_now_and_who_may_use_it(
    listing: Listing, model: TinyModel, french: TinyModel, tmp_path: Path
) -> None:
    adapter = tmp_path / "adapters" / "spam"
    adapter.mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (adapter / name).write_text("{}")
    folder = str(adapter.parent)
    listing.put(described("small", model.directory, is_default=True, adapter_folder=folder))
    listing.put(described("french", french.directory))
    create_tenant(listing.database, "acme", models=["french"])
    key = create_key(listing.database, "acme", "of the test", [Scope.SCORE, Scope.READ])[0]
    client = listing.api.client_with(key)
    names = ["spam", "small:spam"]
    for named in [*names, "default", None, "nobody"]:
        refused = client.post("/v1/jobs", json={**BODY, "model": named})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found"), named
        assert "small" not in refused.json()["error"]["message"] or named == "small:spam"
    for named in names:
        assert listing.api.submit(**BODY, model=named)["model"] == "small:spam"
    assert [one["name"] for one in client.get("/v1/models").json()["models"]] == ["french"]


def test_a_model_that_moves_into_the_catalogue_refuses_no_call_and_stays_the_default(
    listing: Listing, model: TinyModel
) -> None:
    (listed,) = put_models(listing.database, [described("tiny", model.directory, aliases=["moved"])])
    eventually(lambda: "error" not in listing.served("moved"), "the API knows the catalogue")
    assert listing.served("default")["version"] is None, "no worker has the version of the catalogue"
    for name in (None, "tiny", "moved"):
        assert listing.api.score(**BODY, model=name)["usage"]["prompt_tokens"] == tokens_of(model)
    listing.work(listed)
    listing.see(listed)
    assert listing.api.score(**BODY)["usage"]["prompt_tokens"] == tokens_of(model)
    assert listing.served("default")["version"] == listed.version


def test_no_alias_takes_the_name_of_the_model_of_the_environment(
    listing: Listing, model: TinyModel, french: TinyModel
) -> None:
    listing.put(described("french", french.directory, aliases=["tiny"]))
    assert listing.api.score(**BODY, model="tiny")["usage"]["prompt_tokens"] == tokens_of(model)


def test_a_change_does_not_make_another_model_the_default(model: TinyModel, french: TinyModel) -> None:
    def version(number: int, name: str, retired_at: float | None = None) -> ListedModel:
        new = described(name, model.directory)
        card = replace(new.card, version=number)
        return ListedModel(number, name, new.settings, (), False, card, 0.0, retired_at)

    versions = [version(1, "a", 5.0), version(2, "b"), version(3, "a")]
    catalogue = Catalogue.of(None, ScoringSettings(), Found(versions))
    assert catalogue.default.card.name == "a"
    assert set(catalogue.by_key) == {one.card.work_key for one in versions}


def test_the_demonstration_serves_only_while_there_is_nothing_else(model: TinyModel, french: TinyModel) -> None:
    """A process without SCORELINE_MODEL may start before the catalogue has anything."""
    scoring = ScoringSettings.model_construct(**ScoringSettings(model=str(model.directory)).model_dump())
    scoring.model_fields_set.discard("model")
    environment, models = open_models(scoring, Found, 2**20)
    assert environment is not None
    new = described("french", french.directory)
    listed = ListedModel(1, "french", new.settings, (), False, replace(new.card, version=1), 0.0, None)
    loader = ModelLoader(models, environment, scoring, Found)
    loader._take(Found([listed]))
    assert [entry.card.name for entry in models.catalogue.entries] == ["french"]


def test_completions_of_a_batch_are_written_by_the_tokenizer_of_their_job(
    listing: Listing, model: TinyModel, french: TinyModel
) -> None:
    """The model has got another version, with another tokenizer, before the line is scored."""
    api = listing.api
    (first,) = listing.put(described("changing", french.directory))
    body = {"model": "changing", "prompt": "La capitale", "max_tokens": 0, "echo": True, "logprobs": 1}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}
    content = json.dumps(line).encode()
    file = api.client.post("/v1/files", files={"file": ("l.jsonl", content)}, data={"purpose": "batch"}).json()
    wanted = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = api.client.post("/v1/batches", json=wanted).json()
    eventually(lambda: staged_chunks(listing) == 1, "the line is a job")
    listing.put(described("changing", model.directory))
    listing.work(first)
    eventually(lambda: api.client.get(f"/v1/batches/{batch['id']}").json()["status"] == "completed", "it ends")
    ended = api.client.get(f"/v1/batches/{batch['id']}").json()
    output = json.loads(api.client.get(f"/v1/files/{ended['output_file_id']}/content").text)
    tokens = output["response"]["body"]["choices"][0]["logprobs"]["tokens"]
    assert tokens == [french.decode([one]) for one in french.encode("La capitale")]
