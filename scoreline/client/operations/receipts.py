"""Receipts: the keys by which they are verified, and a request that is sent once more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scoreline.client.errors import InvalidRequest
from scoreline.client.exchange.bodies import JsonBody
from scoreline.client.exchange.flow import Flow, Request
from scoreline.client.exchange.sending import Service, send
from scoreline.client.operations.scoring import call
from scoreline.client.operations.submitting import submitted
from scoreline.client.operations.waiting import wait
from scoreline.client.tables import NOTHING_ASKED

TIMEOUT = 600.0
"""Seconds for which the result of a job is waited for. The answer to a call takes as long as its body allows."""


def receipt_keys(service: Service) -> Flow[Mapping[str, Any]]:
    """Return the public keys by which receipts are verified, as a JSON Web Key Set.

    >>> [key["crv"] for key in client.receipt_keys()["keys"]]
    ['Ed25519']
    """
    return (yield from send(service, Request("GET", "/.well-known/jwks.json", dict)))


def repeat(service: Service, path: str, body: Mapping[str, Any]) -> Flow[Mapping[str, Any]]:
    """Send a body to a path of the service as it is, and return the answer: of a job, its result once it has succeeded.

    >>> answer = client.repeat("/v1/score", {"query": "Review: ", "items": ["A lovely room."], "labels": [" positive"]})
    >>> len(answer["scores"])
    1
    """
    if path != "/v1/jobs":
        return (yield from send(service, call(path, dict, body, TIMEOUT, None)))
    job = yield from submitted(service, JsonBody(body), None, NOTHING_ASKED, wants_computed=True)
    ended = yield from wait(service, job, timeout=TIMEOUT)
    if "result" not in ended.raw:
        raise InvalidRequest("invalid_request", f"{ended.id} is too long to be read with its result")
    return dict(ended.raw["result"])
