"""Attacks on JSON bodies: each field with each hostile value, and bodies that are wrong as a whole."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.hostile.attacks.attack import Attack, Caller, Plan, once, request_of
from tests.hostile.attacks.values import Value, values
from tests.hostile.document import JSON, Document, Operation

PLACE = '"@hostile@"'
"""The string in whose place the JSON text of a hostile value is put."""


def field_attacks(document: Document) -> Iterator[Attack]:
    """Yield the attacks on fields."""
    hostile = values()
    for operation in document.operations:
        if operation.media_type == JSON:
            for field in operation.fields:
                for value in hostile:
                    yield _on_field(operation, field, value)


def _on_field(operation: Operation, field: str, value: Value) -> Attack:
    before, after = _around(operation, field)

    def plan(chance: Random, caller: Caller) -> Plan:
        return once(request_of(operation, caller, before + value.make(chance) + after))

    return Attack(value.kind, f"{operation}: {field}", value.name, plan, operation, heavy=value.heavy)


def _around(operation: Operation, field: str) -> tuple[bytes, bytes]:
    """Return the valid body before and after the place of a field, which is added if the body lacks it."""
    body = json.loads(operation.example)
    steps = [int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", field)]
    if steps[0] == "labels":
        body.pop("label_token_ids", None)
    node: Any = body
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        here: Any = PLACE[1:-1] if following is None else [] if following == 0 else {}
        if isinstance(step, int):
            node.append(here)
        elif following is None or not isinstance(node.get(step), type(here)) or following == 0:
            node[step] = here
        node = node[step]
    before, _, after = json.dumps(body).partition(PLACE)
    return before.encode(), after.encode()


def body_attacks(document: Document) -> Iterator[Attack]:
    """Yield the attacks with bodies that are wrong as a whole."""
    for operation in document.operations:
        if operation.media_type == JSON:
            for kind, name, change in _CHANGES:
                yield _changed(operation, kind, name, change)


Change = Callable[[Random, bytes], bytes]


def _changed(operation: Operation, kind: str, name: str, change: Change) -> Attack:
    def plan(chance: Random, caller: Caller) -> Plan:
        return once(request_of(operation, caller, change(chance, operation.example)))

    return Attack(kind, f"{operation}: body", name, plan, operation, heavy="00,000" in name or "megabyte" in name)


def _with_members(members: bytes) -> Change:
    return lambda _, body: body[:-1] + b"," + members + b"}"


def _mutated(chance: Random, body: bytes) -> bytes:
    """Return the body with a few bytes changed, left out or doubled."""
    changed = bytearray(body)
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(changed))
        match chance.randrange(4):
            case 0:
                changed[place] = chance.randrange(256)
            case 1:
                del changed[place]
            case 2:
                changed[place:place] = changed[place : place + 1] * chance.choice([1, 10, 1_000])
            case _:
                changed[place : place + 1] = chance.choice([b'"', b"{", b"]", b",", b"\\", b"\x00", b"\xff", b"1e9"])
    return bytes(changed)


_CHANGES: list[tuple[str, str, Change]] = [
    ("wrong type", "empty but for a space", lambda _, body: b" "),
    ("wrong type", "null", lambda _, body: b"null"),
    ("wrong type", "a list of the body", lambda _, body: b"[" + body + b"]"),
    ("wrong type", "a string of the body", lambda _, body: json.dumps(body.decode()).encode()),
    ("wrong type", "not JSON", lambda _, body: b"query=1&items=2"),
    ("wrong type", "no field at all", lambda _, body: b"{}"),
    ("half sent", "its first half, as if whole", lambda _, body: body[: len(body) // 2]),
    ("repeated", "the body twice", lambda _, body: body * 2),
    ("repeated", "every field twice", lambda _, body: body[:-1] + b"," + body[1:]),
    ("repeated", "one key 100,000 times", _with_members(b",".join([b'"query":"a"'] * 100_000))),
    ("too long", "a megabyte of spaces around it", lambda _, body: b" " * 2**19 + body + b"\n" * 2**19),
    ("too long", "forty megabytes of spaces", lambda _, body: body + b" " * (40 * 2**20)),
    ("too long", "an unknown field with a name of a megabyte", _with_members(b'"' + b"n" * 2**20 + b'":1')),
    ("too many", "100,000 unknown fields", _with_members(b",".join(b'"u%d":%d' % (n, n) for n in range(100_000)))),
    ("too many", "a list of 400,000 empty lists", _with_members(b'"u":[' + b",".join([b"[]"] * 400_000) + b"]")),
    ("unusual text", "a byte order mark before it", lambda _, body: b"\xef\xbb\xbf" + body),
    ("unusual text", "UTF-16", lambda _, body: body.decode().encode("utf-16")),
    ("unusual text", "comments", lambda _, body: b"/* */" + body),
    ("unusual text", "a lone surrogate as a name", _with_members(rb'"\ud800":1')),
    ("unusual text", "bytes by chance", lambda chance, body: chance.randbytes(chance.randint(1, 2_000))),
    ("changed by chance", "a few bytes", _mutated),
    ("changed by chance", "a few bytes, again", _mutated),
]
