"""For tests of the store that `make test` runs on one database only."""

from __future__ import annotations

from typing import Literal

import pytest

Database = Literal["sqlite", "postgres"]


def quick_on(database: Database) -> pytest.MarkDecorator:
    """Mark a test that uses ``store_url``: `make test` runs it on this database, `make slow` on the other one."""
    names: tuple[Database, Database] = ("sqlite", "postgres")
    databases = [name if name == database else pytest.param(name, marks=pytest.mark.slow) for name in names]
    return pytest.mark.parametrize("store_url", databases, indirect=True)
