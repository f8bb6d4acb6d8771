"""Attacks whose small requests would have the service store much: the scores of many items and many labels."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.hostile.attacks.attack import Attack, Caller, Plan, once, request_of
from tests.hostile.document import JSON_LINES, Document, Operation

KIND = "stores much"

LABELS = list(range(256))


def storing_attacks(document: Document) -> Iterator[Attack]:
    """Yield the attacks, each with a request of a few kilobytes."""
    jobs = document.operation("post", "/v1/jobs")
    lines = document.operation("post", "/v1/jobs", JSON_LINES)
    files = document.operation("post", "/v1/files", "multipart/form-data")
    score: dict[str, Any] = {"query": "a", "label_token_ids": LABELS}
    yield _job(jobs, "empty items behind 256 labels", score)
    yield _job(jobs, "the same with logits and log-probabilities", score | {"return_logits": True})
    sequences = {"query": "a", "label_token_sequences": [[n] * 8 for n in LABELS], "label_scoring": "sequence"}
    yield _job(jobs, "empty items behind 256 labels of eight tokens", sequences)
    yield _packed(lines, "a gzip file of empty items behind 256 labels", score)
    yield _file(files, "a file whose lines have large answers", score | {"items": [""] * 900, "return_logits": True})


def _job(operation: Operation, name: str, body: dict[str, Any]) -> Attack:
    def plan(chance: Random, caller: Caller) -> Plan:
        content = json.dumps(body | {"items": [""] * chance.choice((1_000, 2_000))}).encode()
        return once(request_of(operation, caller, content))

    return Attack(KIND, str(operation), name, plan, operation, keyed=True, heavy=True)


def _packed(operation: Operation, name: str, first: dict[str, Any]) -> Attack:
    def plan(chance: Random, caller: Caller) -> Plan:
        items = b'""\n' * chance.choice((2_000, 4_000))
        content = gzip.compress(json.dumps(first).encode() + b"\n" + items)
        return once(request_of(operation, caller, content).having(b"Content-Encoding", b"gzip"))

    return Attack(KIND, str(operation), name, plan, operation, keyed=True, heavy=True)


def _file(operation: Operation, name: str, body: dict[str, Any]) -> Attack:
    def plan(_: Random, caller: Caller) -> Plan:
        request = {"method": "POST", "url": "/v1/score", "body": body}
        lines = b"".join(json.dumps({"custom_id": str(n)} | request).encode() + b"\n" for n in range(8))
        part = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
        file = part.replace(b'"%b"', b'"file"; filename="a"') % lines
        form = part % (b"purpose", b"batch") + file + b"--x--\r\n"
        sent = request_of(operation, caller, form).having(b"Content-Type", b"multipart/form-data; boundary=x")
        return once(sent)

    return Attack(KIND, str(operation), name, plan, operation, keyed=True, heavy=True)
