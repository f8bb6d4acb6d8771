"""The way out: a transport that connects to checked addresses alone, and for a limited time and size.

A name is looked up once, and the connection is made to what was found and checked, so that no second look-up can say
otherwise. Each request has a connection of its own: none is ever reused without a check. There are no proxies, cookies,
credentials or redirects here, because nothing here knows of any.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpcore2
import httpx2

from settings.webhooks import WebhookSettings
from webhooks.addresses import Address, AddressRules, ForbiddenUrl, Target, check_addresses, check_url
from webhooks.resolving import NO_ADDRESS, LookUp, ResolutionError, Resolver

ADDRESSES_TRIED = 4
"""Of a name that has more; each gets its share of the time."""


class TlsError(httpx2.ConnectError):
    """No trust: a certificate for another name, of an unknown authority, or no TLS at all."""


class TooLargeError(httpx2.ReadError):
    """A response beyond the limit."""


class Deadline:
    """A moment by which something has to be done."""

    def __init__(self, at: float) -> None:
        self._at = at

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """So many seconds from now."""
        return cls(time.monotonic() + seconds)

    def within(self, seconds: float) -> Deadline:
        """So many seconds from now, but no later than this one."""
        return Deadline(min(self._at, time.monotonic() + seconds))

    def left(self) -> float:
        """Seconds, more than none. Raises TimeoutError."""
        seconds = self._at - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("it took too long")
        return seconds


class LimitedStream(httpcore2.NetworkStream):
    """A connection that can be read from and written to until its deadline, and only so much.

    The time-outs that it is asked for count from one byte to the next; who sends a byte a second would never meet them.
    """

    def __init__(self, connection: socket.socket, deadline: Deadline, max_bytes: int) -> None:
        self._connection = connection
        self._deadline = deadline
        self._bytes_left = max_bytes
        self.at_end = False

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """At least a byte, or nothing at the end."""
        if not self._bytes_left:
            raise TooLargeError("the response is larger than is read")
        with _as_read_errors():
            self._connection.settimeout(self._deadline.left())
            data = self._connection.recv(min(max_bytes, self._bytes_left))
        self._bytes_left -= len(data)
        self.at_end = not data
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """All of it."""
        view = memoryview(buffer)
        try:
            while view:
                self._connection.settimeout(self._deadline.left())
                view = view[self._connection.send(view) :]
        except TimeoutError as error:
            raise httpx2.WriteTimeout(str(error)) from error
        except OSError as error:
            # After this one a response is looked for: who refuses a request may say so without reading it.
            raise httpcore2.WriteError(str(error)) from error

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


class CheckedTransport(httpx2.BaseTransport):
    """Sends a request to where :mod:`webhooks.addresses` lets it go. Safe to use from several threads."""

    def __init__(self, settings: WebhookSettings, look_up: LookUp) -> None:
        self._settings = settings
        self._rules = AddressRules.of(settings)
        self._resolver = Resolver(look_up)
        self._tls = httpx2.create_ssl_context(trust_env=False)
        # Once, and here: to set it beside a handshake in another thread would not be safe.
        self._tls.set_alpn_protocols(["http/1.1"])
        if settings.webhook_ca_file is not None:
            try:
                self._tls.load_verify_locations(settings.webhook_ca_file)
            except OSError as error:
                raise ValueError(f"SCORELINE_WEBHOOK_CA_FILE: {settings.webhook_ca_file}: {error}") from error

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """The response with its headers; its body is read from it, by the same deadline.

        Raises what httpx2 raises, and besides ForbiddenUrl, ResolutionError and BusyError.
        """
        deadline = Deadline.after(self._settings.webhook_timeout_seconds)
        target = check_url(str(request.url), self._rules)
        connection = self._connect(target, deadline)
        stream = LimitedStream(connection, deadline, self._settings.webhook_max_response_bytes)
        url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=request.url.raw_path)
        with _as_httpx2(stream):
            response = httpcore2.HTTP11Connection(url.origin, stream).handle_request(
                httpcore2.Request(request.method, url, headers=request.headers.raw, content=request.read())
            )
        return httpx2.Response(
            response.status, headers=response.headers, stream=_Body(response, stream), request=request
        )

    def _connect(self, target: Target, deadline: Deadline) -> socket.socket:
        """A connection to a checked address, with TLS for the target's name where it is to have TLS."""
        addresses = self._addresses(target, deadline)
        connecting = deadline.within(self._settings.webhook_connect_seconds)
        try:
            connection = _connected(addresses, target.port, connecting)
        except TimeoutError as error:
            raise httpx2.ConnectTimeout("the host took too long to take the connection") from error
        except OSError as error:
            raise httpx2.ConnectError(f"the host did not take the connection: {error.strerror or error}") from error
        return connection if target.scheme == "http" else self._secured(connection, target, connecting)

    def _addresses(self, target: Target, deadline: Deadline) -> list[Address]:
        if target.address is not None:
            return [target.address]
        try:
            found = self._resolver.resolve(target.host, deadline.within(self._settings.webhook_connect_seconds).left())
        except TimeoutError as error:
            raise httpx2.ConnectTimeout(str(error)) from error
        try:
            return check_addresses(target, found, self._rules)
        except ForbiddenUrl:
            raise ResolutionError(NO_ADDRESS) from None

    def _secured(self, connection: socket.socket, target: Target, connecting: Deadline) -> socket.socket:
        try:
            connection.settimeout(connecting.left())
            # Of a whole handshake, however slowly it goes on: ssl counts from its beginning.
            return self._tls.wrap_socket(connection, server_hostname=target.host)
        except TimeoutError as error:
            raise httpx2.ConnectTimeout("the TLS handshake took too long") from error
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError) as error:
            raise httpx2.ConnectError("the host closed the connection in the TLS handshake") from error
        except ssl.SSLCertVerificationError as error:
            raise TlsError(f"the host's certificate is not trusted: {error.verify_message}") from error
        except ssl.SSLError as error:
            raise TlsError(f"the TLS handshake failed: {error.reason or error}") from error
        finally:
            # Of no effect on a connection that was secured: its socket has moved.
            connection.close()


class _Body(httpx2.SyncByteStream):
    """What follows the headers."""

    def __init__(self, response: httpcore2.Response, stream: LimitedStream) -> None:
        self._response = response
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        with _as_httpx2(self._stream):
            yield from self._response.iter_stream()

    def close(self) -> None:
        self._response.close()
        self._stream.close()


def _connected(addresses: list[Address], port: int, connecting: Deadline) -> socket.socket:
    """A connection to the first address that takes it. Raises OSError, that of the last one."""
    tried = addresses[:ADDRESSES_TRIED]
    refusal = OSError("there is no address")
    for place, address in enumerate(tried):
        try:
            return _open(address, port, connecting.left() / (len(tried) - place))
        except OSError as error:
            refusal = error
    raise refusal


def _open(address: Address, port: int, seconds: float) -> socket.socket:
    connection = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        connection.connect((str(address), port))
        # Headers and body are two writes, and the second is not to wait for the first to be acknowledged.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        connection.close()
        raise
    return connection


@contextmanager
def _as_read_errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise httpx2.ReadTimeout("the response took too long") from error
    except OSError as error:
        raise httpx2.ReadError(f"the connection broke: {error.strerror or error}") from error


@contextmanager
def _as_httpx2(stream: LimitedStream) -> Iterator[None]:
    """What HTTP finds wrong with a response. One that ends too early is the connection's fault."""
    try:
        yield
    except httpcore2.RemoteProtocolError as error:
        if stream.at_end:
            raise httpx2.ReadError("the host closed the connection before the end of its response") from error
        raise httpx2.RemoteProtocolError(f"the response is not HTTP: {error}") from error
