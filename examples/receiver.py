"""Receive Scoreline's webhooks, with the Python client and the standard library.

    WEBHOOK_SECRET=whsec_... python examples/receiver.py

It accepts only recent requests that are signed with its secret. It keeps each event once, however often it is sent,
stores it before it answers, and leaves the processing for later. While secrets are rotated, give it both, separated by
a comma.
"""

from __future__ import annotations

import argparse
import os
import re
import sqlite3
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from scoreline import UntrustedWebhook, verify_webhook

MAX_BODY_BYTES = 65_536


def keep(events: Path, message_id: str, body: bytes) -> bool:
    """Store an event. Returns False if it was stored before: an event may be delivered again, under the same id."""
    with closing(sqlite3.connect(events)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS events (id TEXT PRIMARY KEY, body TEXT NOT NULL)")
        stored = connection.execute("INSERT OR IGNORE INTO events VALUES (?, ?)", (message_id, body.decode()))
        return stored.rowcount == 1


def handler(secrets: list[str], events: Path) -> type[BaseHTTPRequestHandler]:
    """Return the class that handles requests."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # Seconds of silence after which a connection is closed.

        def do_POST(self) -> None:
            length = self.headers.get("content-length", "")
            if not re.fullmatch(r"[0-9]{1,9}", length) or int(length) > MAX_BODY_BYTES:
                return self.answer(413)
            body = self.rfile.read(int(length))
            try:
                event = verify_webhook(body, self.headers.items(), secrets)
            except UntrustedWebhook as reason:
                print(f"refused: {reason}", flush=True)
                return self.answer(401)
            new = keep(events, event.id, body)
            # Any 2xx, and soon: the stored event is processed later, not while the service waits.
            self.answer(204)
            print(f"{'new' if new else 'again'}: {event.id} {event.type} {event.subject_id}", flush=True)
            return None

        def answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing: the lines printed above say more."""

    return Handler


def main() -> None:
    """Receive until Ctrl-C."""
    options = argparse.ArgumentParser(description="Receive Scoreline's webhooks.")
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=9000)
    options.add_argument("--events", type=Path, default=Path("events.db"), help="SQLite file to store them in")
    arguments = options.parse_args()
    secrets = os.environ.get("WEBHOOK_SECRET", "").split(",")
    if not all(secret.startswith("whsec_") for secret in secrets):
        options.error("set WEBHOOK_SECRET to the secret that the service shows: whsec_...")
    with ThreadingHTTPServer((arguments.host, arguments.port), handler(secrets, arguments.events)) as server:
        print(f"receiving at http://{arguments.host}:{server.server_port}/", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped")


if __name__ == "__main__":
    main()
