"""The events that a webhook can tell of, and which of them a job's webhook asks for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Event(StrEnum):
    """The events that a webhook can subscribe to: the ends of a job."""

    SUCCEEDED = "job.succeeded"
    FAILED = "job.failed"
    CANCELLED = "job.cancelled"
    EXPIRED = "job.expired"


@dataclass(frozen=True, slots=True)
class Webhook:
    """The webhook of a job, and the events it subscribes to."""

    url: str
    host: str  # the host of the URL
    events: tuple[Event, ...] = tuple(Event)
