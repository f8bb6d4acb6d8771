"""Sending one webhook: a single request and its result."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Literal

import httpx2

from settings.webhooks import WebhookSettings
from webhooks.addresses import ForbiddenUrl
from webhooks.resolving import BusyError, Lookup, ResolutionError, system_lookup
from webhooks.transport import OWNER, CheckedTransport, TlsError, TooLargeError

EXCERPT_BYTES = 1_024  # kept of a receiver's response

DEFAULT_HEADERS = {
    "user-agent": "Scoreline-Webhooks",
    "accept": "*/*",
    "accept-encoding": "identity",
    "connection": "close",
}

Reason = Literal[
    "busy", "forbidden_address", "resolution", "connection", "tls", "timeout", "too_large", "bad_response", "redirect"
]
"""Why there is no usable response. Stored in the delivery log, but for ``busy``: then nothing was sent."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The receiver responded. Its status counts even if the rest of the response could not be read."""

    status: int
    retry_after: float | None  # seconds, unlimited
    body_start: str  # at most 1 KiB, without control characters
    seconds: float  # from the lookup of the name to the end
    cut: Reason | None = None  # why the body was not read to its end


@dataclass(frozen=True, slots=True)
class Failed:
    """There is no usable response."""

    reason: Reason
    detail: str  # for people who read the delivery log; at most 1 KiB, without control characters
    seconds: float


SendResult = Sent | Failed


class Sender:
    """Sends webhooks. Safe to use from several threads."""

    def __init__(self, settings: WebhookSettings, lookup: Lookup = system_lookup) -> None:
        self._transport = CheckedTransport(settings, lookup)

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.close()

    def send(self, url: str, headers: Mapping[str, str], body: bytes, owner: str = "") -> SendResult:
        """POST the body and wait for the response. Raises nothing, whatever the receiver does.

        owner: whose webhook it is. One owner's slow names take no places from the lookups of other owners.
        """
        started = time.monotonic()
        all_headers = httpx2.Headers(DEFAULT_HEADERS)
        all_headers.update(headers)
        try:
            # Set here, because httpx2 would decode the host's xn-- labels to make this header, and fails for some.
            all_headers["host"] = httpx2.URL(url).netloc.decode()
            request = httpx2.Request("POST", url, headers=all_headers, content=body, extensions={OWNER: owner})
            response = self._transport.handle_request(request)
        except (ForbiddenUrl, httpx2.InvalidURL) as error:
            return _failed("forbidden_address", str(error), started)
        except ResolutionError as error:
            return _failed("resolution", str(error), started)
        except BusyError as error:
            return _failed("busy", str(error), started)
        except httpx2.TransportError as error:
            return _failed(_reason(error), str(error), started)
        with closing(response):
            if response.is_redirect:
                where = response.headers.get("location", "")
                detail = f"redirects are not followed: {response.status_code} to {where}"
                return _failed("redirect", detail, started)
            body_start, cut = _read_body_start(response)
            retry_after = _retry_after(response.headers.get("retry-after", ""), time.time())
            return Sent(response.status_code, retry_after, body_start, time.monotonic() - started, cut)


def _failed(reason: Reason, detail: str, started: float) -> Failed:
    """Return a failure. detail: of any length, and may quote the receiver; started: monotonic seconds."""
    return Failed(reason, _text(detail.encode(errors="replace")), time.monotonic() - started)


def _read_body_start(response: httpx2.Response) -> tuple[str, Reason | None]:
    """Return the start of the body, and why the rest was not read.

    As much as allowed is read, because closing the connection while the receiver still writes would reset it.
    """
    start = bytearray()
    try:
        # Raw: a compressed body is not decompressed, because it could become arbitrarily large.
        for data in response.iter_raw():
            start += data[: EXCERPT_BYTES - len(start)]
    except httpx2.TransportError as error:
        return _text(start), _reason(error)
    return _text(start), None


def _reason(error: httpx2.TransportError) -> Reason:
    match error:
        case httpx2.TimeoutException():
            return "timeout"
        case TlsError():
            return "tls"
        case TooLargeError():
            return "too_large"
        case httpx2.NetworkError():
            return "connection"
        case _:
            return "bad_response"


def _text(data: bytes | bytearray) -> str:
    """Return at most 1 KiB of printable text, which can be stored, logged and shown anywhere."""
    text = data[:EXCERPT_BYTES].decode(errors="replace")
    shown = "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)
    return shown.encode()[:EXCERPT_BYTES].decode(errors="ignore")


def _retry_after(value: str, now: float) -> float | None:
    """Return the seconds that a Retry-After header asks for, given as a number or as a date. now: Unix seconds."""
    value = value.strip()
    if re.fullmatch("[0-9]+", value):
        # More digits would at some point become infinite as a float.
        return float(value[:20])
    try:
        date = parsedate_to_datetime(value)
        # HTTP dates are in UTC, also where the parser does not recognise the zone.
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, OverflowError):
        # The year, the offset or their sum may be out of range.
        return None
    return max(0.0, seconds)
