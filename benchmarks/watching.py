"""Measure many clients that follow one API process by events: ``python -m benchmarks.watching --clients 1000``.

The API runs in a process of its own on SQLite, and a worker beside it scores one job of the demonstration model in many
chunks. All clients follow it, one in ten with scores. One more never reads, and one breaks off again and again and
comes back with its last event. Prints the memory of the API before, while and after they follow, how long after the
first client the last one got the end, and the slowest liveness response meanwhile; the last line is JSON. It fails if
a client missed a score or got one twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

import httpx2

from benchmarks.upload import deployment, memory_mb

ITEMS = 5_000
WITH_SCORES = 10
"""One client in so many asks for scores: this process has to read all of them."""
SECONDS = 600.0
LOOK_SECONDS = 0.2


async def follow(
    http: httpx2.AsyncClient, path: str, last: str | None, most: int | None
) -> tuple[list[int], str | None]:
    """Follow a job. Returns the items whose scores came, and the id of the last event.

    last: the event to go on behind; most: break off after so many events.
    """
    found: list[int] = []
    headers = {} if last is None else {"Last-Event-ID": last}
    fields: dict[str, str] = {}
    events = 0
    async with http.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, response.status_code
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            fields[name] = value
            if line or "event" not in fields:
                continue
            last, events = fields["id"], events + 1
            if fields["event"] == "scores":
                found += [one["index"] for one in json.loads(fields["data"])["data"]]
            fields = {}
            if last == "end" or events == most:
                break
    return found, last


async def come_back(http: httpx2.AsyncClient, path: str) -> list[int]:
    """Follow a job, and break off after every other event."""
    found: list[int] = []
    last: str | None = None
    while last != "end":
        try:
            more, last = await follow(http, path, last, 2)
        except httpx2.RemoteProtocolError:  # The server has closed an idle connection of the pool.
            continue
        found += more
    return found


async def never_read(url: httpx2.URL, path: str) -> None:
    """Ask for events and read none of them, until cancelled."""
    _, writer = await asyncio.open_connection(url.host, url.port, limit=1_024)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: benchmark\r\n\r\n".encode())
        await asyncio.sleep(SECONDS)
    finally:
        writer.close()


async def measure(url: str, process_id: int, clients: int) -> dict[str, Any]:
    """Follow a job with ``clients`` clients, and return the results."""
    limits = httpx2.Limits(max_connections=clients + 10)
    async with (
        httpx2.AsyncClient(base_url=url, timeout=SECONDS, limits=limits) as http,
        httpx2.AsyncClient(base_url=url, timeout=SECONDS) as other,
    ):
        before = memory_mb(process_id, "VmRSS")
        body = {"query": "Review: ", "items": [f"item {n}" for n in range(ITEMS)], "labels": [" positive"]}
        job = (await other.post("/v1/jobs", json=body)).json()
        path = f"{job['urls']['self']}/events"
        ended: list[float] = []

        async def watch(number: int) -> list[int]:
            found, last = await follow(http, path + ("" if number % WITH_SCORES else "?scores=true"), None, None)
            assert last == "end"
            ended.append(time.monotonic())
            return found

        silent = asyncio.create_task(never_read(http.base_url, f"{path}?scores=true"))
        coming_back = asyncio.create_task(come_back(http, f"{path}?scores=true"))
        watching = [asyncio.create_task(watch(number)) for number in range(clients)]
        during = before
        alive = []
        while not all(task.done() for task in watching):
            began = time.monotonic()
            await other.get("/livez")
            alive.append(time.monotonic() - began)
            during = max(during, memory_mb(process_id, "VmRSS"))
            await asyncio.sleep(LOOK_SECONDS)
        found = await asyncio.gather(*watching)
        expected = list(range(ITEMS))
        complete = all(one == ([] if number % WITH_SCORES else expected) for number, one in enumerate(found))
        complete = complete and await coming_back == expected
        silent.cancel()
    print(f"memory: {before} MB, at most {during} MB with {clients} clients", file=sys.stderr)
    return {
        "clients": clients,
        "scores_complete": complete,
        "memory_mb": {"before": before, "most": during, "after": memory_mb(process_id, "VmRSS")},
        "last_end_after_first_seconds": round(max(ended) - min(ended), 3),
        "longest_livez_seconds": round(max(alive), 3),
    }


def main() -> None:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000)
    options = parser.parse_args()
    with deployment(worker=True) as running:
        found = asyncio.run(measure(running.url, running.process_ids["api"], options.clients))
    print(json.dumps(found))
    if not found["scores_complete"]:
        sys.exit("a client missed scores, or got some twice")


if __name__ == "__main__":
    main()
