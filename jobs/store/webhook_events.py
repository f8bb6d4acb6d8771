"""The events that a webhook can report, and which of them the webhook of a job or a batch asks for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Event(StrEnum):
    """The events that a webhook can subscribe to: the ends of a job."""

    SUCCEEDED = "job.succeeded"
    FAILED = "job.failed"
    CANCELLED = "job.cancelled"
    EXPIRED = "job.expired"


class BatchEvent(StrEnum):
    """The events that the webhook of a batch of a file can subscribe to: its ends."""

    COMPLETED = "batch.completed"
    FAILED = "batch.failed"
    CANCELLED = "batch.cancelled"
    EXPIRED = "batch.expired"


@dataclass(frozen=True, slots=True)
class Webhook:
    """The webhook of a job or of a batch, and the events it subscribes to."""

    url: str
    host: str  # the host of the URL
    events: tuple[Event | BatchEvent, ...] = tuple(Event)
