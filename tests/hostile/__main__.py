"""Attack a deployment: ``python -m tests.hostile --requests 100000 --minutes 30``.

It starts a private PostgreSQL and Redis, the API and a worker. The exit status is 0 if all marks were reached, else 1.
With ``--only N``, the same seed and the same ``--kind``, attack N alone is carried out again, and its answers are
printed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.hostile.siege import Plan, Siege
from tests.services import PostgresServer, RedisServer


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--requests",
        type=int,
        default=100_000,
        help="how many requests are sent; an attack has one or many",
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="time in which that must be done")
    parser.add_argument(
        "--pace",
        type=float,
        default=60.0,
        help="requests that are begun in a second, at most; a large number for as many as the machine takes",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the attacks")
    parser.add_argument("--only", type=int, default=None, help="carry out only the attack of this number")
    parser.add_argument("--kind", default=None, help="carry out only attacks of this kind, such as `endless body`")
    parser.add_argument("--judge-times", action="store_true", help="judge times, too: on a quiet machine")
    options = parser.parse_args()
    started = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - started:7.1f} s  {what}", flush=True)

    folder = Path(tempfile.mkdtemp(prefix="scoreline-hostile-"))
    say(f"seed {options.seed}, logs in {folder}")
    redis_server, postgres = RedisServer(), PostgresServer()
    try:
        siege = Siege(folder, postgres, redis_server, say)
        if options.only is not None:
            siege.replay(options.seed, options.only, options.kind)
            return 0
        report = siege.run(
            Plan(options.requests, 60 * options.minutes, options.seed, options.pace, options.judge_times, options.kind)
        )
    finally:
        redis_server.close()
        postgres.close()
    print(report, flush=True)
    return 1 if report.missed() else 0


if __name__ == "__main__":
    sys.exit(main())
