"""Events of jobs and batches, as the client returns them."""

from __future__ import annotations

from dataclasses import dataclass

from scoreline.client.batch_objects import Batch, BatchStatus
from scoreline.client.job_objects import Job, JobStatus
from scoreline.client.results import ItemLikelihood, ItemScores


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The status of a job, or the number of its scored items, has changed."""

    id: str  # what to give as last_event_id to go on behind this event
    status: JobStatus  # how far the job has come
    total_items: int  # how many items it has
    scored_items: int  # how many of them are scored


@dataclass(frozen=True, slots=True)
class JobScores:
    """Scores are there. They come in the order of the items, each once."""

    id: str  # what to give as last_event_id to go on behind this event
    items: list[ItemScores]  # empty for a job of likelihoods
    likelihoods: list[ItemLikelihood]  # the same of such a job; empty for others


@dataclass(frozen=True, slots=True)
class JobEnd:
    """A job has ended. This is the last event."""

    id: str  # what to give as last_event_id to get nothing again
    job: Job | None  # None if the job was deleted


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The status of a batch, or the number of its written lines, has changed."""

    id: str  # what to give as last_event_id to go on behind this event
    status: BatchStatus  # how far the batch has come
    total_items: int  # lines
    completed_lines: int  # lines that were answered
    failed_lines: int  # lines that have an error instead


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """A batch has ended. This is the last event."""

    id: str  # what to give as last_event_id to get nothing again
    batch: Batch | None  # None if the batch was deleted


JobEvent = JobProgress | JobScores | JobEnd
BatchEvent = BatchProgress | BatchEnd
