"""How the batches of several tenants share an API process."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from api.batches import feeder
from jobs.store.database import Database
from jobs.tenancy.keys import Scope, create_key
from tests.api.batches.running import create, ended, line, openai_of, run, upload
from tests.api.serving import eventually, running_api
from tests.api.tiny_model import TinyModel


def test_lines_that_take_long_to_read_hold_up_no_other_tenant(
    model: TinyModel, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeder, "SHORT_BYTES", 0)
    begun, gate = threading.Event(), threading.Event()
    with running_api(model.directory, sqlite_url, tmp_path) as (api, _):
        process = api.app.state.service.text_process
        read_body = process.read

        async def read_slowly(tenant: str, *given: Any) -> Any:
            if tenant == "slow":
                begun.set()
                await asyncio.to_thread(gate.wait)
            return await read_body(tenant, *given)

        monkeypatch.setattr(process, "read", read_slowly)
        with closing(Database.open(api.store)) as store:
            key, _ = create_key(store, "slow", "slow", frozenset(Scope))
        slow, quick = openai_of(api, key), openai_of(api)
        try:
            waiting = [create(slow, upload(slow, [line("a")]).id) for _ in range(5)]
            eventually(begun.is_set, "a process reads the slow lines")
            assert run(quick, [line("a")]).status == "completed"
            assert {slow.batches.retrieve(one.id).status for one in waiting} <= {"validating", "in_progress"}
        finally:
            gate.set()
        assert {ended(slow, one.id).status for one in waiting} == {"completed"}
