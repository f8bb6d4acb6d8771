"""Attacks with JSON lines, plain and packed."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from random import Random

from tests.hostile.attacks.attack import Attack, Caller, Ending, Plan, request_of
from tests.hostile.attacks.values import Value, values
from tests.hostile.document import JSON_LINES, Document, Operation

MEBIBYTE = 2**20


def upload_attacks(document: Document) -> Iterator[Attack]:
    """Yield the attacks on operations that take JSON lines."""
    for operation in document.operations:
        if operation.media_type == JSON_LINES:
            yield from _lines(operation)
            yield from _packed(operation)


def _upload(
    operation: Operation,
    kind: str,
    name: str,
    body: Callable[[Random, bytes], bytes],
    *,
    packed: bool = False,
    heavy: bool = False,
    ending: Ending = Ending.READ,
) -> Attack:
    def plan(chance: Random, caller: Caller) -> Plan:
        first, _, _ = operation.example.partition(b"\n")
        request = request_of(operation, caller, body(chance, first + b"\n"))
        if packed:
            request = request.having(b"Content-Encoding", b"gzip")
        return Plan([request.encode()], ending=ending)

    right = operation if ending is Ending.READ else None
    return Attack(kind, f"{operation}: JSON lines", name, plan, right, heavy=heavy)


def _lines(operation: Operation) -> Iterator[Attack]:
    for value in values():
        yield _upload(operation, value.kind, f"an item: {value.name}", _with_item(value), heavy=value.heavy)
    bodies: list[tuple[str, str, Callable[[Random, bytes], bytes]]] = [
        ("wrong type", "no first line", lambda _, first: b'"item"\n"item"\n'),
        ("wrong type", "the first line twice", lambda _, first: first * 2),
        ("wrong type", "items in the first line", lambda _, first: first[:-2] + b',"items":["a"]}\n"b"\n'),
        ("half sent", "no line end", lambda _, first: first + b'"a"\n"b'),
        ("too many", "a megabyte of newlines", lambda _, first: first + b"\n" * MEBIBYTE),
        ("too many", "newlines first", lambda _, first: b"\n" * MEBIBYTE + first),
        ("too many", "100,000 empty items", lambda _, first: first + b'""\n' * 100_000),
        ("too long", "a line of three megabytes", lambda _, first: first + b'"' + b"a" * (3 * MEBIBYTE) + b'"\n'),
        (
            "too long",
            "a first line of three megabytes",
            lambda _, first: first[:-2] + b',"u":"' + b"a" * (3 * MEBIBYTE) + b'"}\n"a"\n',
        ),
        ("too long", "each item behind a long query", _long_query),
    ]
    for kind, name, body in bodies:
        yield _upload(operation, kind, name, body, heavy="mega" in name or name == "each item behind a long query")


def _with_item(value: Value) -> Callable[[Random, bytes], bytes]:
    return lambda chance, first: first + value.make(chance) + b"\n"


def _long_query(chance: Random, first: bytes) -> bytes:
    job = json.loads(first)
    job |= {"query": "the capital of France " * 150, "item_first": True}
    return json.dumps(job).encode() + b"\n" + b'"a"\n' * 20_000


@cache
def _repeating(mebibytes: int, first: bytes = b"", byte: bytes = b"\n") -> bytes:
    """Return ``first`` and this many mebibytes of one byte, packed a thousandfold."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packer.compress(first), *(packer.compress(byte * MEBIBYTE) for _ in range(mebibytes)), packer.flush()]
    return b"".join(parts)


def _packed(operation: Operation) -> Iterator[Attack]:
    bodies: list[tuple[str, Callable[[Random, bytes], bytes]]] = [
        ("200 MB of newlines", lambda _, first: _repeating(200, first)),
        ("200 MB of spaces in one line", lambda _, first: _repeating(200, first, b" ")),
        ("200 MB of one item", lambda _, first: _repeating(200, first + b'"', b"a")),
        ("200 MB before the first line", lambda _, first: _repeating(200)),
        ("50,000 empty members", lambda _, first: gzip.compress(first) + gzip.compress(b"") * 50_000),
        ("50,000 members of one newline", lambda _, first: gzip.compress(first) + gzip.compress(b"\n") * 50_000),
        ("packed twice", lambda _, first: gzip.compress(gzip.compress(first + b'"a"\n'))),
        ("cut off", lambda _, first: gzip.compress(first + b'"a"\n' * 1_000)[:-9]),
        ("a wrong checksum", lambda _, first: gzip.compress(first + b'"a"\n')[:-8] + b"\x00" * 8),
        ("not packed at all", lambda _, first: first + b'"a"\n'),
        ("bytes behind it", lambda _, first: gzip.compress(first + b'"a"\n') + b"garbage"),
        ("a header with a long name", lambda _, first: b"\x1f\x8b\x08\x08\x00\x00\x00\x00\x00\x03" + b"n" * MEBIBYTE),
        ("bits changed by chance", _broken),
    ]
    for name, body in bodies:
        heavy = "200 MB" in name or "50,000" in name
        yield _upload(operation, "packed", name, body, packed=True, heavy=heavy)
        yield _upload(operation, "packed", f"{name}, then a reset", body, packed=True, heavy=heavy, ending=Ending.ABORT)


def _broken(chance: Random, first: bytes) -> bytes:
    packed = bytearray(gzip.compress(first + b'"some text"\n' * 1_000))
    for _ in range(5):
        packed[chance.randrange(len(packed))] ^= 1 << chance.randrange(8)
    return bytes(packed)
