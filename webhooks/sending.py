"""Sending one webhook: one request, one answer or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Reason = Literal[
    "forbidden_address", "resolution", "connection", "tls", "timeout", "too_large", "bad_response", "redirect"
]
"""Why there is no answer that counts; these codes go into the delivery log."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The receiver answered.

    retry_after: seconds that it asks to be left alone for; body_start: at most 1 KiB of text of its answer; seconds:
    from the look-up of its name to the end; cut: why the body was not read to its end, where it was not. The status
    counts all the same.
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
    """Sends webhooks. Safe to use from several threads."""

    def send(self, url: str, headers: Mapping[str, str], body: bytes) -> Outcome:
        """POST the body. Never raises for what a receiver does."""
        raise NotImplementedError
