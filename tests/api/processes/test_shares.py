"""How many processes there are, and what each of them gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from api.callers.request_counts import LimitState, OwnCounts
from api.siblings.membership import Siblings
from api.threads import sql_threads
from api.turns import Turns
from settings.api import ApiSettings
from settings.errors.mistakes import SettingError


@pytest.mark.parametrize(("given", "processes"), [("1", 1), ("3", 3), ("auto", len(os.sched_getaffinity(0)))])
def test_the_number_of_processes_is_a_setting(monkeypatch: pytest.MonkeyPatch, given: str, processes: int) -> None:
    assert ApiSettings().process_count == 1
    monkeypatch.setenv("SCORELINE_API_PROCESSES", given)
    assert ApiSettings().process_count == processes


@pytest.mark.parametrize("given", ["0", "-1", "many", "1.5", ""])
def test_what_is_no_number_of_processes_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("SCORELINE_API_PROCESSES", given)
    with pytest.raises(SettingError, match="SCORELINE_API_PROCESSES"):
        ApiSettings()


def test_connections_to_the_database_are_divided() -> None:
    assert [sql_threads(processes) for processes in (1, 2, 4, 5, 8, 12, 64)] == [12, 12, 12, 9, 6, 4, 4]
    assert all(processes * (sql_threads(processes) + 1) <= 60 for processes in range(1, 13))


@pytest.mark.parametrize(("limit", "processes", "share"), [(8_192, 3, 2_731), (512, 4, 128), (1, 4, 1)])
def test_a_divided_limit_is_rounded_up(tmp_path: Path, limit: int, processes: int, share: int) -> None:
    async def count(tenant: str, per_second: int | None, per_minute: int | None) -> list[LimitState]:
        return OwnCounts().count(tenant, per_second, per_minute)

    assert Siblings(0, processes, tmp_path, count, Turns()).share(limit) == share
