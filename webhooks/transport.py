"""An HTTP transport that connects only to checked addresses, with limits on time and size.

A name is looked up only once, and the connection is made to an address that was checked. So no second lookup can return
another address (DNS rebinding). Every request has its own connection, so every request is checked. The transport
implements no proxies, cookies, credentials or redirects.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpcore2
import httpx2

from settings.errors.mistakes import setting_error
from settings.webhooks import WebhookSettings
from webhooks.addresses import Address, AddressRules, ForbiddenUrl, Target, check_addresses, check_url
from webhooks.resolving import NO_ALLOWED_ADDRESS, Lookup, ResolutionError, Resolver

MAX_ADDRESSES_TRIED = 4  # addresses of one name; the time limit for connecting is divided among them

OWNER = "owner"
"""The extension of a request that says whose webhook it is: owners share the lookups of names."""


class TlsError(httpx2.ConnectError):
    """The certificate is for another name or of an unknown authority, or the receiver does not speak TLS."""


class TooLargeError(httpx2.ReadError):
    """The response is larger than the limit."""


class Deadline:
    """A point in time, in monotonic seconds, by which something has to be done."""

    def __init__(self, at: float) -> None:
        self._at = at

    def within(self, seconds: float) -> Deadline:
        """Return the deadline that is ``seconds`` from now, or this one if it is earlier."""
        return Deadline(min(self._at, time.monotonic() + seconds))

    def left(self) -> float:
        """Return the seconds that are left, more than 0. Raises TimeoutError."""
        seconds = self._at - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("it took too long")
        return seconds


class LimitedStream(httpcore2.NetworkStream):
    """A connection with a deadline for all of its reads and writes, and a limit on the bytes that are read.

    The timeouts that httpcore2 passes are ignored: each would apply to one read, and a receiver that sends a byte a
    second would never exceed them.
    """

    def __init__(self, connection: socket.socket, deadline: Deadline, max_bytes: int) -> None:
        self._connection = connection
        self._deadline = deadline
        self._bytes_left = max_bytes
        self.at_end = False

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read at least one byte, or none at the end of the response."""
        if not self._bytes_left:
            raise TooLargeError("the response is larger than is read")
        with _as_read_errors():
            self._connection.settimeout(self._deadline.left())
            data = self._connection.recv(min(max_bytes, self._bytes_left))
        self._bytes_left -= len(data)
        self.at_end = not data
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write the whole buffer."""
        view = memoryview(buffer)
        try:
            while view:
                self._connection.settimeout(self._deadline.left())
                view = view[self._connection.send(view) :]
        except TimeoutError as error:
            raise httpx2.WriteTimeout(str(error)) from error
        except OSError as error:
            # After this error httpcore2 still reads the response. This is needed: a receiver may refuse a request
            # without reading it.
            raise httpcore2.WriteError(str(error)) from error

    def close(self) -> None:
        self._connection.close()


class CheckedTransport(httpx2.BaseTransport):
    """Sends requests where :mod:`webhooks.addresses` allows it. Safe to use from several threads."""

    def __init__(self, settings: WebhookSettings, lookup: Lookup) -> None:
        self._settings = settings
        self._rules = AddressRules.from_settings(settings)
        self._resolver = Resolver(lookup)
        self._tls = httpx2.create_ssl_context(trust_env=False)
        # Set here because it is not safe while another thread performs a handshake.
        self._tls.set_alpn_protocols(["http/1.1"])
        if settings.webhook_ca_file is not None:
            try:
                self._tls.load_verify_locations(settings.webhook_ca_file)
            except OSError as error:
                wanted = f"it can't be read as PEM certificates ({error.strerror or error}); correct it, or unset it"
                raise setting_error("webhook_ca_file", str(settings.webhook_ca_file), wanted) from error

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return a response with an unread body. Raises httpx2's errors, ForbiddenUrl, ResolutionError, BusyError."""
        deadline = Deadline(time.monotonic() + self._settings.webhook_timeout_seconds)
        target = check_url(str(request.url), self._rules)
        connection = self._connect(target, deadline, request.extensions.get(OWNER, ""))
        stream = LimitedStream(connection, deadline, self._settings.webhook_max_response_bytes)
        url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=request.url.raw_path)
        with _as_httpx2(stream):
            response = httpcore2.HTTP11Connection(url.origin, stream).handle_request(
                httpcore2.Request(request.method, url, headers=request.headers.raw, content=request.read())
            )
        return httpx2.Response(
            response.status, headers=response.headers, stream=_Body(response, stream), request=request
        )

    def _connect(self, target: Target, deadline: Deadline, owner: str) -> socket.socket:
        """Connect to a checked address of the target, with TLS unless the scheme is http."""
        addresses = self._addresses(target, deadline, owner)
        connecting = deadline.within(self._settings.webhook_connect_seconds)
        try:
            connection = _connect_to_first(addresses, target.port, connecting)
        except TimeoutError as error:
            raise httpx2.ConnectTimeout("the host took too long to take the connection") from error
        except OSError as error:
            raise httpx2.ConnectError(f"the host did not take the connection: {error.strerror or error}") from error
        return connection if target.scheme == "http" else self._start_tls(connection, target, connecting)

    def _addresses(self, target: Target, deadline: Deadline, owner: str) -> list[Address]:
        if target.address is not None:
            return [target.address]
        try:
            seconds = deadline.within(self._settings.webhook_connect_seconds).left()
            found = self._resolver.resolve(target.host, seconds, owner)
        except TimeoutError as error:
            raise httpx2.ConnectTimeout(str(error)) from error
        try:
            return check_addresses(target, found, self._rules)
        except ForbiddenUrl:
            raise ResolutionError(NO_ALLOWED_ADDRESS) from None

    def _start_tls(self, connection: socket.socket, target: Target, connecting: Deadline) -> socket.socket:
        try:
            connection.settimeout(connecting.left())
            # This timeout limits the whole handshake: ssl counts from its beginning.
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
            # Has no effect after success: wrap_socket detaches the socket.
            connection.close()


class _Body(httpx2.SyncByteStream):
    """The body of a response, read from its connection."""

    def __init__(self, response: httpcore2.Response, stream: LimitedStream) -> None:
        self._response = response
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        with _as_httpx2(self._stream):
            yield from self._response.iter_stream()

    def close(self) -> None:
        self._response.close()
        self._stream.close()


def _connect_to_first(addresses: list[Address], port: int, connecting: Deadline) -> socket.socket:
    """Connect to the first address that accepts. Raises the OSError of the last one tried."""
    tried = addresses[:MAX_ADDRESSES_TRIED]
    refusal = OSError("there is no address")
    for place, address in enumerate(tried):
        try:
            return _connect(address, port, connecting.left() / (len(tried) - place))
        except OSError as error:
            refusal = error
    raise refusal


def _connect(address: Address, port: int, seconds: float) -> socket.socket:
    connection = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        connection.connect((str(address), port))
        # Headers and body are two writes; the second shall not wait for the acknowledgement of the first.
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
    """Turn httpcore2's protocol errors into httpx2's. A response that ends early counts as a lost connection."""
    try:
        yield
    except httpcore2.RemoteProtocolError as error:
        if stream.at_end:
            raise httpx2.ReadError("the host closed the connection before the end of its response") from error
        raise httpx2.RemoteProtocolError(f"the response is not HTTP: {error}") from error
