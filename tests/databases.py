"""For tests of the store: on which databases `make test` runs them."""

from __future__ import annotations

from typing import Literal

import pytest

Database = Literal["sqlite", "postgres"]


ON_BOTH = pytest.mark.parametrize("store_url", ["sqlite", "postgres"], indirect=True)
"""Marks a test that `make test` runs on each database, where ``store_url`` is otherwise that of one."""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of a fresh, migrated store, for tests to import: on SQLite, and in `make slow` on PostgreSQL as well.

    Import it only where the tests that are ``ON_BOTH``, and those of other files, send each statement to PostgreSQL.
    """
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def quick_on(database: Database) -> pytest.MarkDecorator:
    """Mark a test that uses ``store_url``: `make test` runs it on this database, `make slow` on the other one."""
    names: tuple[Database, Database] = ("sqlite", "postgres")
    databases = [name if name == database else pytest.param(name, marks=pytest.mark.slow) for name in names]
    return pytest.mark.parametrize("store_url", databases, indirect=True)
