"""Attacks below HTTP: what is framed wrongly, half sent, slow, never read, cut off, or sent many times at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random

from tests.hostile.attacks.attack import Attack, Caller, Ending, Plan, Request, request_of
from tests.hostile.document import JSON_LINES, Document, Operation

SILENT_AT_ONCE = 200
CALLING_AT_ONCE = 50
"""Connections of one attack with many: without a whole request, and with one each, as a busy client has them."""


def connection_attacks(document: Document) -> Iterator[Attack]:
    """Yield the attacks on connections."""
    for operation in document.operations:
        yield from _half_sent(operation)
        yield from _too_slow(operation)
        if operation.example:
            yield from _framing(operation)
        yield from _repeated(operation)
        yield _simple(
            "many connections",
            operation,
            "each with a request",
            lambda request: [request.encode()],
            connections=CALLING_AT_ONCE,
            slow=True,
            heavy=True,
        )
        yield _simple(
            "many connections",
            operation,
            "each with half a request",
            lambda request: [request.encode()[:40]],
            connections=SILENT_AT_ONCE,
            slow=True,
            heavy=True,
        )
    yield from _not_http()


def _simple(
    kind: str,
    operation: Operation,
    name: str,
    pieces: Callable[[Request], Iterable[bytes]],
    *,
    requests: int = 1,
    slowly: bool = False,
    ending: Ending = Ending.READ,
    connections: int = 1,
    slow: bool = False,
    heavy: bool = False,
) -> Attack:
    def plan(_: Random, caller: Caller) -> Plan:
        return Plan(
            pieces(request_of(operation, caller)),
            requests=requests,
            slowly=slowly,
            ending=ending,
            connections=connections,
        )

    return Attack(kind, f"{operation}: connection", name, plan, None, slow, heavy=heavy)


def _half_sent(operation: Operation) -> Iterator[Attack]:
    def cut(request: Request, chance: Random) -> bytes:
        whole = request.encode()
        return whole[: chance.randrange(1, len(whole))]

    def at_random(ending: Ending, name: str, slow: bool) -> Attack:
        def plan(chance: Random, caller: Caller) -> Plan:
            return Plan([cut(request_of(operation, caller), chance)], ending=ending)

        return Attack("half sent", f"{operation}: connection", name, plan, None, slow)

    yield at_random(Ending.ABORT, "some of it, then a reset", slow=False)
    yield at_random(Ending.CLOSE, "some of it, then the end", slow=False)
    yield at_random(Ending.READ, "some of it, then silence", slow=True)
    yield _simple(
        "cut off", operation, "a reset before the answer", lambda request: [request.encode()], ending=Ending.ABORT
    )
    yield _simple(
        "cut off", operation, "the end before the answer", lambda request: [request.encode()], ending=Ending.CLOSE
    )
    if operation.example:
        yield _simple(
            "half sent",
            operation,
            "a megabyte of a body of sixty",
            lambda request: [request.having(b"Content-Length", b"62914560").head(), b" " * 2**20],
            slow=True,
        )
        yield _simple(
            "half sent",
            operation,
            "thirty megabytes of a body of thirty-one, then a reset",
            lambda request: [request.having(b"Content-Length", b"32505856").head(), *[b" " * 2**20] * 30],
            ending=Ending.ABORT,
            heavy=True,
        )


def _too_slow(operation: Operation) -> Iterator[Attack]:
    def bytes_of(data: bytes) -> list[bytes]:
        return [data[n : n + 1] for n in range(len(data))]

    yield _simple(
        "too slow",
        operation,
        "one byte at a time",
        lambda request: bytes_of(request.encode()),
        slowly=True,
        slow=True,
    )
    if operation.example:
        # An upload may take as long as it likes, as long as something comes. So this one comes to an end.
        count = 30 if operation.media_type == JSON_LINES else 10_000
        yield _simple(
            "too slow",
            operation,
            "a body of one byte at a time",
            lambda request: [
                request.having(b"Content-Length", b"100000").head(),
                *([b" "] * count),
            ],
            slowly=True,
            slow=True,
        )
        yield _simple(
            "too slow",
            operation,
            "chunks of one byte",
            lambda request: [request.having(b"Transfer-Encoding", b"chunked").head(), *([b"1\r\n \r\n"] * count)],
            slowly=True,
            slow=True,
        )
    else:
        yield _simple(
            "too slow",
            operation,
            "500 answers that nobody reads",
            lambda request: [request.encode() * 500],
            requests=500,
            ending=Ending.STALL,
            slow=True,
        )
    yield _simple(
        "too slow",
        operation,
        "headers without end",
        lambda request: [request.head()[:-2], *(b"X-%d: 1\r\n" % n for n in range(10_000))],
        slowly=True,
        slow=True,
    )


def _framing(operation: Operation) -> Iterator[Attack]:
    def lengths(name: str, *values: bytes) -> Attack:
        return _simple(
            "wrong framing",
            operation,
            name,
            lambda request: [request.having(b"Content-Length", *values).encode()],
            ending=Ending.CLOSE,
        )

    def chunks(name: str, body: bytes, *values: bytes, ending: Ending = Ending.CLOSE) -> Attack:
        values = values or (b"chunked",)
        return _simple(
            "wrong framing",
            operation,
            name,
            lambda request: [request.having(b"Transfer-Encoding", *values).head(), body],
            ending=ending,
        )

    yield lengths("a negative length", b"-1")
    yield lengths("a length with a sign", b"+10")
    yield lengths("a length with an underscore", b"1_0")
    yield lengths("a length of words", b"ten")
    yield lengths("an enormous length", b"9" * 400)
    yield lengths("a length of 2**64", b"18446744073709551616")
    yield lengths("two lengths", b"10", b"11")
    yield lengths("a list of lengths", b"10, 10")
    yield lengths("no length", b"")
    yield lengths("one byte too few", b"1")
    yield _simple(
        "wrong framing",
        operation,
        "length and chunks",
        lambda request: [
            request.having(b"Content-Length", b"4").having(b"Transfer-Encoding", b"chunked").head(),
            b"0\r\n\r\nGET /livez HTTP/1.1\r\nHost: a\r\n\r\n",
        ],
        ending=Ending.CLOSE,
    )
    yield chunks("a chunk size of letters", b"zz\r\nab\r\n0\r\n\r\n")
    yield chunks("a negative chunk size", b"-2\r\nab\r\n0\r\n\r\n")
    yield chunks("an enormous chunk size", b"f" * 40 + b"\r\nab")
    yield chunks("a chunk size of 2**63", b"8000000000000000\r\nab")
    yield chunks("a chunk that is longer than it says", b"1\r\nabcdef\r\n0\r\n\r\n")
    yield chunks("no line end behind a chunk", b"2\r\nab0\r\n\r\n")
    yield chunks("a chunk extension of a megabyte", b"2;" + b"e" * 2**20 + b"\r\nab\r\n0\r\n\r\n")
    yield chunks("a chunk size of a megabyte of zeros", b"0" * 2**20 + b"2\r\nab\r\n0\r\n\r\n")
    yield chunks("10,000 trailers", b"0\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(10_000)) + b"\r\n")
    yield chunks("a trailer of a megabyte", b"0\r\nX: " + b"a" * 2**20 + b"\r\n\r\n")
    yield chunks("chunks of one byte", b"1\r\n \r\n" * 50_000 + b"0\r\n\r\n")
    yield chunks("chunks that never end", b"5\r\n     \r\n" * 100)
    yield chunks("an encoding that nobody knows", b"ab", b"gzip, chunked")
    yield chunks("chunked twice", b"0\r\n\r\n", b"chunked", b"chunked")
    yield chunks("chunked, but not last", b"0\r\n\r\n", b"chunked, identity")


def _repeated(operation: Operation) -> Iterator[Attack]:
    yield _simple("repeated", operation, "ten at once", lambda request: [request.encode() * 10], requests=10)
    yield _simple(
        "repeated",
        operation,
        "ten at once, then a reset",
        lambda request: [request.encode() * 10],
        requests=10,
        ending=Ending.ABORT,
    )
    if any(parameter.name == "Idempotency-Key" for parameter in operation.parameters):

        def same_key(chance: Random, caller: Caller) -> Plan:
            request = request_of(operation, caller).having(b"Idempotency-Key", b"key-%d" % chance.randrange(20))
            return Plan([request.encode() * 5], requests=5)

        def same_key_other_body(chance: Random, caller: Caller) -> Plan:
            request = request_of(operation, caller, operation.example + b" " * chance.randrange(9))
            return Plan([request.having(b"Idempotency-Key", b"key-%d" % chance.randrange(20)).encode()])

        yield Attack("repeated", f"{operation}: Idempotency-Key", "five times at once", same_key)
        yield Attack("repeated", f"{operation}: Idempotency-Key", "with another body", same_key_other_body)


def _not_http() -> Iterator[Attack]:
    texts = {
        "bytes by chance": None,
        "a TLS hello": bytes.fromhex("160301020001000001fc0303") + b"\x00" * 200,
        "an HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        "HTTP/0.9": b"GET /livez\r\n",
        "HTTP/1.0": b"GET /livez HTTP/1.0\r\n\r\n",
        "HTTP/3.7": b"GET /livez HTTP/3.7\r\nHost: a\r\n\r\n",
        "no Host": b"GET /livez HTTP/1.1\r\n\r\n",
        "only line ends": b"\r\n" * 50_000,
        "bare newlines": b"GET /livez HTTP/1.1\nHost: a\n\n",
        "a header without a colon": b"GET /livez HTTP/1.1\r\nHost\r\n\r\n",
        "a space before a colon": b"GET /livez HTTP/1.1\r\nHost : a\r\n\r\n",
        "a header without a name": b"GET /livez HTTP/1.1\r\n: a\r\n\r\n",
        "a folded first header": b"GET /livez HTTP/1.1\r\n Host: a\r\n\r\n",
        "a NUL in a name": b"GET /livez HTTP/1.1\r\nHo\x00st: a\r\n\r\n",
        "a web socket": b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MTIzNDU2Nzg5MDEyMzQ1Ng==\r\n\r\n",
        "HTTP/2 as an upgrade": b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
        "a million letters": b"a" * 10**6,
        "twenty megabytes of one header": b"GET /livez HTTP/1.1\r\nHost: a\r\nX: " + b"a" * (20 * 2**20),
        "twenty megabytes of a target": b"GET /" + b"a" * (20 * 2**20),
    }
    for name, text in texts.items():

        def plan(chance: Random, _: Caller, text: bytes | None = text) -> Plan:
            return Plan([chance.randbytes(chance.randint(1, 5_000)) if text is None else text], ending=Ending.CLOSE)

        yield Attack("not HTTP", "connection", name, plan, heavy="mega" in name)

    yield Attack("too slow", "connection", "says nothing", lambda _, __: Plan([]), slow=True)
    yield Attack(
        "many connections", "connection", "say nothing", lambda _, __: Plan([], connections=SILENT_AT_ONCE), slow=True
    )
    yield Attack("not HTTP", "connection", "opened and reset", lambda _, __: Plan([], ending=Ending.ABORT))
    yield Attack("not HTTP", "connection", "opened and closed", lambda _, __: Plan([], ending=Ending.CLOSE))
