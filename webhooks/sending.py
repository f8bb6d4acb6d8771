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
from webhooks.resolving import LookUp, ResolutionError, system_look_up
from webhooks.transport import CheckedTransport, TlsError, TooLargeError

BODY_START_BYTES = 1_024
MAX_RETRY_AFTER_SECONDS = 86_400.0
"""A receiver may not put its webhooks off for longer than a day."""

OWN_HEADERS = {
    "user-agent": "Scoreline-Webhooks",
    "accept": "*/*",
    "accept-encoding": "identity",
    "connection": "close",
}

Reason = Literal[
    "forbidden_address", "resolution", "connection", "tls", "timeout", "too_large", "bad_response", "redirect"
]
"""Why there is no answer that counts. These words go into the delivery log."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The receiver answered.

    retry_after: seconds for which it asks to be left alone; body_start: at most 1 KiB of its answer, as text without
    control characters; seconds: from the look-up of its name to the end; cut: why the body was not read to its end,
    where it was not. The status counts all the same: with it the receiver has said what it has to say.
    """

    status: int
    retry_after: float | None
    body_start: str
    seconds: float
    cut: Reason | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """There is no answer that counts. detail: in words, for the log; seconds: until that was known."""

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
            return Failed("forbidden_address", str(error), time.monotonic() - started)
        except ResolutionError as error:
            return Failed("resolution", str(error), time.monotonic() - started)
        except httpx2.TransportError as error:
            return Failed(_reason(error), str(error), time.monotonic() - started)
        with closing(response):
            if response.is_redirect:
                where = _text(response.headers.get("location", "").encode())
                detail = f"{response.status_code} to {where}: redirects are not followed"
                return Failed("redirect", detail, time.monotonic() - started)
            body_start, cut = _body_start(response)
            retry_after = _retry_after(response.headers.get("retry-after", ""), time.time())
            return Sent(response.status_code, retry_after, body_start, time.monotonic() - started, cut)


def _body_start(response: httpx2.Response) -> tuple[str, Reason | None]:
    """The start of a body, and why the rest was not read.

    All is read that may be: to close a connection on somebody who still writes is to reset it.
    """
    start = bytearray()
    try:
        # Raw: what a receiver has packed stays packed, however large it would become.
        for data in response.iter_raw():
            start += data[: BODY_START_BYTES - len(start)]
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
    text = data[:BODY_START_BYTES].decode(errors="replace")
    shown = "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)
    return shown.encode()[:BODY_START_BYTES].decode(errors="ignore")


def _retry_after(value: str, now: float) -> float | None:
    """Seconds that the header of that name asks for: a number of them, or the date on which they end.

    now: Unix seconds.
    """
    value = value.strip()
    if re.fullmatch("[0-9]+", value):
        # A longer number than this is more than the limit, too.
        return min(float(value[:20]), MAX_RETRY_AFTER_SECONDS)
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    # HTTP's dates are in UTC, whether they say so in a way that the parser knows or not.
    seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    return min(max(0.0, seconds), MAX_RETRY_AFTER_SECONDS)
