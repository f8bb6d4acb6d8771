"""Attacks on sets of jobs: one request that stands for 64, whose members may be anything, and answers that hold 64."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.hostile.attacks.attack import Attack, Caller, Plan, Request, once, request_of
from tests.hostile.document import Document, Operation

KIND = "job sets"

MAX_JOBS = 64
LABELS = list(range(256))
JOB: dict[str, Any] = {"query": "a", "items": [""], "label_token_ids": [70]}

MALFORMED = [
    *(b"null", b"7", b'"a job"', b"[]", b"[{}]", b"{}", b'{"jobs":[{}]}', b"1e999", b"-0", b"[" * 60 + b"]" * 60),
    *(rb'{"query":"\ud800","items":[""],"label_token_ids":[70]}', b'{"query":{"query":{}},"items":{"":[]}}'),
    *(b'{"items":[""],"label_token_ids":[1e300]}', b'{"query":"a","items":["",[],7,null],"label_token_ids":[70]}'),
    b'{"query":"a","items":[""],"label_token_ids":[' + b"9" * 4_000 + b"]}",
]
"""JSON texts that are no job, or a wrong one."""

BODIES: list[tuple[str, bytes]] = [
    ("no list", b'{"jobs":{"0":{}}}'),
    ("nothing in it", b'{"jobs":[]}'),
    ("a field beside the jobs", b'{"jobs":[{}],"priority":"bulk"}'),
    ("the jobs twice", b'{"jobs":[{}],"jobs":null}'),
    ("a job too many", json.dumps({"jobs": [JOB] * (MAX_JOBS + 1)}).encode()),
    ("100,000 empty jobs", b'{"jobs":[' + b",".join([b"{}"] * 100_000) + b"]}"),
    ("a set in a set in a set", b'{"jobs":[' * 500 + b"{}" + b"]}" * 500),
]

KEYS: list[tuple[str, Any]] = [
    ("a number", 7),
    ("an empty text", ""),
    ("a text of 256 letters", "k" * 256),
    ("a line break", "a\nb"),
    ("a list", [["a"]]),
]


def job_set_attacks(document: Document) -> Iterator[Attack]:
    """Yield the attacks."""
    post = document.operation("post", "/v1/jobs/sets")
    yield from _much_work(post)
    for name, body in BODIES:
        yield _sends(post, name, lambda _, body=body: body)  # type: ignore[misc]
    yield _sends(post, "malformed jobs, in any order", _malformed)
    yield _sends(post, "one malformed job among 63 good ones", _one_malformed)
    yield from _repeated_keys(post)
    yield from _reading(document.operation("get", "/v1/jobs/sets"))


def _sends(operation: Operation, name: str, body: Callable[[Random], bytes], *, heavy: bool = False) -> Attack:
    def plan(chance: Random, caller: Caller) -> Plan:
        return once(request_of(operation, caller, body(chance)))

    return Attack(KIND, str(operation), name, plan, operation, keyed=True, heavy=heavy)


def _set_of(jobs: list[dict[str, Any]]) -> bytes:
    return json.dumps({"jobs": jobs}, separators=(",", ":")).encode()


def _much_work(operation: Operation) -> Iterator[Attack]:
    """Yield sets of some hundred kilobytes, whose 64 jobs have hundreds of thousands of pairs each, or long queries."""
    many = {"query": "a", "items": [""] * 1_000}
    sequences = {"label_token_sequences": [[n] * 8 for n in LABELS], "label_scoring": "sequence"}
    long = JOB | {"query": "a word " * 8_500}
    jobs: list[tuple[str, dict[str, Any]]] = [
        ("1,000 items and 256 labels each", many | {"label_token_ids": LABELS}),
        ("1,000 items and 256 labels of eight tokens each", many | sequences),
        ("a query of 60 KB each", long),
        ("a query of 60 KB in each of 200 rows", long | {"items": [""] * 200, "item_first": True}),
        ("interactive jobs", JOB | {"items": [" word"] * 1_000, "priority": "interactive"}),
    ]
    for name, job in jobs:
        body = _set_of([job] * MAX_JOBS)
        yield _sends(operation, name, lambda _, body=body: body, heavy=True)  # type: ignore[misc]


def _malformed(chance: Random) -> bytes:
    return b'{"jobs":[' + b",".join(chance.choices(MALFORMED, k=chance.randint(1, MAX_JOBS))) + b"]}"


def _one_malformed(chance: Random) -> bytes:
    jobs = [json.dumps(JOB).encode()] * MAX_JOBS
    jobs[chance.randrange(MAX_JOBS)] = chance.choice(MALFORMED)
    return b'{"jobs":[' + b",".join(jobs) + b"]}"


def _repeated_keys(operation: Operation) -> Iterator[Attack]:
    """Yield sets whose jobs have the same idempotency key, within a set and in sets that are sent at once."""

    def same(chance: Random) -> bytes:
        return _set_of([JOB | {"idempotency_key": f"key {chance.randrange(10**9)}"}] * MAX_JOBS)

    def of_other_jobs(chance: Random) -> bytes:
        key = f"key {chance.randrange(10**9)}"
        return _set_of([JOB | {"idempotency_key": key, "items": ["a" * n]} for n in range(MAX_JOBS)])

    def few_keys(chance: Random) -> bytes:
        return _set_of([JOB | {"idempotency_key": f"few {chance.randrange(4)}"} for _ in range(MAX_JOBS)])

    yield _sends(operation, "one key for the same job 64 times", same)
    yield _sends(operation, "one key for 64 jobs", of_other_jobs)
    for name, key in KEYS:
        body = _set_of([JOB, JOB | {"idempotency_key": key}])
        yield _sends(operation, f"a key that is {name}", lambda _, body=body: body)  # type: ignore[misc]

    def at_once(chance: Random, caller: Caller) -> Plan:
        return Plan([request_of(operation, caller, few_keys(chance)).encode()], connections=8)

    def with_header(_: Random, caller: Caller) -> Plan:
        return once(request_of(operation, caller, _set_of([JOB])).having(b"Idempotency-Key", b"a key"))

    yield Attack(KIND, str(operation), "four keys in eight sets at once", at_once, operation, keyed=True)
    yield Attack(KIND, str(operation), "a key in the header", with_header, operation, keyed=True)


def _reading(operation: Operation) -> Iterator[Attack]:
    """Yield reads of many jobs, of no jobs, and of jobs of others."""

    def ids(name: str, made: Callable[[Random, Caller], str], prefer: bytes = b"wait=0") -> Attack:
        def plan(chance: Random, caller: Caller) -> Plan:
            found = request_of(operation, caller)
            target = found.target + b"?ids=" + made(chance, caller).encode()
            return once(Request(found.method, target, found.headers).having(b"Prefer", prefer))

        return Attack(KIND, str(operation), name, plan, operation, keyed=True, slow=prefer != b"wait=0")

    def unknown(chance: Random, number: int) -> str:
        return ",".join(f"job_{chance.getrandbits(128):032x}" for _ in range(number))

    yield ids("64 jobs that are not there", lambda chance, _: unknown(chance, MAX_JOBS))
    yield ids("a job too many", lambda chance, _: unknown(chance, MAX_JOBS + 1))
    yield ids("one job 64 times", lambda _, caller: ",".join([caller.job_id] * MAX_JOBS))
    yield ids("jobs of its own and of a stranger", lambda _, caller: f"{caller.job_id},{caller.foreign_job_id}")
    yield ids("nothing but commas", lambda _, caller: "," * 63)
    yield ids("no ids at all", lambda _, caller: "%00,%ff,%0a,job_,..%2f..,job_%27")
    yield ids(
        "a wait for a job that does not end", lambda _, caller: f"{caller.job_id},{caller.waiting_job_id}", b"wait=2"
    )
