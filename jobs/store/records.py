"""What goes into the store and what comes out of it, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from checkpoints.card import ModelCard
from scoring.error_codes import ErrorCode
from scoring.layout import GroupWork, LabelScores, Rows, TokenIds
from scoring.options import Priority, ScoreOptions


class JobStatus(StrEnum):
    """Where a job is in its life. The last four are ends: a job reaches exactly one, and it never changes."""

    RECEIVING = "receiving"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def ended(self) -> bool:
        """Whether this is an end."""
        return self in ENDED


ENDED = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.EXPIRED})
"""The statuses that never change again."""


class Origin(StrEnum):
    """How a job came in: it decides how long it is kept, and how hard its acceptance is promised."""

    JOB = "job"
    """``POST /v1/jobs``: answered with 202, so it must survive everything."""
    CALL = "call"
    """``POST /v1/score``: someone is waiting, and asks again if the answer does not come."""


class Event(StrEnum):
    """What a webhook may ask to be told of: the ends of a job."""

    SUCCEEDED = "job.succeeded"
    FAILED = "job.failed"
    CANCELLED = "job.cancelled"
    EXPIRED = "job.expired"


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where a job's end is to be told, and which ends. host: the one that the URL names."""

    url: str
    host: str
    events: tuple[Event, ...] = tuple(Event)


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A client's Idempotency-Key. body_hash: of the decoded body, so that a key can't be used for another request."""

    key: str
    body_hash: str


@dataclass(frozen=True, slots=True, eq=False)
class Submission:
    """A validated job, as it is to be stored.

    chunks: the index of the chunk's first item among the job's, and its rows; expires_in: seconds from acceptance;
    prompt_tokens: over all sequences of the job; quota: of unfinished work of its tenant, None: no limit.
    """

    model: str
    tokenizer_fingerprint: str
    prefix: TokenIds
    chunks: Sequence[tuple[int, Rows]]
    label_token_ids: tuple[int, ...]
    prompt_tokens: int
    total_items: int
    options: ScoreOptions = field(default_factory=ScoreOptions)
    priority: Priority = Priority.NORMAL
    expires_in: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    origin: Origin = Origin.JOB
    idempotency: Idempotency | None = None
    tenant: str = "default"
    quota: int | None = None
    webhook: Webhook | None = None

    def __post_init__(self) -> None:
        items = sum(len(rows) for _, rows in self.chunks)
        if items != self.total_items:
            raise ValueError(f"the chunks hold {items} items, not {self.total_items}")


@dataclass(frozen=True, slots=True)
class Accepted:
    """A committed job. replayed: it was accepted earlier, with the same Idempotency-Key and body."""

    job_id: str
    replayed: bool


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job failed, in words meant for its owner."""

    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as it stands. Times are Unix seconds on the database's clock; metadata is the client's own."""

    id: str
    tenant: str
    model: str
    status: JobStatus
    origin: Origin
    priority: Priority
    total_items: int
    scored_items: int
    prompt_tokens: int
    cached_tokens: int
    created_at: float
    started_at: float | None
    finished_at: float | None
    expires_at: float | None
    options: ScoreOptions
    label_token_ids: tuple[int, ...]
    metadata: Mapping[str, str]
    warnings: tuple[str, ...]
    error: JobError | None
    webhook: Webhook | None


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """Work that is the claimant's until its lease runs out. ``batch_id`` is the fence: whoever does not have it can't
    finish the work. A :class:`scoring.layout.ChunkWork`'s ``id`` is the chunk's. interactive: all of it is; else
    nothing of it.
    """

    batch_id: str
    groups: tuple[GroupWork, ...]
    interactive: bool

    @property
    def chunk_ids(self) -> list[int]:
        """The ids of all claimed chunks."""
        return [chunk.id for group in self.groups for chunk in group.chunks]


@dataclass(frozen=True, slots=True)
class Finished:
    """What a finishing transaction did. job_ids: jobs that succeeded with it; fenced: chunks that were not the
    batch's (any more), whose scores were dropped.
    """

    job_ids: tuple[str, ...]
    fenced: int


@dataclass(frozen=True, slots=True)
class Returned:
    """What became of a batch's unfinished chunks. waiting: chunks to be claimed again; job_ids: jobs that failed."""

    waiting: int
    job_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did. job_ids: jobs that reached an end; models: those with work that waits again; removed: jobs
    whose time of keeping was over.
    """

    job_ids: tuple[str, ...]
    models: frozenset[str]
    removed: int


@dataclass(frozen=True, slots=True, eq=False)
class ScorePage:
    """Scored rows of a job in the order of its items, those not scored (yet) left out.

    indices: int64 [N], the items' indices in the job; scores: N rows; has_more: the job has items past the page.
    """

    job: JobRecord
    indices: npt.NDArray[np.int64]
    scores: LabelScores
    has_more: bool


@dataclass(frozen=True, slots=True)
class Backlog:
    """Waiting work. tokens: of all rows, as :mod:`scoring.work` counts."""

    chunks: int
    tokens: int


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A scoring worker and what it serves. The database's clock sets the times, in Unix seconds.

    tokens_per_second: as :mod:`scoring.work` counts, measured lately; None if it has measured nothing yet.
    """

    id: str
    card: ModelCard
    weights_fingerprint: str
    device: str
    dtype: str
    started_at: float = 0.0
    last_seen: float = 0.0
    tokens_per_second: float | None = None
