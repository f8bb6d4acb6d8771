"""The checker of a soak finds the faults that it looks for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.deployment import SECONDS, FaultyDeployment
from tests.services import free_port
from tests.soak.checker import check
from tests.soak.clients import Submitted
from tests.soak.work import Work


@pytest.fixture
def deployment(tmp_path: Path, sqlite_url: str) -> Iterator[FaultyDeployment]:
    with FaultyDeployment(tmp_path, sqlite_url, f"redis://127.0.0.1:{free_port()}/0", chunk_items=8) as deployment:
        yield deployment


@pytest.mark.faults
def test_the_checker_finds_lost_duplicated_and_wrong_jobs(deployment: FaultyDeployment) -> None:
    deployment.launch_worker(for_api=True, wait=False)
    deployment.launch_api()
    url = f"http://127.0.0.1:{deployment.port}"
    chance = random.Random(1)

    def submit(name: str) -> Submitted:
        work = Work.by_chance(chance, name)
        return Submitted(work, [deployment.submit(work.body)])

    good = [submit(f"good {number}") for number in range(3)]
    verdict = check(url, good, SECONDS)
    assert verdict.clean
    assert str(verdict) == "accepted 3 lost 0 duplicated 0 wrong 0 untold 0 misdelivered 0"
    assert not check(url, [], SECONDS).clean, "without any job, nothing was shown"

    deleted = submit("deleted")
    deployment.client.delete(f"/v1/jobs/{deleted.id}")
    cancelled = submit("cancelled")
    deployment.client.post(f"/v1/jobs/{cancelled.id}/cancel")
    if deployment.job(cancelled.id)["status"] == "cancelled":
        assert any(cancelled.id in line for line in check(url, [cancelled], SECONDS).lost), "unasked"

    twice = submit("twice")
    deployment.submit(twice.work.body)
    two_ids = submit("two ids")
    two_ids.ids.append("job_another")
    ended_otherwise = submit("ended otherwise")
    ended_otherwise.end = ("failed", 1.0)
    other_scores = submit("other scores")
    other_scores.work = replace(other_scores.work, query=[*other_scores.work.query, 1])

    verdict = check(url, [*good, deleted, twice, two_ids, ended_otherwise, other_scores], SECONDS)
    assert [line.split()[0] for line in verdict.lost] == [deleted.id]
    assert {line.split(" was ")[0].split(" made ")[0] for line in verdict.duplicated} == {"twice", "two ids"}
    assert {line.split()[0].strip(":") for line in verdict.wrong} == {ended_otherwise.id, other_scores.id}
