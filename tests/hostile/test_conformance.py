"""Every answer is documented, whatever is sent: checked by schemathesis, which reads the OpenAPI document."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.api.serving import KEY, RunningApi, running_api
from tests.api.tiny_model import make_model_directory
from tests.hostile.conformance import undocumented_answers

SEED = 1
EXAMPLES = 10
"""Few, besides those that schemathesis makes systematically: `make hostile` sends many."""


@pytest.fixture
def api(tmp_path: Path, sqlite_url: str) -> Iterator[RunningApi]:
    """A server that asks for a key, as it does on every address that others can reach."""
    model = make_model_directory(tmp_path / "tiny")
    with running_api(
        model, sqlite_url, tmp_path, host="0.0.0.0", call_timeout_seconds=5.0, max_call_timeout_seconds=5.0
    ) as (api, _):
        yield api


@pytest.mark.slow
def test_every_answer_is_documented(api: RunningApi, tmp_path: Path) -> None:
    assert not undocumented_answers(api.url, KEY, tmp_path, examples=EXAMPLES, seed=SEED)


class Liar(BaseHTTPRequestHandler):
    """A server whose document promises something else than what it answers."""

    def do_GET(self) -> None:
        answers = {"200": {"description": "fine", "content": {"application/json": {"schema": {"type": "integer"}}}}}
        document = {
            "openapi": "3.1.0",
            "info": {"title": "liar", "version": "1"},
            "paths": {"/number": {"get": {"responses": answers}}},
        }
        body = json.dumps(document if self.path == "/openapi.json" else "a text").encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.mark.slow
def test_an_undocumented_answer_is_found(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Liar) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = undocumented_answers(f"http://127.0.0.1:{server.server_port}", KEY, tmp_path, examples=5, seed=SEED)
        server.shutdown()
    assert "GET /number" in found
    assert "not of type" in found
