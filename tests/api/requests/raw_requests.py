"""Requests over plain sockets, which a client can leave unfinished or break off, and tenants that send them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from jobs.store.database import Database
from jobs.tenancy.keys import Scope, create_key
from tests.api.server.raw_client import RawClient, head
from tests.api.serving import KEY, RunningApi

JSON = {"Content-Type": "application/json"}


def head_of(line: str, headers: Mapping[str, str], key: str) -> bytes:
    """Return the head of a request with an API key."""
    sent = {"Authorization": f"Bearer {key}", **headers}
    return head(*(f"{name}: {value}" for name, value in sent.items()), line=f"{line} HTTP/1.1")


def begin(
    api: RunningApi, line: str, headers: Mapping[str, str] | None = None, body: bytes = b"", key: str = KEY
) -> RawClient:
    """Begin a request on a connection of its own: send its head, and bytes of its body."""
    client = RawClient(api)
    client.send(head_of(line, headers or {}, key), body)
    return client


def begin_body(api: RunningApi, path: str, declared: int, body: bytes = b"", key: str = KEY) -> RawClient:
    """Begin a request with a JSON body of a declared length."""
    return begin(api, f"POST {path}", {**JSON, "Content-Length": str(declared)}, body, key)


def begin_json(api: RunningApi, path: str, content: Any, key: str = KEY) -> RawClient:
    """Send a request with a JSON body."""
    body = json.dumps(content).encode()
    return begin_body(api, path, len(body), body, key)


def key_of(api: RunningApi, tenant: str) -> str:
    """Return a new key of a tenant, which is made if need be."""
    with closing(Database.open(api.store)) as store:
        return create_key(store, tenant, tenant, frozenset(Scope))[0]
