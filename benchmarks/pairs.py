"""Measure pairs whose queries are all different: ``python -m benchmarks.pairs --database sqlite --rounds 3``.

The service has one API process and one worker with the demonstration model, on SQLite as in ``scoreline up``, or on a
private PostgreSQL. In each round, one after the other:

- ``scoreline run`` scores a file whose rows have one query, and a file whose rows have a query each;
- ``Client.map`` scores pairs with a query each, and a batch scores the same; one job has as many items.

Prints rows per second; the last line is JSON, with the median of the rounds. The exit status is 1 if pairs get other
scores in one way than in another.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.batches.__main__ import KEY, Service
from benchmarks.upload import READY_SECONDS
from scoreline.client import Client, Unreachable
from scoreline.client.batch_results import BatchResult
from scoreline.server_process import python_command
from tests.services import wait_until

COMMAND = ("-c", "from scoreline.command import main; main()")
LABELS = [" yes", " no"]
WORKER = ("-m", "workers.engine_loop")
ITEM = "Document: Room {0} was clean, and its window looked onto the garden.\nRelevant:"


def pair(round_number: int, number: int) -> tuple[str, list[str]]:
    """Return a query that no other pair of any round has, and its item."""
    return f"Query: what is said of room {number} in the report {round_number}?\n", [ITEM.format(number)]


class Measurement:
    """Scores pairs in several ways."""

    def __init__(self, service: Service, client: Client, folder: Path) -> None:
        self._service, self._client, self._folder = service, client, folder
        self.rates = defaultdict[str, list[float]](list)

    def round(self, number: int, rows: int, pairs: int) -> bool:
        """Measure each way once, and return whether all ways give the same scores."""
        one_query = pair(number, -1)[0]
        items = [pair(number, place)[1][0] for place in range(rows)]
        several = [pair(number, place) for place in range(rows)]
        self._run("one_query", [(one_query, item) for item in items])
        by_run = self._run("distinct_queries", [(query, item) for query, [item] in several])[:pairs]
        several = several[:pairs]
        by_map = self._timed("map", pairs, lambda: [one.scores[0] for one in self._client.map(several, labels=LABELS)])
        by_batch = self._timed("batch", pairs, lambda: self._batch(several))
        self._timed("job", pairs, lambda: self._job(one_query, items[:pairs]))
        return by_run == by_map == by_batch

    def _timed(self, name: str, rows: int, work: Callable[[], list[list[float]]]) -> list[list[float]]:
        began = time.monotonic()
        scores = work()
        self.rates[name].append(rate := rows / (time.monotonic() - began))
        print(f"{name}: {rate:,.0f} rows/s", flush=True)
        return scores

    def _run(self, name: str, rows: list[tuple[str, str]]) -> list[list[float]]:
        """Run the command, which prints its own time, without that of its start."""
        source, target = self._folder / f"{name}.jsonl", self._folder / f"{name}.scores.jsonl"
        source.write_text("".join(json.dumps({"query": query, "item": item}) + "\n" for query, item in rows))
        target.unlink(missing_ok=True)
        labels = [word for label in LABELS for word in ("--label", label)]
        columns = ["--query-column", "query", "--item-column", "item"]
        command = python_command(*COMMAND, "run", str(source), *columns, *labels, "--json", "-o", str(target))
        variables = self._service.variables | {"SCORELINE_URL": self._service.url, "SCORELINE_API_KEY": KEY}
        said = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout
        self.rates[name].append(rate := len(rows) / json.loads(said.splitlines()[-1])["seconds"])
        print(f"{name}: {rate:,.0f} rows/s", flush=True)
        written = map(json.loads, target.read_text().splitlines())
        return [[row[label.strip()] for label in LABELS] for row in written]

    def _batch(self, pairs: list[tuple[str, list[str]]]) -> list[list[float]]:
        bodies = {str(n): {"query": query, "items": items, "labels": LABELS} for n, (query, items) in enumerate(pairs)}
        batch = self._client.wait_batch(self._client.batch(bodies))
        return [_scores(one)[0] for one in self._client.batch_results(batch)]

    def _job(self, query: str, items: list[str]) -> list[list[float]]:
        job = self._client.wait(self._client.submit(query, items, labels=LABELS))
        return [list(row) for row in self._client.result(job).scores]


def _scores(answer: BatchResult) -> list[list[float]]:
    assert answer.scores is not None, answer.error
    return answer.scores.scores


def main() -> int:
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_000, help="of the files that `scoreline run` reads")
    parser.add_argument("--pairs", type=int, default=1_000, help="of the other ways")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="sqlite")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scoreline-pairs-")))
        service = Service(stack, folder, given.database, WORKER)
        client = stack.enter_context(Client(service.url, api_key=KEY))
        wait_until(lambda: _is_ready(client), "the service is ready", READY_SECONDS)
        measurement = Measurement(service, client, folder)
        same = [measurement.round(number, given.rows, given.pairs) for number in range(given.rounds)]
    rates = {name: round(statistics.median(of_rounds)) for name, of_rounds in measurement.rates.items()}
    share = round(rates["distinct_queries"] / rates["one_query"], 3)
    report = {"database": given.database, "rounds": given.rounds, "rows_per_second": rates}
    print(json.dumps(report | {"distinct_over_one_query": share, "same_scores": all(same)}))
    return int(not all(same))


def _is_ready(client: Client) -> bool:
    try:
        return bool(client.models()[0].live_workers)
    except Unreachable:
        return False


if __name__ == "__main__":
    sys.exit(main())
