"""A run waits for room in the quota of its tenant, and is never over it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scoreline import Client, RequestTooLarge
from scoreline.runs import scoring
from tests.scoreline.running import CommandUp, scoreline
from tests.scoreline.runs.files import ROWS, execute, plan_of, read_csv, write_csv
from tests.services import wait_until


def is_in_force(client: Client) -> bool:
    try:
        client.dry_run("a", [f"too many tokens {n}" for n in range(500)], labels=["x"])
        client.cancel(client.submit("a", [f"too many tokens {n}" for n in range(500)], labels=["x"]))
    except RequestTooLarge:
        return True
    return False


@pytest.mark.slow
def test_jobs_wait_for_room_in_the_quota(
    start_up: Callable[..., CommandUp], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = start_up()
    up.wait_until_ready()
    database = f"sqlite:///{next(up.data.glob('*.db'))}"
    assert "SCORELINE_DATABASE_URL" not in os.environ
    quota = scoreline("tenants", "set", "default", "--max-waiting-tokens", "200", SCORELINE_DATABASE_URL=database)
    assert quota.returncode == 0, quota.stderr
    with Client(up.url) as client:
        wait_until(lambda: is_in_force(client), "the quota is in force")
        waited: list[float] = []
        room = scoring.GroupScorer._room_in_quota

        async def counted(self: scoring.GroupScorer, seconds: float) -> None:
            waited.append(seconds)
            await room(self, seconds)

        monkeypatch.setattr(scoring.GroupScorer, "_room_in_quota", counted)
        rows = [row | {"item": row["item"] * 5} for row in ROWS]
        source, target = write_csv(tmp_path / "in.csv", rows), tmp_path / "out.csv"
        # A group of this window has more tokens than the quota, so it is divided.
        execute(plan_of(source, target, rows=40), up.url)
    assert waited
    assert all(row["yes"] for row in read_csv(target))
