"""How many statements claims and finishes send: as many for one small job as for many jobs of many tenants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from jobs.store.database import Database
from scoring.options import Priority
from tests.databases import quick_on
from tests.jobs.work import finish_all, submit, take


@contextmanager
def statements_of(store: Database) -> Iterator[list[str]]:
    """Collect the statements that are sent."""
    sent: list[str] = []

    def record(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    event.listen(store.engine, "before_cursor_execute", record)
    yield sent
    event.remove(store.engine, "before_cursor_execute", record)


@quick_on("postgres")
@pytest.mark.parametrize("priority", [Priority.INTERACTIVE, Priority.BULK])
def test_a_claim_and_a_finish_send_as_many_statements_for_one_chunk_as_for_64(
    store: Database, priority: Priority
) -> None:
    for tenants in (1, 8):
        for jobs in (1, 8, 64):
            for job in range(jobs):
                submit(store, tenant=f"tenant {job % tenants}", prefix=(job % 5,), priority=priority)
            with statements_of(store) as of_claim:
                claimed = take(store)
            with statements_of(store) as of_finish:
                finish_all(store, claimed)
            assert len(claimed.chunk_ids) == jobs
            assert len(of_claim) == (7 if store.is_sqlite else 1), of_claim
            assert len(of_finish) == (5 if store.is_sqlite else 1), of_finish


@quick_on("postgres")
def test_a_claim_closes_many_flows_with_as_many_statements_as_one(store: Database) -> None:
    counts = []
    for tenants in (2, 30):
        for tenant in range(tenants):
            submit(store, tenant=f"tenant {tenant}")
        finish_all(store, take(store))
        submit(store, tenant="tenant 0")
        with statements_of(store) as sent:
            finish_all(store, take(store))
        counts.append(len(sent))
    assert counts[0] == counts[1]
