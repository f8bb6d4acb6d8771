"""Fixtures for callers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import update

from jobs.store.database import Database
from jobs.store.tables import api_keys
from jobs.tenancy.keys import Scope, create_key, revoke_key
from tests.api.callers.guarded import Guarded
from tests.api.serving import running_api
from tests.api.tiny_model import TinyModel


@pytest.fixture(scope="module")
def guarded(model: TinyModel, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """The server, shared by the tests of a module."""
    folder = tmp_path_factory.mktemp("guarded")
    shutil.copy(sqlite_template, folder / "scoreline.db")
    with ExitStack() as stack:
        api, _ = stack.enter_context(
            running_api(model.directory, f"sqlite:///{folder / 'scoreline.db'}", folder, host="0.0.0.0")
        )
        store = Database.open(api.store)
        stack.callback(store.close)
        keys = {scope.value: create_key(store, "acme", scope.value, [scope])[0] for scope in Scope}
        for name in ("good", "expired", "revoked"):
            keys[name], record = create_key(store, "acme", name, list(Scope), expires_in=1_000.0)
            if name == "expired":
                with store.write() as connection:
                    connection.execute(update(api_keys).where(api_keys.c.id == record.id).values(expires_at=1.0))
            if name == "revoked":
                revoke_key(store, record.id)
        yield Guarded(api, store, keys)
