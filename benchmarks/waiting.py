"""Measure many clients that wait on one API process: ``python -m benchmarks.waiting --clients 1000``.

The API runs in a process of its own on SQLite, without a worker. Every client waits for one of a hundred jobs; when all
of them wait, the jobs are cancelled one after another. Prints the memory of the API with waiting clients, the time
between the cancellation of a job and the answer to its clients, and the slowest liveness response meanwhile; the last
line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time

import httpx2

from benchmarks.upload import deployment, memory_mb

JOBS = 100
WAIT_SECONDS = 60
LOOK_SECONDS = 0.1


async def until_all_wait(http: httpx2.AsyncClient, clients: int) -> None:
    """Return when the metrics of the API show that the clients wait for their jobs."""
    while True:
        lines = (await http.get("/metrics")).text.splitlines()
        waited_for = next((line for line in lines if line.startswith("scoreline_awaited_jobs ")), "x 0")
        if float(waited_for.split()[1]) >= min(JOBS, clients):
            return
        await asyncio.sleep(LOOK_SECONDS)


async def measure(url: str, process_id: int, clients: int) -> dict[str, object]:
    """Wait with ``clients`` clients, and return the results."""
    limits = httpx2.Limits(max_connections=clients + 10)
    async with (
        httpx2.AsyncClient(base_url=url, timeout=2 * WAIT_SECONDS, limits=limits) as http,
        httpx2.AsyncClient(base_url=url, timeout=2 * WAIT_SECONDS) as other,
    ):
        body = {"query": "Review: ", "items": ["a"], "labels": [" positive"]}
        ids = [(await other.post("/v1/jobs", json=body)).json()["id"] for _ in range(JOBS)]
        before = memory_mb(process_id, "VmRSS")
        ended: dict[str, float] = {}

        async def wait(job_id: str) -> float:
            answer = await http.get(f"/v1/jobs/{job_id}", headers={"Prefer": f"wait={WAIT_SECONDS}"})
            assert answer.json()["status"] == "cancelled", answer.text
            return time.monotonic() - ended[job_id]

        waiting = [asyncio.create_task(wait(ids[n % JOBS])) for n in range(clients)]
        await until_all_wait(other, clients)
        await asyncio.sleep(1.0)  # until the connections of all clients are established
        during = memory_mb(process_id, "VmRSS")
        alive = []
        for job_id in ids:
            ended[job_id] = time.monotonic()
            await other.post(f"/v1/jobs/{job_id}/cancel")
            began = time.monotonic()
            await other.get("/livez")
            alive.append(time.monotonic() - began)
        answered = await asyncio.gather(*waiting)
    print(f"memory: {before} MB, {during} MB with {clients} clients waiting", file=sys.stderr)
    return {
        "clients": clients,
        "memory_mb": {"before": before, "waiting": during, "after": memory_mb(process_id, "VmRSS")},
        "answered_after_seconds": {
            "median": round(statistics.median(answered), 3),
            "worst": round(max(answered), 3),
        },
        "longest_livez_seconds": round(max(alive), 3),
    }


def main() -> None:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000)
    options = parser.parse_args()
    with deployment() as running:
        print(json.dumps(asyncio.run(measure(running.url, running.process_ids["api"], options.clients))))


if __name__ == "__main__":
    main()
