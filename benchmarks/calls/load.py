"""The calls that every system gets, and wrk, which sends them.

The query is the same in all calls, as it is for users who classify many texts. Every item has a number of its own.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.services import die_with_parent

QUERY = (
    "You read reviews that guests of our hotels have left in their own words. Read the review and say whether the "
    "guest was happy with the stay as a whole. Think of the room, the staff, the breakfast, the noise and the price. "
    "If the guest praises one thing and complains of another, decide by what the guest would tell a friend. The answer "
    "is one word: positive or negative.\nReview: "
)
ITEM = "The room was spotless and the staff were kind, but breakfast came late on the day of booking %d.\nSentiment:"
LABELS = (" positive", " negative")
PATH = "/v1/score"
SCRIPT = Path(__file__).with_name("wrk.lua")
ANSWER_SECONDS = 60
"""A call that takes longer counts as failed."""


class MissingWrkError(Exception):
    """wrk is not installed here."""


@dataclass(frozen=True, slots=True)
class Level:
    """How many clients call at the same time, each again as soon as it has its answer, and the items of each call."""

    clients: int
    items: int

    def __str__(self) -> str:
        return str(self.clients) if self.items == 1 else f"{self.clients}x{self.items}"


@dataclass(frozen=True, slots=True)
class Answered:
    """What wrk counted, and the processor time that it took itself."""

    calls: int
    seconds: float
    median_ms: float
    p99_ms: float
    not_200: int  # other answers, and calls without an answer
    cpu_seconds: float


def texts(first: int, count: int) -> list[str]:
    """Return ``count`` items, whose numbers begin with ``first``."""
    return [ITEM % number for number in range(first, first + count)]


def body(items: list[str]) -> dict[str, object]:
    """Return the body of a call."""
    return {"query": QUERY, "items": items, "labels": LABELS, "apply_softmax": True}


def find_wrk() -> str:
    """Return the path of wrk. Raises MissingWrkError."""
    found = shutil.which("wrk")
    if found is None:
        raise MissingWrkError("wrk is not installed: apt-get install wrk")
    return found


def send_calls(url: str, key: str, level: Level, seconds: int, first: int) -> Answered:
    """Call a system for some seconds.

    key: sent as bearer token, unless it is empty; first: number of the first item.
    """
    head, tail = json.dumps(body(["|"])).split('"|"')
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    command = [
        *(find_wrk(), "--threads", "1", "--connections", str(level.clients), "--duration", f"{seconds}s"),
        *("--timeout", f"{ANSWER_SECONDS}s", "--script", str(SCRIPT)),
        *(word for name, value in headers.items() for word in ("--header", f"{name}: {value}")),
        *(url + PATH, "--", head, json.dumps(ITEM), tail, str(first), str(level.items)),
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=die_with_parent(signal.SIGKILL))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"wrk ended with status {done.returncode}: {done.stderr.strip()}")
    cpu_seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Answered(**json.loads(done.stdout.splitlines()[-1]), cpu_seconds=cpu_seconds)
