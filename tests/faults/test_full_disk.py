"""There is no room left for the SQLite file. Submissions are refused as in an outage, and nothing is half done."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs.queue.read import get_job, list_jobs
from jobs.store.records import JobStatus
from tests.faults.deployment import FaultyDeployment
from tests.faults.outcomes import claimed
from tests.services import wait_until
from tests.workers.conftest import Store

pytestmark = pytest.mark.faults

MIB = 1 << 20
DISK_BYTES = 4 * MIB


@dataclass(frozen=True)
class Disk:
    """A place for the store whose room can be limited for a process, which is given by its id."""

    store: Path
    fill: Callable[[int], None]  # leave the process some kilobytes of room
    empty: Callable[[int], None]  # make room again


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    """A file system of a few megabytes that can be filled up. SQLite reports a full disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting needs the rights of root")
    filler = folder / "filler"

    def fill(_: int) -> None:
        free = shutil.disk_usage(folder).free
        filler.write_bytes(b"\0" * max(0, free - 64 * 1024))

    yield Disk(folder / "scoreline.db", fill, lambda _: filler.unlink())
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def quota(tmp_path: Path) -> Disk:
    """A limit on the size of files. SQLite reports that writing failed."""
    store = tmp_path / "scoreline.db"

    def limit(process: int, most: int) -> None:
        resource.prlimit(process, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    def fill(process: int) -> None:
        sizes = [os.path.getsize(f"{store}{suffix}") for suffix in ("", "-wal")]
        limit(process, max(sizes) + 64 * 1024)

    return Disk(store, fill, lambda process: limit(process, resource.RLIM_INFINITY))


@pytest.mark.parametrize("kind", ["small_disk", "quota"])
def test_submissions_are_refused_on_a_full_disk_and_no_accepted_job_is_lost(
    tmp_path: Path, sqlite_template: Path, no_redis: str, kind: str, request: pytest.FixtureRequest
) -> None:
    disk: Disk = request.getfixturevalue(kind)
    shutil.copy(sqlite_template, disk.store)
    url = f"sqlite:///{disk.store}"
    store = Store(url)
    body: dict[str, object] = {
        "query": [5, 6],
        "items": [[7] * 30 for _ in range(500)],
        "label_token_ids": [9, 10],
    }
    with FaultyDeployment(tmp_path, url, no_redis) as deployment:
        api = deployment.launch_api()
        disk.fill(api.process.pid)
        accepted: list[str] = []
        refused = None
        while refused is None:
            response = deployment.post(body, f"key {len(accepted)}".replace(" ", "-"))
            assert response is not None
            if response.status_code == 202:
                accepted.append(response.json()["id"])
                assert len(accepted) < 1000, "the disk is never full"
            else:
                refused = response
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_unavailable"), refused.text
        assert int(refused.headers["retry-after"]) >= 1
        for _ in range(3):
            again = deployment.post(body, f"key-{len(accepted)}")
            assert again is not None
            assert again.status_code == 503, again.text
        assert deployment.client.get("/v1/jobs", params={"limit": "100"}).status_code == 200, "jobs can still be read"
        assert sorted(job.id for job in list_jobs(store.database, "default", limit=2000)) == sorted(accepted)

        disk.empty(api.process.pid)
        once_more = deployment.post(body, f"key-{len(accepted)}")
        assert once_more is not None
        assert once_more.status_code == 202, once_more.text
        assert "idempotency-replayed" not in once_more.headers
        accepted.append(once_more.json()["id"])
        worker = deployment.launch_worker(for_api=True)
        for job_id in accepted:
            store.wait_for(job_id)
        assert worker.terminate() == 0
        assert "Traceback" not in deployment.log("api")
    store.database.close()


def test_a_worker_on_a_full_disk_waits_until_there_is_room(
    tmp_path: Path, sqlite_template: Path, no_redis: str, quota: Disk
) -> None:
    shutil.copy(sqlite_template, quota.store)
    store = Store(f"sqlite:///{quota.store}")
    with FaultyDeployment(tmp_path, f"sqlite:///{quota.store}", no_redis) as deployment:
        worker = deployment.launch_worker(mode="slow", lease_seconds=2)
        job_id = store.submit(chunks=40)
        wait_until(lambda: store.scored_items(job_id) > 0, "the first scores")
        # The limit leaves room for the worker's log. The log of the database has grown past the limit already.
        resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (16 * 1024, resource.RLIM_INFINITY))
        wait_until(lambda: worker.logged("could not store scores yet"), "a commit fails")
        with pytest.raises(TimeoutError):
            wait_until(lambda: store.status(job_id).ended, "the job has ended", 3.0)
        assert get_job(store.database, "default", job_id).status is JobStatus.RUNNING
        quota.empty(worker.process.pid)
        store.wait_for(job_id)
        wait_until(lambda: claimed(store) == 0, "no chunk is claimed")
        assert store.scored_items(job_id) == 80
        assert worker.terminate() == 0, worker.log
        assert "Traceback" not in worker.log
    store.database.close()
