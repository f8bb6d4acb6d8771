"""Attacks on what stands before a body: the method, the target with its parameters, and the headers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from urllib.parse import quote

from tests.hostile.attacks.attack import Attack, Caller, Plan, Request, once, request_of
from tests.hostile.document import UNDOCUMENTED_PATHS, Document, Operation, Parameter

NAMES = (
    *("Authorization", "Content-Type", "Content-Length", "Content-Encoding", "Transfer-Encoding", "Idempotency-Key"),
    *("Accept", "Prefer", "Host", "X-Request-Id", "Expect", "Connection", "Upgrade", "Cookie", "Origin", "Range"),
    *("Referer", "User-Agent", "X-Forwarded-For", "Forwarded", "Accept-Encoding", "Keep-Alive", "TE", "X-Unknown"),
)

TEXTS: list[tuple[str, str, bytes]] = [
    ("wrong type", "nothing", b""),
    ("wrong type", "a comma", b","),
    ("wrong type", "100-continue", b"100-continue"),
    ("wrong type", "quotes that never end", b'"a; b="c'),
    ("wrong type", "another encoding", b"application/json; charset=utf-16"),
    ("wrong type", "parameters without values", b"application/json;=;;a=;=b"),
    ("wrong type", "RFC 2231 parameters", b"application/json; charset*0*=x'';charset*1=utf-8"),
    ("wrong type", "many kinds", b"gzip, deflate, br, zstd, identity;q=0"),
    ("wrong type", "a wait that is no number", b"wait=abc, wait=-1, wait=1e9"),
    ("number at an edge", "minus one", b"-1"),
    ("number at an edge", "a plus sign", b"+5"),
    ("number at an edge", "a number with underscores", b"1_0"),
    ("number at an edge", "2**63", b"9223372036854775808"),
    ("number at an edge", "5,000 digits", b"9" * 5_000),
    ("number at an edge", "a long wait", b"wait=" + b"9" * 5_000),
    ("unusual text", "Latin-1", b"\xe9\xe8"),
    ("unusual text", "UTF-8", "ключ😀".encode()),
    ("unusual text", "a NUL", b"a\x00b"),
    ("unusual text", "an escape sequence", b"\x1b[2J\x07"),
    ("unusual text", "a bare carriage return", b"a\rX-Injected: 1"),
    ("unusual text", "a folded line", b"a\r\n b"),
    ("too long", "1,000 letters", b"a" * 1_000),
    ("too long", "30,000 letters", b"a" * 30_000),
    ("too long", "70,000 letters", b"a" * 70_000),
    ("too long", "a megabyte of semicolons", b"application/json" + b";" * 2**20),
    ("too many", "10,000 entries", b",".join([b"wait=1"] * 10_000)),
]

TARGETS: list[tuple[str, str, bytes]] = [
    ("too long", "a path of 10,000 letters", b"/v1/" + b"a" * 10_000),
    ("too long", "a path of a megabyte", b"/v1/" + b"a" * 2**20),
    ("too deep", "10,000 folders", b"/a" * 10_000),
    ("too many", "5,000 parameters", b"/v1/jobs?" + b"&".join([b"limit=1"] * 5_000)),
    ("unusual text", "an escape sequence", b"/v1/%1b]0;title%07%0d%0aHTTP/1.1 200"),
    ("unusual text", "an escaped NUL", b"/v1/jobs/%00"),
    ("unusual text", "invalid UTF-8", b"/v1/jobs/%ff%fe"),
    ("unusual text", "raw UTF-8", "/v1/jobs/😀".encode()),
    ("wrong type", "half an escape", b"/v1/jobs/%2"),
    ("wrong type", "folders above", b"/../../etc/passwd"),
    ("wrong type", "escaped folders above", b"/v1/jobs/..%2f..%2f"),
    ("wrong type", "a whole address", b"http://elsewhere.example/v1/jobs"),
    ("wrong type", "an asterisk", b"*"),
    ("wrong type", "an authority", b"elsewhere.example:443"),
    ("wrong type", "a fragment", b"/v1/jobs#a"),
    ("wrong type", "no slash", b"v1/jobs"),
    ("wrong type", "two slashes", b"//v1/jobs"),
    ("wrong type", "a slash at the end", b"/v1/jobs/"),
]

METHODS = (
    b"HEAD",
    b"OPTIONS",
    b"TRACE",
    b"CONNECT",
    b"PUT",
    b"PATCH",
    b"DELETE",
    b"POST",
    b"PURGE",
    b"get",
    b"G" * 9_000,
)

PARAMETER_TEXTS: list[tuple[str, str, bytes]] = [
    ("wrong type", "nothing", b""),
    ("wrong type", "a word", b"word"),
    ("wrong type", "a list", b"[1,2]"),
    ("number at an edge", "zero", b"0"),
    ("number at an edge", "minus one", b"-1"),
    ("number at an edge", "2**31", b"2147483648"),
    ("number at an edge", "2**63", b"9223372036854775808"),
    ("number at an edge", "5,000 digits", b"9" * 5_000),
    ("number at an edge", "a fraction", b"1.5"),
    ("number at an edge", "not a number", b"nan"),
    ("unusual text", "an escaped NUL", b"%00"),
    ("unusual text", "fullwidth digits", quote("１２").encode()),
    ("unusual text", "invalid UTF-8", b"%ff%fe"),
    ("unusual text", "a lone surrogate", b"%ed%a0%80"),
    ("unusual text", "emoji", quote("😀" * 10).encode()),
    ("too long", "10,000 letters", b"a" * 10_000),
    ("too long", "an id of 10,000 letters", b"job_" + b"0" * 10_000),
    ("wrong type", "an SQL string", b"'%20OR%201=1--"),
    ("wrong type", "somebody else's job", b"{foreign}"),
]


def header_attacks(document: Document) -> Iterator[Attack]:
    """Yield the attacks on methods, targets, parameters and headers."""
    for operation in document.operations:
        for name in NAMES:
            for kind, what, value in TEXTS:
                # How a body ends is then open, so these are among the attacks on connections.
                if name not in ("Content-Length", "Transfer-Encoding"):
                    yield _with_header(operation, name, kind, what, value)
            yield _repeated(operation, name)
        for parameter in operation.parameters:
            if parameter.place != "header":
                for kind, what, value in PARAMETER_TEXTS:
                    yield _with_parameter(operation, parameter, kind, what, value)
        for count in (101, 3_000, 50_000):
            yield _with_many_headers(operation, count)
        for method in METHODS:
            yield _with_method(operation, method)
    reading = document.operation("get", "/v1/jobs")
    paths = [("unknown path", path, path.encode()) for path in UNDOCUMENTED_PATHS]
    for kind, what, target in [*TARGETS, *paths]:
        yield _with_target(reading, kind, what, target)


def _attack(
    operation: Operation, kind: str, place: str, what: str, change: Callable[[Request, Caller], Request]
) -> Attack:
    def plan(_: Random, caller: Caller) -> Plan:
        return once(change(request_of(operation, caller), caller))

    return Attack(kind, f"{operation}: {place}", what, plan, None)


def _with_header(operation: Operation, name: str, kind: str, what: str, value: bytes) -> Attack:
    return _attack(operation, kind, name, what, lambda request, _: request.having(name.encode(), value))


def _repeated(operation: Operation, name: str) -> Attack:
    def change(request: Request, _: Caller) -> Request:
        (value,) = [value for known, value in request.headers if known == name.encode()] or [b"a"]
        return request.having(name.encode(), value, value, b"b")

    if name in ("Content-Length", "Transfer-Encoding"):
        return _attack(
            operation,
            "repeated",
            name,
            "twice, otherwise",
            lambda request, _: request.having(name.encode(), b"0", b"1"),
        )
    return _attack(operation, "repeated", name, "three times", change)


def _with_many_headers(operation: Operation, count: int) -> Attack:
    many = tuple((b"X-Header-%d" % number, b"v") for number in range(count))
    return _attack(
        operation,
        "too many",
        "headers",
        f"{count} headers",
        lambda request, _: replace(request, headers=request.headers + many),
    )


def _with_method(operation: Operation, method: bytes) -> Attack:
    return _attack(
        operation, "wrong method", "method", method[:20].decode(), lambda request, _: replace(request, method=method)
    )


def _with_parameter(operation: Operation, parameter: Parameter, kind: str, what: str, value: bytes) -> Attack:
    def plan(_: Random, caller: Caller) -> Plan:
        request = request_of(operation, caller)
        text = value.replace(b"{foreign}", caller.foreign_job_id.encode())
        if parameter.place == "path":
            path = operation.path.replace(f"{{{parameter.name}}}", "@hostile@").encode()
            path = path.replace(b"{job_id}", caller.job_id.encode()).replace(b"{delivery_id}", b"msg_" + b"0" * 32)
            path = path.replace(b"{file_id}", b"file_" + b"0" * 32).replace(b"{batch_id}", b"batch_" + b"0" * 32)
            target = path.replace(b"@hostile@", text)
        else:
            target = request.target + b"?" + parameter.name.encode() + b"=" + text
        return once(replace(request, target=target))

    # A path parameter without text makes another path.
    right = operation if parameter.place == "query" else None
    return Attack(kind, f"{operation}: {parameter.name}", what, plan, right)


def _with_target(operation: Operation, kind: str, what: str, target: bytes) -> Attack:
    return _attack(operation, kind, "target", what, lambda request, _: replace(request, target=target))
