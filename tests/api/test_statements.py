"""SQLAlchemy compiles each statement once, whatever clients ask for."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.engine.interfaces import CacheStats

from tests.api.every_route import OPERATIONS, job_for, request
from tests.api.serving import RunningApi, StandInWorker
from tests.databases import quick_on


@quick_on("postgres")
def test_no_request_makes_a_statement_that_is_compiled_each_time(fresh: tuple[RunningApi, StandInWorker]) -> None:
    api, _ = fresh
    compiled: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, _parameters: Any, context: Any, _many: bool) -> None:
        if context.compiled is not None and context.cache_hit is not CacheStats.CACHE_HIT:
            compiled.append(statement)

    def ask() -> None:
        for operation in OPERATIONS:
            assert request(api, operation, job_for(api, operation)).status_code == operation.status

    for _ in range(2):  # Some statements are for what an earlier request has made.
        ask()
    event.listen(Engine, "after_cursor_execute", note)
    try:
        ask()
    finally:
        event.remove(Engine, "after_cursor_execute", note)
    assert compiled == []
