"""Sending one webhook: one request, and what came of it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Literal

import httpx2

from settings.webhooks import WebhookSettings
from webhooks.addresses import ForbiddenUrl
from webhooks.resolving import BusyError, LookUp, ResolutionError, system_look_up
from webhooks.transport import CheckedTransport, TlsError, TooLargeError

TEXT_BYTES = 1_024
"""What is kept of a receiver's words."""

OWN_HEADERS = {
    "user-agent": "Scoreline-Webhooks",
    "accept": "*/*",
    "accept-encoding": "identity",
    "connection": "close",
}

Reason = Literal[
    "busy",
    "forbidden_address",
    "resolution",
    "connection",
    "tls",
    "timeout",
    "too_large",
    "bad_response",
    "redirect",
]
"""Why there is no answer that counts. These words go into the delivery log. ``busy`` says nothing of the receiver."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The receiver answered.

    retry_after: seconds for which it asks to be left alone, however many; body_start: at most 1 KiB of its answer, as
    text without control characters; seconds: from the look-up of its name to the end; cut: why the body was not read to
    its end, where it was not. The status counts all the same: with it the receiver has said what it has to say.
    """

    status: int
    retry_after: float | None
    body_start: str
    seconds: float
    cut: Reason | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """There is no answer that counts.

    detail: in words, for the log, at most 1 KiB without control characters; seconds: until that was known.
    """

    reason: Reason
    detail: str
    seconds: float


Outcome = Sent | Failed


class Sender:
    """Sends webhooks. Safe to use from several threads.

    look_up: the addresses of a name.
    """

    def __init__(self, settings: WebhookSettings, look_up: LookUp = system_look_up) -> None:
        self._transport = CheckedTransport(settings, look_up)

    def __enter__(self) -> Sender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transport.close()

    def send(self, url: str, headers: Mapping[str, str], body: bytes) -> Outcome:
        """POST the body, and wait for the answer. Never raises for what a receiver does."""
        started = time.monotonic()
        all_headers = httpx2.Headers(OWN_HEADERS)
        all_headers.update(headers)
        try:
            # Said here, because a request would decode the host's xn-- labels to find whether there is one, and some
            # that look like such can't be.
            all_headers["host"] = httpx2.URL(url).netloc.decode()
            request = httpx2.Request("POST", url, headers=all_headers, content=body)
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
            body_start, cut = _body_start(response)
            retry_after = _retry_after(response.headers.get("retry-after", ""), time.time())
            return Sent(response.status_code, retry_after, body_start, time.monotonic() - started, cut)


def _failed(reason: Reason, detail: str, started: float) -> Failed:
    """detail: what a receiver said may be quoted in it, at any length; started: monotonic seconds."""
    return Failed(reason, _text(detail.encode(errors="replace")), time.monotonic() - started)


def _body_start(response: httpx2.Response) -> tuple[str, Reason | None]:
    """The start of a body, and why the rest was not read.

    All is read that may be: to close a connection on somebody who still writes is to reset it.
    """
    start = bytearray()
    try:
        # Raw: what a receiver has packed stays packed, however large it would become.
        for data in response.iter_raw():
            start += data[: TEXT_BYTES - len(start)]
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
    """At most 1 KiB of text in UTF-8 that may be stored, logged and shown anywhere."""
    text = data[:TEXT_BYTES].decode(errors="replace")
    shown = "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)
    return shown.encode()[:TEXT_BYTES].decode(errors="ignore")


def _retry_after(value: str, now: float) -> float | None:
    """Seconds that the header of that name asks for: a number of them, or the date on which they end.

    now: Unix seconds.
    """
    value = value.strip()
    if re.fullmatch("[0-9]+", value):
        # A longer number would be infinite at some point, and this is longer than anybody waits.
        return float(value[:20])
    try:
        date = parsedate_to_datetime(value)
        # HTTP's dates are in UTC, whether they say so in a way that the parser knows or not.
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, OverflowError):
        # A year, an offset or their sum may be beyond what there is.
        return None
    return max(0.0, seconds)
