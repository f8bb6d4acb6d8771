"""Fixtures for every test: the private services, and a fresh migrated store on either database."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from tests.services import MissingBinaryError, PostgresServer, RedisServer
from tests.stores import migrate_store, share_compiled_statements
from tests.surroundings import (
    keep_files_in_memory,
    let_children_be_interrupted,
    log_plain_tracebacks,
    share_compiled_programs,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Before pytest makes a folder, jax is imported, or xdist starts processes, which inherit what these functions do.
keep_files_in_memory()
share_compiled_programs()
let_children_be_interrupted()
share_compiled_statements()
log_plain_tracebacks()

gc.disable()  # until all tests are collected

# How long an example takes says more about the machine than about the code.
settings.register_profile("scoreline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("scoreline")

Server = TypeVar("Server", PostgresServer, RedisServer)

FIRST = ("scoreline", "end_to_end", "model", "workers", "demonstration", "composition", "benchmarks", "faults")
"""Folders with slow files. They are started first, since a slow file that is started last is waited for alone."""

SLOWEST = ("scoreline/test_up.py", "end_to_end/test_nothing_is_lost.py", "jobs/test_any_history.py")
"""The slowest files, which are started before all others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow tests first."""
    here = Path(__file__).parent
    order = {name: place for place, name in enumerate((*SLOWEST, *FIRST))}

    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(here)
        return order.get(path.as_posix(), order.get(path.parts[0], len(order)))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what was imported and collected, which stays until the end."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _start(server: Callable[[], Server]) -> Server:
    """Start a service; skip the test where it is not installed, but never in CI, where a skip would hide a hole."""
    try:
        return server()
    except MissingBinaryError as missing:
        if os.environ.get("CI"):
            pytest.fail(f"{missing}, and CI must run every test")
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A private PostgreSQL server."""
    server = _start(PostgresServer)
    yield server
    server.close()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A private Redis server. Who stops it starts it again."""
    server = _start(RedisServer)
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """The name of a migrated database to copy."""
    name = postgres.create_database()
    migrate_store(postgres.url(name))
    return name


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file to copy."""
    path = tmp_path_factory.mktemp("template") / "scoreline.db"
    migrate_store(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """The URL of a fresh, migrated SQLite store."""
    path = tmp_path / "scoreline.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_url(postgres: PostgresServer, postgres_template: str) -> Iterator[str]:
    """The URL of a fresh, migrated PostgreSQL store."""
    name = postgres.create_database(postgres_template)
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of a fresh, migrated store; the test runs once on each database."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Headless Chromium. ``make browser`` installs what it needs."""
    playwright = pytest.importorskip("playwright.sync_api", reason="make browser installs Playwright")
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.fail("there is no Chromium: install Debian's package chromium, or name the program in CHROMIUM")
    with playwright.sync_playwright() as driver:
        # Root is refused the sandbox, in which a browser keeps what it is shown from the machine.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()
