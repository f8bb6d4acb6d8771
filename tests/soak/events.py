"""A receiver of webhooks that often fails, and a check of what it has received."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

FAILURES = 0.3
"""The share of requests that fail: they are refused, cut off, or never answered."""


class EventReceiver:
    """Verifies and records each webhook, then accepts it or fails at random."""

    def __init__(self, seed: int, hang_seconds: float) -> None:
        self.secret = ""  # of the tenant; to be set before a webhook comes
        self.ids: defaultdict[str, set[str]] = defaultdict(set)  # webhook ids by job id
        self.accepted: set[tuple[str, str]] = set()  # job ids and types of events that were answered with 200
        self.unverified: list[str] = []
        self.requests = 0
        self._chance = random.Random(f"{seed} receiver")
        self._hang_seconds = hang_seconds
        self._lock = threading.Lock()
        self._closing = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status = receiver.receive(headers, body)
                if status is not None:
                    self.send_response(status)
                    self.send_header("content-length", "0")
                    self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/events"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> EventReceiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def receive(self, headers: Mapping[str, str], body: bytes) -> int | None:
        """Record a request. Return the status to answer it with; None: close the connection without an answer."""
        with self._lock:
            self.requests += 1
            try:
                Webhook(self.secret).verify(body, dict(headers))
                event = json.loads(body)
                job_id, kind = event["data"]["id"], event["type"]
            except (WebhookVerificationError, ValueError, KeyError) as error:
                self.unverified.append(f"{headers.get('webhook-id')}: {error!r}")
                return 400
            self.ids[job_id].add(headers["webhook-id"])
            luck = self._chance.random() / FAILURES
            if luck >= 1:
                self.accepted.add((job_id, kind))
                return 200
        if luck < 0.1:
            self._closing.wait(self._hang_seconds)
        return 500 if luck < 0.6 else None

    def has_accepted(self, job_id: str, status: str) -> bool:
        """Return whether the webhook about the end of a job with this status was accepted."""
        with self._lock:
            return (job_id, f"job.{status}") in self.accepted


def check_events(receiver: EventReceiver, ends: Mapping[str, str], seconds: float) -> tuple[list[str], list[str]]:
    """Return the webhooks that did not come within so many seconds, and those that should not have come.

    ends: the status of every ended job, by its id.
    """
    deadline = time.monotonic() + seconds
    untold = dict(ends)
    while untold and time.monotonic() < deadline:
        untold = {job_id: status for job_id, status in untold.items() if not receiver.has_accepted(job_id, status)}
        time.sleep(0.05)
    misdelivered = [f"unsigned: {what}" for what in receiver.unverified]
    misdelivered += [f"{job_id} came as {sorted(ids)}" for job_id, ids in receiver.ids.items() if len(ids) > 1]
    misdelivered += [
        f"{job_id} was told to have ended with {kind}, and has {ends.get(job_id)}"
        for job_id, kind in sorted(receiver.accepted)
        if kind != f"job.{ends.get(job_id)}"
    ]
    return [f"{job_id} has {status}, and nobody was told" for job_id, status in untold.items()], misdelivered
