"""The numbers that processes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.siblings import NUMBERS, SharedTable, make_shared

ROWS = 3


@pytest.fixture
def tables(tmp_path: Path) -> list[SharedTable]:
    """The table as each process has it."""
    return [SharedTable(tmp_path, ROWS) for _ in range(ROWS)]


def test_every_process_sees_what_all_have_in_use_and_forgets_that_of_one_that_ended(tables: list[SharedTable]) -> None:
    tables[0].set_process_id(0, 4711)
    tables[0].set_in_use(0, [5, 4, 3, 2, 1_000])
    tables[1].set_in_use(1, [0] * NUMBERS)
    tables[1].set_in_use(1, [2, 1, 0, 0, 10])
    assert (tables[2].process_ids(), tables[2].in_use()) == ({0: 4711}, [7, 5, 3, 2, 1_010])
    tables[2].clear(0)
    assert (tables[1].process_ids(), tables[1].in_use()) == ({}, [2, 1, 0, 0, 10])


def test_the_disk_has_room_for_all_that_processes_will_share(tmp_path: Path) -> None:
    make_shared(tmp_path, ROWS)
    files = [path.stat() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 1 + 2 * ROWS
    assert all(file.st_blocks * 512 >= file.st_size > 0 for file in files)


def test_a_process_is_silent_once_its_heartbeat_is_old_and_none_is_before_its_first(tables: list[SharedTable]) -> None:
    tables[0].set_heartbeat(0)
    tables[1].set_heartbeat(1)
    assert tables[2].silent_rows(60.0) == []
    assert tables[2].silent_rows(0.0) == [0, 1]
    tables[2].clear(0)
    assert tables[1].silent_rows(0.0) == [1]


def test_the_end_of_a_job_is_counted_by_one_process(tables: list[SharedTable]) -> None:
    jobs = [f"job_{number}" for number in range(500)]
    assert [tables[0].count_job(job) for job in jobs[:250]] == [True] * 250
    assert [tables[1].count_job(job) for job in jobs] == [False] * 250 + [True] * 250
