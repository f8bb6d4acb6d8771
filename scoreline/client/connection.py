"""Where the service is, and how it is reached."""

from __future__ import annotations

import ipaddress
import os
import platform
import ssl
from typing import Any

import httpx2

from scoreline import __version__
from scoreline.client.errors import Unauthorized, Unreachable
from scoreline.client.exchange.flow import Request
from scoreline.client.exchange.sending import Service

DEFAULT_URL = "http://127.0.0.1:8000"
URL_VARIABLE = "SCORELINE_URL"
KEY_VARIABLE = "SCORELINE_API_KEY"


def connection_settings(
    url: str | None, api_key: str | None, timeout: float, retry_seconds: float, outage_seconds: float
) -> tuple[dict[str, Any], Service]:
    """Return the settings of the HTTP client, and the service."""
    address = _checked(url if url is not None else os.environ.get(URL_VARIABLE) or DEFAULT_URL)
    key = _checked_key(os.environ.get(KEY_VARIABLE, "") if api_key is None else api_key)
    headers = {"User-Agent": f"scoreline-python/{__version__} Python/{platform.python_version()}"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
    settings: dict[str, Any] = {"base_url": address, "timeout": timeout, "headers": headers, "limits": limits}
    if httpx2.URL(address).scheme == "http":
        # Reading the authorities that this machine trusts takes as long as many calls. A context that trusts none of
        # them does no harm: it is never used, because redirects are not followed and proxies have their own context.
        settings["verify"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    host = httpx2.URL(address).host
    if _is_loopback(host):
        # No proxy can reach this machine by such an address: it would look for the service on its own machine.
        settings["mounts"] = {f"all://{f'[{host}]' if ':' in host else host}": None}
    return settings, Service(address, timeout, retry_seconds, outage_seconds)


class Connected:
    """A client as a connection to a service."""

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 30.0,
        retry_seconds: float = 60.0,
        outage_seconds: float = 300.0,
    ) -> None:
        """Make a client. It connects when it is first used.

        url: None: the environment variable ``SCORELINE_URL``, or else http://127.0.0.1:8000. api_key: None: the
        environment variable ``SCORELINE_API_KEY``; empty: no key. Blanks and line ends around it do not count.
        timeout: seconds in which an answer comes that does not wait for scores. retry_seconds: for how long a request
        is repeated that was refused for now or got no answer; 0: never. outage_seconds: the same for ``wait``, ``map``
        and other operations that take long anyway, once the service was reached.
        """
        self._settings, self._service = connection_settings(url, api_key, timeout, retry_seconds, outage_seconds)
        self._open()

    def _open(self) -> None:
        """Make the HTTP client, by the settings."""
        raise NotImplementedError


def _is_loopback(host: str) -> bool:
    """Whether a host is the machine of this process."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _checked(url: str) -> str:
    """Return an address at which a service can be. Raises Unreachable."""
    try:
        parsed = httpx2.URL(url)
        if parsed.scheme in ("http", "https") and parsed.host:
            return url
        reason = (
            "it has no host" if parsed.scheme in ("http", "https") else "it does not begin with http:// or https://"
        )
    except httpx2.InvalidURL as invalid:
        reason = str(invalid)
    error = Unreachable("unreachable", f"{url!r} is no address of a service, such as {DEFAULT_URL}: {reason}")
    error.is_final = True
    raise error


def _checked_key(key: str) -> str:
    """Return a key as a header can carry it. Raises Unauthorized, which does not quote the key."""
    key = key.strip()  # A secret that was read from a file often ends with a line end.
    if key.isascii() and key.isprintable():
        return key
    error = Unauthorized("invalid_api_key", "the API key has characters other than printable ASCII")
    error.is_final = True
    raise error


def unreachable(service: Service, error: httpx2.TransportError) -> Unreachable:
    """Return the error for a connection that failed. A connection that broke off shows that a service was there."""
    is_wrong = isinstance(error, httpx2.LocalProtocolError)  # It can't be sent, such as with a line end in a header.
    if not (is_wrong or isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)):
        service.was_reached = True
    found = Unreachable("unreachable", f"no answer from {service.url}: {str(error) or type(error).__name__}")
    found.never_answered = not service.was_reached
    found.is_final = is_wrong
    return found


def request_settings(request: Request[Any], seconds: float) -> dict[str, Any]:
    """Return the arguments of the HTTP client for a request, without its body. seconds: of silence, at most."""
    return {
        "method": request.method,
        "url": request.path,
        "params": request.params,
        "headers": {**request.headers, **(request.body.headers if request.body else {})},
        "timeout": seconds,
    }
