"""Batches of several models, which one API process serves or several from one database."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import select

from api.batches import blocks, work
from jobs.file_batches.tables import file_batches
from jobs.store.database import Database
from jobs.tenancy.tenants import set_tenant
from tests.api.batches.running import BODY, create, ended, line, openai_of, read, upload
from tests.api.models.listing import Listing, described
from tests.api.serving import RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import TinyModel, make_model_directory
from tests.databases import quick_on


@quick_on("sqlite")
def test_lines_are_read_only_by_a_process_that_serves_their_model(
    model: TinyModel, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of another model writes what has ended of a batch, and leaves the lines that are not read yet."""
    monkeypatch.setattr(blocks, "BLOCK_LINES", 5)
    monkeypatch.setattr(work, "MAX_PAUSE_SECONDS", 0.05)
    names = [f"r{n}" for n in range(20)]
    with running_api(model.directory, store_url, tmp_path, with_worker=False) as (api, _):
        with closing(Database.open(api.store)) as store:
            set_tenant(store, "default", max_waiting_tokens=60)
        created = create(openai_of(api), upload(openai_of(api), [line(n, BODY | {"query": n}) for n in names]).id)
        settings = api.store

        def places() -> tuple[int, int]:
            with closing(Database.open(settings)) as store, store.read() as tx:
                read_lines, written = tx.execute(select(file_batches.c.read_lines, file_batches.c.written_lines)).one()
                return int(read_lines), int(written)

        fitting = 10  # more would need more than 60 tokens
        eventually(lambda: places()[0] == fitting, "as many lines are read as fit into the quota")
    with running_api(model.directory, store_url, tmp_path, with_worker=False, model_name="other") as (api, _):
        worker = api.worker()
        worker.start()
        eventually(lambda: places()[1] == fitting, "what has ended is written")
        worker.stop()
        assert places()[0] == fitting
    with running_api(model.directory, store_url, tmp_path) as (api, _):
        batch = ended(openai_of(api), created.id)
        assert [one["custom_id"] for one in read(openai_of(api), batch.output_file_id)] == names


def completed(api: RunningApi, batch_id: str) -> int:
    counts = openai_of(api).batches.retrieve(batch_id).request_counts
    return 0 if counts is None else counts.completed


def test_a_line_of_a_model_that_is_not_there_holds_up_no_line_before_it(
    on_sqlite: tuple[RunningApi, StandInWorker], tmp_path: Path
) -> None:
    api, client = on_sqlite[0], openai_of(on_sqlite[0])
    directory = make_model_directory(tmp_path / "gone")
    with closing(Listing(api)) as listing:
        listing.put(described("gone", directory))
        (directory / "tokenizer.json").unlink()
        lines = [line(str(n), BODY | {"model": name}) for n, name in enumerate([None, None, "gone", None])]
        batch_id = create(client, upload(client, lines).id).id
        eventually(lambda: completed(api, batch_id) == 2, "the lines before it are written")
        eventually(lambda: client.batches.retrieve(batch_id).errors, "the batch says why it waits")
        errors = client.batches.retrieve(batch_id).errors
        assert errors is not None
        assert errors.data is not None
        [error] = errors.data
        assert (error.code, error.param) == ("model_unavailable", None)
        assert "'gone' can't be loaded" in (error.message or "")


def test_a_line_of_a_model_whose_queue_is_full_holds_up_no_line_before_it(
    model: TinyModel, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.callers.admission.GOOD_FOR_SECONDS", 0.001)
    monkeypatch.setattr("api.callers.admission.MAX_GOOD_FOR_SECONDS", 0.001)
    with (
        running_api(model.directory, sqlite_url, tmp_path, max_waiting_chunks=2, chunk_items=1) as (api, _),
        closing(Listing(api)) as listing,
    ):
        listing.put(described("full", model.directory))
        api.submit(**BODY | {"items": ["a"] * 4, "model": "full"})
        lines = [line(str(n), BODY | {"model": name}) for n, name in enumerate([None, None, "full", None])]
        client = openai_of(api)
        batch_id = create(client, upload(client, lines).id).id
        eventually(lambda: completed(api, batch_id) == 2, "the lines before it are written")
