"""Attacks that are known to have stopped services like this one, each with one small request or with few of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.hostile.attacks.attack import Attack, Caller, Plan, once, request_of
from tests.hostile.document import JSON_LINES, Document, Operation

KIND = "known attack"


def known_attacks(document: Document) -> Iterator[Attack]:
    """Yield the known attacks."""
    score = document.operation("post", "/v1/score")
    jobs = document.operation("post", "/v1/jobs")
    lines = document.operation("post", "/v1/jobs", JSON_LINES)
    tokenize = document.operation("post", "/v1/tokenize")
    for operation in (score, jobs, tokenize):
        for size in (30_000, 64_000, 128_000):
            yield _with_semicolons(operation, size)
    for operation in (score, jobs):
        yield _body(operation, "the query in every row, which comes first", _query_in_every_row)
        yield _body(operation, "four megabytes of query", lambda _: {"query": "a word " * 600_000, "items": [""]})
        yield _body(operation, "a query of one word that fills the context", _one_word)
        yield _body(operation, "a label of a megabyte", lambda _: {"labels": ["label " * 170_000]})
        yield _body(operation, "256 labels of 4,000 letters", lambda _: {"labels": ["label " * 700] * 256})
        yield _body(operation, "a long query for one empty item", _long_query)
        yield _body(operation, "an emoji beside a long key", _long_key)
        yield _body(operation, "a text behind each item that can not be cut", _uncut_behind_each_item)
        yield _body(operation, "words behind each item", _words_behind_each_item)
        yield _body(operation, "a template of a megabyte", lambda _: {"query_template": "a " * 500_000 + "{query}"})
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        rerank = document.operation("post", path)
        yield _body(rerank, "1,000 documents, cut behind one token", _many_documents)
        yield _body(rerank, "a document of a million words", lambda _: {"documents": ["a word " * 140_000]})
        yield _body(rerank, "an instruction of a megabyte", lambda _: {"instruction": "a word " * 140_000})
    yield _body(
        jobs, "interactive jobs of a long query", lambda chance: _long_query(chance) | {"priority": "interactive"}
    )
    yield _body(lines, "an upload with the query in every row", _query_in_every_row)
    yield _body(tokenize, "two megabytes", lambda _: {"text": "some words " * 190_000})
    yield _body(tokenize, "four megabytes of one letter", lambda _: {"text": "a" * 4_000_000})
    yield _body(tokenize, "as much as may be", lambda _: {"text": "some words " * 9_000})
    yield Attack(KIND, "target", "sequences for a terminal", _for_a_terminal)
    yield Attack(
        KIND,
        f"{score}: connection",
        "an unfinished body of sixty megabytes",
        _unfinished(score),
        slow=True,
        keyed=True,
        heavy=True,
    )
    yield Attack(KIND, "headers", "ten megabytes of headers, without a key", _ten_megabytes_of_headers, heavy=True)


def _body(operation: Operation, name: str, change: Callable[[Random], dict[str, Any]]) -> Attack:
    def plan(chance: Random, caller: Caller) -> Plan:
        first, _, rest = operation.example.partition(b"\n")
        body = json.loads(first) | change(chance)
        if "labels" in body:
            body.pop("label_token_ids", None)
        if operation.media_type == JSON_LINES:
            items = body.pop("items", [])
            rest = b"".join(json.dumps(item).encode() + b"\n" for item in items)
            return once(request_of(operation, caller, json.dumps(body).encode() + b"\n" + rest))
        return once(request_of(operation, caller, json.dumps(body).encode()))

    return Attack(KIND, str(operation), name, plan, operation, keyed=True, heavy=True)


def _with_semicolons(operation: Operation, size: int) -> Attack:
    def plan(_: Random, caller: Caller) -> Plan:
        return once(request_of(operation, caller).having(b"Content-Type", b"application/json;" + b";" * size))

    return Attack(KIND, f"{operation}: Content-Type", f"{size} semicolons", plan)


def _query_in_every_row(chance: Random) -> dict[str, Any]:
    # Words of the demonstration model's context of 1,024 tokens; each of the rows repeats them.
    return {
        "query": "the capital of France is " * 120,
        "items": ["a"] * chance.choice([1_000, 20_000, 60_000]),
        "item_first": True,
    }


def _one_word(chance: Random) -> dict[str, Any]:
    return {"query": "a" * chance.choice([900, 20_000, 400_000]), "items": ["a", "b"] * 400}


def _uncut_behind_each_item(chance: Random) -> dict[str, Any]:
    length = chance.choice([300, 30_000])
    return {"item_template": "{item}" + "a" * length, "items": ["a"] * chance.choice([100, 1_000, 100_000])}


def _words_behind_each_item(chance: Random) -> dict[str, Any]:
    return {
        "item_template": "{item} " + "the capital of France is " * chance.choice([30, 40_000]),
        "items": ["a"] * 900,
    }


def _many_documents(chance: Random) -> dict[str, Any]:
    return {"documents": ["some words " * chance.choice([1, 100])] * 1_000, "max_tokens_per_doc": 1}


def _long_query(chance: Random) -> dict[str, Any]:
    start = chance.randrange(10**9)
    return {"query": f"{start} " + "the capital of France is " * 130, "items": [""]}


def _long_key(_: Random) -> dict[str, Any]:
    return {"\U0001f600" + "k" * 100_000: [[1, 2, 3]] * 50_000, "metadata": {"smile": "\U0001f600"}}


def _for_a_terminal(_: Random, __: Caller) -> Plan:
    path = b"/%1b]52;c;aGVsbG8=%07%1b[2J%0a2026-01-01 [info] forged line"
    return Plan([b"GET " + path.replace(b" ", b"%20") + b" HTTP/1.1\r\nHost: a\r\n\r\n"])


def _unfinished(operation: Operation) -> Callable[[Random, Caller], Plan]:
    def plan(_: Random, caller: Caller) -> Plan:
        head = request_of(operation, caller).having(b"Content-Length", str(31 * 2**20).encode()).head()
        return Plan([head, *([b" " * 2**20] * 30)])

    return plan


def _ten_megabytes_of_headers(_: Random, __: Caller) -> Plan:
    line = b"X-Header: " + b"a" * 1_000 + b"\r\n"
    return Plan([b"GET /livez HTTP/1.1\r\nHost: a\r\n", *([line * 1_000] * 10)])
