"""How many processes there are, and what each of them gets."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from api.processes.parent import Parent
from api.threads import sql_threads
from settings.api import ApiSettings
from settings.bell import BellSettings
from settings.errors.endings import Ending
from settings.errors.mistakes import SettingError
from settings.limits import AT_THE_SAME_TIME, LimitSettings


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


def test_a_parent_that_can_not_store_what_its_processes_share_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with capture_logs() as logs:
        assert Parent(ApiSettings(port=0, api_processes=2), BellSettings()).run() == Ending.FAILED
    (line,) = logs
    assert line["reason"].startswith("what the processes share can't be stored: No such file or directory; TMPDIR")


def test_connections_to_the_database_are_divided() -> None:
    assert [sql_threads(processes) for processes in (1, 2, 4, 5, 8, 12, 64)] == [12, 12, 12, 9, 6, 4, 4]
    assert all(processes * (sql_threads(processes) + 1) <= 60 for processes in range(1, 13))


@pytest.mark.parametrize(("limit", "processes", "share"), [(8_192, 3, 2_731), (512, 4, 128), (1, 4, 1)])
def test_a_divided_limit_is_rounded_up(limit: int, processes: int, share: int) -> None:
    given: dict[str, Any] = dict.fromkeys(AT_THE_SAME_TIME, limit)
    whole = LimitSettings(**given, max_body_bytes=1)
    divided = whole.divided_among(processes)
    assert {getattr(divided, name) for name in AT_THE_SAME_TIME} == {share}
    assert divided.model_copy(update=given) == whole, "nothing else is divided"


@pytest.mark.parametrize("processes", [1, 2, 4, 64])
def test_each_process_holds_its_part_of_the_bytes_and_the_largest_body_at_least(processes: int) -> None:
    limits = LimitSettings(
        max_body_bytes=100, max_buffered_body_bytes=800, max_buffered_body_bytes_per_tenant=200
    ).divided_among(processes)
    assert limits.max_buffered_body_bytes == max(800 // processes, 100)
    assert limits.max_buffered_body_bytes_per_tenant == max(200 // processes, 100)


@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize("name", ["max_buffered_body_bytes", "max_buffered_body_bytes_per_tenant"])
def test_limits_without_room_for_the_largest_body_are_refused(name: str, processes: int) -> None:
    given: dict[str, Any] = {"max_body_bytes": 100, name: 99}
    with pytest.raises(SettingError) as refused:
        LimitSettings(**given).divided_among(processes)
    assert str(refused.value) == (
        f"SCORELINE_{name.upper()} is '99': it must be at least SCORELINE_MAX_BODY_BYTES, which is 100, because such a "
        "body must have room; raise the one or lower the other"
    )
