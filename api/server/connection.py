"""One connection of a client: uvicorn's protocol, with a size, a number and a deadline for everything that comes in.

What the server refuses itself is answered with the error envelope. The connection is half-closed then, and what the
client still sends is dropped for a while, because a client loses an answer if its connection is closed on unread bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NoReturn

import httptools
import structlog
from starlette.datastructures import State
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from api.metrics import OTHER
from api.request_id import HEADER, request_id_from
from api.server import refusals
from api.server.unread_answers import UnreadAnswers
from api.service import Service
from api.waiting.departure import Departure
from scoring.error_codes import RequestError

DRAIN_SECONDS = 5.0
"""How long the rest of a request is received and dropped after it was answered."""

HEADER_OVERHEAD = len(b": \r\n")

log = structlog.stdlib.get_logger("api.access")


class _RefusedError(Exception):
    """Raised inside a callback of the parser, to stop it."""


class Connection(HttpToolsProtocol):
    """One connection. Its server calls :meth:`close_if_overdue` regularly, so that no request needs a timer."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._state: State = config.app.state  # type: ignore[union-attr]
        service: Service = self._state.service
        self._metrics = service.metrics
        self._limits = service.reading.limits
        self._in_head = False  # whether a request has begun whose headers are not complete
        self._has_cookies = False  # whether the present request has any
        self._in_body = False  # whether the headers of a request are complete, and the request is not
        self._head_for_body: bytes | None = None  # what a parser must be given before it can parse the coming body
        self._in_head_for_body = False  # whether it is given that
        self._unparsed_bytes = 0  # at least this many bytes came since the parser last delivered something
        self._head_bytes = 0  # the head of the present request has at most this many bytes
        self._unanswered: deque[RequestResponseCycle] = deque()  # the requests that are to be answered, oldest first
        self._refusal: RequestError | None = None  # once there is one, nothing more is parsed
        self._is_half_closed = False  # whether the last answer was sent, and what still comes is dropped
        self._refused_after = 0.0  # seconds after the request began
        self._deadline: float | None = None  # when the client must have done what is waited for
        self._held = service.budget.held_bytes
        self._kept_bytes = 0  # of bodies that no route has taken yet, as the budget counts them
        self._dropped_bytes = 0  # of the present request's body, which no route reads
        self._unread: UnreadAnswers | None = None  # None before the connection is made

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to listen, unless there are too many connections."""
        if len(self.connections) >= self._limits.max_connections:
            self.transport = transport
            self._metrics.count_refused("max_connections")
            transport.abort()
            return
        super().connection_made(transport)
        self._unread = UnreadAnswers(transport, self._held.used, self._limits.send_seconds)
        self._deadline = self.loop.time() + self._limits.header_seconds

    def data_received(self, data: bytes) -> None:
        """Parse what came. After a refusal, it is dropped."""
        if self._refusal is not None:
            return
        self._unparsed_bytes += len(data)
        self._head_bytes = self._head_bytes + len(data) if self._in_head else len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            if self._refusal is None:
                if isinstance(error, httptools.HttpParserCallbackError):
                    raise
                self._refusal = refusals.invalid_http(str(error))
            self._refuse()
            return
        if self._unparsed_bytes > self._limits.max_header_bytes:
            self._refusal = refusals.headers_too_large(self._limits)
            self._refuse()
        elif self._in_head and self._deadline is None:
            self._deadline = self.loop.time() + self._limits.header_seconds

    def _parse(self, data: bytes) -> None:
        """Parse bytes. A request to use another protocol from now on is answered as if it did not ask for that.

        The parser takes what comes behind the headers of such a request for the other protocol, or drops it. If it is
        a body, a new parser is given the head of a request with such a body first.
        """
        rest: bytes | memoryview = data
        while rest:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = memoryview(rest)[upgrade.args[0] :]
            if self._head_for_body is not None:
                self._in_head_for_body = True
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
                self.parser.feed_data(self._head_for_body)

    def _stop(self, refusal: RequestError) -> NoReturn:
        """Refuse the present request from within a callback of the parser."""
        self._refusal = refusal
        raise _RefusedError

    # What the parser calls.

    def on_message_begin(self) -> None:
        """Note that a request begins. An empty line before it is no request and does not keep a connection open."""
        if self._in_head_for_body:
            return
        self._unset_keepalive_if_required()
        self._in_head = True
        self._has_cookies = False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Keep a piece of the target."""
        if not self._in_head_for_body:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header or a trailer."""
        if self._in_head_for_body:
            return
        headers = self.headers
        if len(headers) >= self._limits.max_headers:
            self._stop(refusals.too_many_headers(self._limits))
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        elif name == b"cookie":
            self._has_cookies = True
        headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Begin to answer the request, or queue it behind others of this connection."""
        if self._in_head_for_body:
            self._head_for_body, self._in_head_for_body = None, False
            return
        if self._state.is_closed:
            self._stop(refusals.stopping())
        if self._head_bytes > self._limits.max_header_bytes:
            self._check_size(self.url, self.headers)
        if self._has_cookies:
            # No route reads them, and the framework would parse them in quadratic time.
            self.headers[:] = [header for header in self.headers if header[0] != b"cookie"]
        if self.url.count(b"&") >= refusals.MAX_PARAMETERS:
            self._stop(refusals.too_many_parameters())
        if len(self._unanswered) >= self._limits.max_pipelined_requests:
            self._stop(refusals.too_many_ahead(self._limits))
        if self.parser.should_upgrade():
            self._head_for_body = self._head_that_announces_the_same_body()
        try:
            if not self.url.startswith(b"/") and httptools.parse_url(self.url).path is None:
                raise httptools.HttpParserInvalidURLError
            super().on_headers_complete()
        except httptools.HttpParserInvalidURLError:
            self._stop(refusals.invalid_http("its target is invalid"))
        self.scope["state"]["departure"] = Departure(self._listen, self._count_kept)
        self._dropped_bytes = 0
        self.cycle.transport = self  # type: ignore[assignment]
        # Trailers are kept apart, so that none passes for a header that was there from the beginning.
        self.headers = []
        self._unanswered.append(self.cycle)
        self._unparsed_bytes = 0
        self._in_head = False
        self._in_body = True
        self._deadline = None

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body for the route, or drop it if the route has already answered."""
        self._unparsed_bytes = 0
        cycle = self.cycle
        if cycle.response_complete:
            return
        if self._dropped_bytes:
            self._dropped_bytes += len(body)
            if self._dropped_bytes > refusals.UNREAD_BYTES:
                self._stop(refusals.body_not_read())
            return
        cycle.body += body
        cycle.scope["state"]["departure"].unread_bytes = len(cycle.body)
        self._count_kept()
        if self._kept_bytes > refusals.UNREAD_BYTES and len(self._unanswered) > 1:
            self._stop(refusals.bodies_too_far_ahead())
        try:
            self._held.check(-self._kept_bytes)  # whether the others alone hold too much: the route asks for this one
        except RequestError as error:
            self._stop(error)
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def _listen(self, departure: Departure) -> None:
        """Read on to see when the client goes: a body that nothing reads is dropped, and few bytes are sent ahead."""
        cycle = self.cycle
        if cycle is None or cycle.scope["state"]["departure"] is not departure:
            if self._kept_bytes <= refusals.UNREAD_BYTES:
                self.flow.resume_reading()
            return
        if cycle.more_body and not departure.reads_body and not self._dropped_bytes:
            self._dropped_bytes = 1 + len(cycle.body)
            cycle.body, departure.unread_bytes = bytearray(), 0
            self._count_kept()
        self.flow.resume_reading()

    def _count_kept(self) -> None:
        """Count in the budget what is kept of bodies."""
        kept = sum(len(cycle.body) for cycle in self._unanswered)
        if kept != self._kept_bytes:
            self._held.used.add(None, kept - self._kept_bytes)
            self._kept_bytes = kept

    def on_message_complete(self) -> None:
        """Note that a request has arrived as a whole."""
        if self._head_for_body is not None:
            return
        if self.headers:
            self._check_size(b"", self.headers)
        self._unparsed_bytes = 0
        self._in_body = False
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()
        elif self._is_half_closed:
            self.transport.close()
        elif self._deadline is not None:  # The request was answered earlier, and now the connection is idle.
            self._deadline = None
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _check_size(self, url: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        size = len(url) + sum(len(name) + len(value) + HEADER_OVERHEAD for name, value in headers)
        if size > self._limits.max_header_bytes:
            self._stop(refusals.headers_too_large(self._limits))

    def _head_that_announces_the_same_body(self) -> bytes | None:
        """Return the head of another request that has a body like the present one, or None if that has no body."""
        found = [header for header in self.headers if header[0] in (b"content-length", b"transfer-encoding")]
        if not found:
            return None
        found.append((b"connection", b"keep-alive" if self.parser.should_keep_alive() else b"close"))
        return b"".join([b"POST / HTTP/1.1\r\n", *(b"%b: %b\r\n" % header for header in found), b"\r\n"])

    # What the answer to a request calls instead of the transport.

    def write(self, data: bytes) -> None:
        """Send a part of an answer."""
        assert self._unread is not None
        self._unread.write(data)

    def is_closing(self) -> bool:
        """Return whether no answer can be sent any more."""
        return self._is_half_closed or self.transport.is_closing()

    def close(self) -> None:
        """Close the connection, or only this side of it while the request that was answered is still arriving."""
        if self._in_body and len(self._unanswered) == 1 and not self.transport.is_closing():
            self._is_half_closed = True
            self.transport.write_eof()
            self._deadline = self.loop.time() + DRAIN_SECONDS
        else:
            self.transport.close()

    # The ends of answers and of connections.

    def on_response_complete(self) -> None:
        """Begin with the next request of the connection, or refuse it."""
        self._unanswered.popleft()
        self._count_kept()
        super().on_response_complete()
        if self._refusal is not None:
            self._answer_refusal()
        elif self.cycle.response_complete:
            if self.cycle.body:
                self.cycle.body = bytearray()  # It would be kept until the next request.
            if self._in_head or self._in_body:  # The connection is not between two requests.
                self._unset_keepalive_if_required()
            if self._in_body:
                self._deadline = self.loop.time() + DRAIN_SECONDS

    def connection_lost(self, exc: Exception | None) -> None:
        """End the routes of all requests that are not answered. uvicorn would only end that of the newest.

        What belongs to the connection is let go at once. With references in a circle, it would stay until a full
        collection of garbage, which stops the whole process for a tenth of a second.
        """
        for cycle in self._unanswered:
            _end(cycle)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._unanswered.clear()
        self._count_kept()
        if self._unread is not None:
            self._unread.forget()
        self.pipeline.clear()
        self.cycle = self.scope = None  # type: ignore[assignment]

    def shutdown(self) -> None:
        """Close the connection when it has sent the answer in progress. The first request of one may be under way."""
        if self._unanswered:
            super().shutdown()
        else:
            seconds = refusals.FIRST_REQUEST_SECONDS if self.cycle is None else 0.0
            self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def close_if_overdue(self, now: float) -> None:
        """Refuse or close the connection if the client has not sent or not read in time. now: the loop's time."""
        if self._deadline is not None and now >= self._deadline:
            if self._in_head and self._refusal is None:
                self._refusal = refusals.headers_too_slow(self._limits)
                self._refuse()
                return
            if self.cycle is None and self._refusal is None:
                self._metrics.count_refused("header_seconds")
            self._deadline = None
            self.transport.close()
        assert self._unread is not None
        if self._unread.is_overdue(now, must_read=self.flow.write_paused or self.transport.is_closing()):
            self._metrics.count_refused("send_seconds")
            self.transport.abort()

    def _refuse(self) -> None:
        """Give up the request that is not complete. The refusal is sent when the requests before it are answered."""
        if self._deadline is not None:
            self._refused_after = self.loop.time() - self._deadline + self._limits.header_seconds
            self._deadline = None
        if self._in_body and not self._give_up_request():
            self.transport.close()
            return
        self._answer_refusal()

    def _give_up_request(self) -> bool:
        """End the route of a request whose body can't be read. Returns False if it has already begun to answer."""
        cycle = self.cycle
        if cycle.response_started:
            return False
        if self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()
        self._unanswered.remove(cycle)
        self._count_kept()
        _end(cycle)
        return True

    def _answer_refusal(self) -> None:
        """Send the refusal, unless an answer is in progress, and drop for a while what the client still sends."""
        if self._unanswered or self.transport.is_closing():
            return
        assert self._refusal is not None
        headers = self.scope["headers"] if self.scope is not None else ()
        sent_ids = [value for name, value in headers if name == HEADER.encode()]
        request_id = request_id_from(sent_ids[0].decode("latin-1") if sent_ids else None)
        status, answer = refusals.encode(self._refusal, request_id, self.server_state.default_headers)
        self.transport.write(answer)
        self.transport.write_eof()
        self._is_half_closed = True
        self._deadline = self.loop.time() + DRAIN_SECONDS
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        if self._refusal.limit is not None:
            self._metrics.count_refused(self._refusal.limit)
        code = str(self._refusal.code)
        self._metrics.count_request({"method": OTHER}, status, self._refused_after, code)
        # The method and the path may be any bytes, or not there at all.
        duration_ms = round(self._refused_after * 1000, 2)
        about = {"status": status, "duration_ms": duration_ms, "code": code}
        log.info("request", request_id=request_id, method=None, path=None, **about)


def _end(cycle: RequestResponseCycle) -> None:
    """Tell the route of a request that its client has gone, and send nothing more of its answer."""
    cycle.disconnected = True
    cycle.message_event.set()
    cycle.scope["state"]["departure"].happen()
