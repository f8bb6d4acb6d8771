"""A server that requires keys, with keys of several kinds."""

from __future__ import annotations

from dataclasses import dataclass

import httpx2

from jobs.store.database import Database
from tests.api.serving import RunningApi


@dataclass(frozen=True)
class Guarded:
    """A server that requires keys, its database, and keys by name."""

    api: RunningApi
    store: Database
    keys: dict[str, str]


def send(api: RunningApi, *authorization: str | bytes, path: str = "/v1/jobs") -> httpx2.Response:
    """Send a request with these headers ``Authorization``."""
    values = [value.encode() if isinstance(value, str) else value for value in authorization]
    with api.client_with(None) as client:
        return client.get(path, headers=[(b"authorization", value) for value in values])
