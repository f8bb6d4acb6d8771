"""Reading what a job was asked."""

from __future__ import annotations

import pytest

from jobs.queue.ending import delete
from jobs.queue.inputs import read_inputs
from jobs.queue.sweep import sweep
from jobs.store.database import Database
from scoring.error_codes import ErrorCode, RequestError
from tests.jobs.interleaving import READ_JOB, once_after
from tests.jobs.work import submit


def test_a_job_that_is_deleted_while_its_inputs_are_read_is_read_whole(store: Database) -> None:
    job_id = submit(store, chunks=2)

    def remove() -> None:
        delete(store, "default", job_id)
        sweep(store)

    once_after(store, READ_JOB, remove)
    found = read_inputs(store, "default", job_id, [0, 1])
    assert found.query.tolist() == [1, 2, 3]
    assert {index: item.tokens.tolist() for index, item in found.items.items()} == {0: [0] * 4, 1: [1] * 4}
    with pytest.raises(RequestError) as raised:
        read_inputs(store, "default", job_id, [0])
    assert raised.value.code is ErrorCode.JOB_NOT_FOUND
