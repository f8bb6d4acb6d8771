"""A few hundred requests of attackers to an API. ``make hostile`` sends many more, to a whole deployment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.api.serving import KEY, RunningApi, running_api
from tests.api.tiny_model import make_model_directory
from tests.hostile.assault import Assault
from tests.hostile.attacks.attack import Caller
from tests.hostile.document import read_document

REQUESTS = 400

BRIEF: dict[str, Any] = {
    "header_seconds": 0.5,
    "body_silence_seconds": 0.5,
    "body_seconds": 1.0,
    "upload_timeout_seconds": 2.0,
    "send_seconds": 0.5,
    "call_timeout_seconds": 5.0,
    "max_call_timeout_seconds": 5.0,
}
"""Settings of a server that waits only briefly for what is late."""

PAUSE, STALL, PATIENCE = 0.05, 1.0, 30.0
"""Seconds: between the pieces of what is sent slowly; for which slow readers read nothing; which no attack may take."""


@pytest.fixture
def api(tmp_path: Path, sqlite_url: str) -> Iterator[RunningApi]:
    """A server that asks for a key, as it does on every address that others can reach."""
    model = make_model_directory(tmp_path / "tiny")
    with running_api(model, sqlite_url, tmp_path, with_worker=True, host="0.0.0.0", **BRIEF) as (api, _):
        yield api


def test_a_few_hundred_attacks_get_only_answers_that_are_documented(api: RunningApi) -> None:
    document = read_document(api.client.get("/openapi.json").json())
    job = api.submit(query="The capital of", items=["France"], label_token_ids=[70])
    callers = [Caller(key, job["id"], "job_0") for key in (KEY, None, "k" * 32)]
    assault = Assault(
        urlsplit(api.url).port or 0, document, callers, seed=1, pause=PAUSE, stall=STALL, patience=PATIENCE, heavy=False
    )
    tally = asyncio.run(assault.run(REQUESTS, seconds=120))
    assert not tally.findings, "\n".join(f"{finding.what}: {finding}" for finding in tally.findings)
    assert tally.requests >= REQUESTS
    assert api.score(query="The capital of", items=["France"], label_token_ids=[70])["scores"]
