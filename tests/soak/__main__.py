"""Random faults under load: ``python -m tests.soak --minutes 10``. The last line of the output says what was lost.

The exit status is 0 if nothing was lost, else 1. The same seed gives the same jobs and nearly the same faults, but not
the same timing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.services import PostgresServer, RedisServer
from tests.soak.soak import Plan, soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults happen")
    parser.add_argument("--seed", type=int, default=None, help="seed of the jobs and the faults; default: the time")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--database", choices=["postgresql", "sqlite"], default="postgresql")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    started = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - started:7.1f} s  {what}", flush=True)

    folder = Path(tempfile.mkdtemp(prefix="scoreline-soak-"))
    say(f"seed {seed}, logs in {folder}")
    redis_server = RedisServer()
    postgres = PostgresServer() if options.database == "postgresql" else None
    try:
        url = postgres.url(postgres.create_database()) if postgres else f"sqlite:///{folder / 'scoreline.db'}"
        plan = Plan(60 * options.minutes, seed, workers=options.workers, clients=options.clients)
        verdict = soak(plan, folder, url, postgres, redis_server, say)
    finally:
        redis_server.close()
        if postgres:
            postgres.close()
    print(verdict, flush=True)
    return 0 if verdict.clean else 1


if __name__ == "__main__":
    sys.exit(main())
