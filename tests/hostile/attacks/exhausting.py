"""Attacks by what is never read, and by few bytes that stand for much work, each a kind of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

from tests.hostile.attacks.attack import Attack, Caller, Ending, Plan, Request, request_of
from tests.hostile.document import Document, Operation

STREAMS = 40
"""Connections of one attack that keep something in the memory of the service."""

ENDLESS = b"99999999999"
LONG_HEADER = 31_000
PIECES = 400
"""Pieces of an endless body, of 64 KiB, after which the client stops sending."""


def exhausting_attacks(document: Document) -> Iterator[Attack]:
    """Yield the attacks."""
    yield from _endless_bodies(document)
    yield from _unread_answers(document)
    yield from _costly_parsing(document)
    yield from _many_pairs(document)
    yield from _probes(document)


def _many(
    kind: str,
    operation: Operation,
    name: str,
    pieces: Callable[[Request], Iterable[bytes]],
    *,
    body: bytes | None = None,
    requests: int = 1,
    connections: int = 1,
    ending: Ending = Ending.READ,
    slow: bool = False,
    keyed: bool = True,
    heavy: bool = True,
    slowly: bool = False,
) -> Attack:
    def plan(_: Random, caller: Caller) -> Plan:
        # What waits for the end of a job waits for as long as it may.
        made = pieces(request_of(operation, replace(caller, job_id=caller.waiting_job_id), body))
        return Plan(made, requests, ending=ending, connections=connections, slowly=slowly)

    return Attack(kind, str(operation), name, plan, None, slow, keyed, heavy)


def _endless_bodies(document: Document) -> Iterator[Attack]:
    """Yield bodies for routes that read none. A stream looks for its client's departure again and again."""
    kind = "endless body"
    for path in ("/v1/jobs/{job_id}/events", "/v1/jobs/{job_id}", "/v1/jobs/{job_id}/scores", "/v1/models"):
        operation = document.operation("get", path)

        def endless(request: Request) -> Iterable[bytes]:
            waiting = request.having(b"Prefer", b"wait=60").having(b"Content-Length", ENDLESS)
            return [waiting.head(), *([b"0" * 2**16] * PIECES)]

        def in_chunks(request: Request) -> Iterable[bytes]:
            waiting = request.having(b"Prefer", b"wait=60").having(b"Transfer-Encoding", b"chunked")
            return [waiting.head(), *([b"10000\r\n" + b"0" * 2**16 + b"\r\n"] * PIECES)]

        for name, pieces in (("of 100 GB", endless), ("of chunks", in_chunks)):
            yield _many(kind, operation, name, pieces, connections=STREAMS, slow=True)
        score = document.operation("post", "/v1/score")

        def ahead(request: Request, score: Operation = score) -> Iterable[bytes]:
            second = Request(b"POST", score.path.encode(), request.headers)
            head = second.having(b"Content-Type", b"application/json").having(b"Content-Length", ENDLESS).head()
            return [request.having(b"Prefer", b"wait=60").head() + head, *([b"0" * 2**16] * PIECES)]

        yield _many(kind, operation, "behind it", ahead, requests=2, connections=STREAMS, slow=True)


def _unread_answers(document: Document) -> Iterator[Attack]:
    """Yield requests of 6 KB whose answers of 15 MB nobody reads, or hardly."""
    labels = list(range(10, 266))
    large = {"query": [70, 71], "items": [[]] * 1_000, "label_token_ids": labels}
    body = json.dumps(large | {"return_logits": True, "return_logprobs": True}).encode()
    score = document.operation("post", "/v1/score")
    for name, ending in (("15 MB that nobody reads", Ending.STALL), ("15 MB and a reset", Ending.ABORT)):
        yield _many(
            "unread answer",
            score,
            name,
            lambda request: [request.encode()],
            body=body,
            connections=STREAMS if ending is Ending.STALL else 1,
            ending=ending,
            slow=ending is Ending.STALL,
        )


def _costly_parsing(document: Document) -> Iterator[Attack]:
    """Yield headers and targets that cost much before anybody knows who is asking."""
    kind = "costly parsing"
    for path in ("/v1/jobs", "/v1/jobs/{job_id}/scores", "/v1/models"):
        operation = document.operation("get", path)
        for name, value in (
            ("Accept", b"," * LONG_HEADER),
            ("Accept", b";q=0," * (LONG_HEADER // 5)),
            ("Accept", b"a" + b";" * LONG_HEADER),
            ("Prefer", b"," * LONG_HEADER),
            ("Prefer", b"wait=x," * (LONG_HEADER // 7)),
            ("Content-Type", b";" * LONG_HEADER),
        ):
            yield _many(
                kind,
                operation,
                f"{name} of {value[:8].decode()}",
                lambda request, name=name, value=value: [request.having(name.encode(), value).encode()],  # type: ignore[misc]
                keyed=False,
                heavy=False,
            )
        for parameter in (b"a&", b"a=&", b"limit=1&", b"%61=%61&"):
            query = parameter * (LONG_HEADER // len(parameter))
            yield _many(
                kind,
                operation,
                f"parameters {parameter.decode()}",
                lambda request, query=query: [  # type: ignore[misc]
                    Request(request.method, request.target + b"?" + query, request.headers).encode()
                ],
                keyed=False,
                heavy=False,
            )


def _many_pairs(document: Document) -> Iterator[Attack]:
    """Yield small bodies whose items and labels make hundreds of thousands of pairs."""
    sequences = [[n] for n in range(10, 260)]
    texts = [chr(97 + n % 26) + chr(97 + n // 26) for n in range(250)]
    several = {"label_scoring": "sequence"}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("800 x 250 sequences", several | {"query": [70, 71], "items": [[]] * 800, "label_token_sequences": sequences}),
        ("750 x 250 texts", several | {"query": "ab", "items": [""] * 750, "labels": texts}),
        (
            "400 x 900 tokens of one label",
            several | {"query": [70, 71], "items": [[]] * 400, "label_token_sequences": [[70] * 900]},
        ),
    ]
    for path in ("/v1/score", "/v1/jobs"):
        operation = document.operation("post", path)
        for name, body in bodies:
            content = json.dumps(body, separators=(",", ":")).encode()
            yield _many("many pairs", operation, name, lambda request: [request.encode()], body=content)


def _probes(document: Document) -> Iterator[Attack]:
    """Yield many questions that anybody may ask, and other spellings of paths that a proxy hides."""
    for path in ("/readyz", "/health", "/v1/models"):
        operation = document.operation("get", path)
        yield _many(
            "many questions",
            operation,
            "sixteen at once",
            lambda request: [request.encode() * 16],
            requests=16,
            connections=10,
            slow=True,
        )
    metrics = document.operation("get", "/metrics")
    for target in (b"/%6detrics", b"/%6D%65trics", b"/metrics%2f", b"//metrics"):
        yield _many(
            "spelling",
            metrics,
            target.decode(),
            lambda request, target=target: [Request(request.method, target, request.headers).encode()],  # type: ignore[misc]
            keyed=False,
            heavy=False,
        )
