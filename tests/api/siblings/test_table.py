"""The numbers that processes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.budget import Budget, Kind
from api.siblings.table import USES, SharedTable, SharedUse
from scoring.error_codes import ErrorCode, RequestError
from settings.limits import LimitSettings

ROWS = 3


@pytest.fixture
def tables(tmp_path: Path) -> list[SharedTable]:
    """The table as each process has it."""
    return [SharedTable(tmp_path / "table", ROWS) for _ in range(ROWS)]


def budgets(tables: list[SharedTable], **limits: int) -> list[Budget]:
    """The budget of each process."""
    return [
        Budget(LimitSettings(**limits), [SharedUse(table, row, kind) for kind in range(USES)])  # type: ignore[arg-type]
        for row, table in enumerate(tables)
    ]


def test_a_limit_in_all_holds_over_all_processes(tables: list[SharedTable]) -> None:
    one, two, three = budgets(tables, max_open_requests=3)
    places = [one.place(), one.place(), three.place()]
    assert [budget.open_requests(Kind.REQUEST) for budget in (one, two, three)] == [3, 3, 3]
    for budget in (one, two, three):
        with pytest.raises(RequestError) as refused:
            budget.place()
        assert refused.value.code is ErrorCode.OVERLOADED
    places[2].close()
    two.place()


def test_a_limit_of_a_tenant_holds_over_all_processes_and_for_this_tenant_alone(tables: list[SharedTable]) -> None:
    one, two, _ = budgets(tables, max_buffered_body_bytes=1_000, max_buffered_body_bytes_per_tenant=100)
    here, there, of_another = one.place(), two.place(), two.place()
    here.belongs_to("acme")
    there.belongs_to("acme")
    of_another.belongs_to("umbrella")
    here.hold_body(60)
    there.hold_body(40)
    for place in (here, there):
        with pytest.raises(RequestError) as refused:
            place.hold_body(1)
        assert refused.value.code is ErrorCode.TOO_MANY_OPEN_REQUESTS
    of_another.hold_body(100)
    here.release_body()
    there.hold_body(60)
    assert one.buffered_body_bytes() == 200


def test_what_a_process_had_in_use_is_given_back_when_its_row_is_cleared(tables: list[SharedTable]) -> None:
    one, two, _ = budgets(tables, max_open_requests=2, max_open_requests_per_tenant=1)
    one.place().belongs_to("acme")
    tables[0].set_process_id(0, 4711)
    tables[0].set_awaited_jobs(0, 5)
    tables[1].set_awaited_jobs(1, 2)
    assert (tables[2].process_ids(), tables[2].awaited_jobs()) == ({0: 4711}, 7)
    tables[2].clear(0)
    assert (tables[1].process_ids(), tables[1].awaited_jobs()) == ({}, 2)
    two.place().belongs_to("acme")
    assert two.open_requests(Kind.REQUEST) == 1


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
