"""The values that go into the store and come out of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from checkpoints.adapter_folder import name_of
from checkpoints.card import ModelCard
from jobs.store.codec import SCORE_BYTES, TOKEN_BYTES
from jobs.store.webhook_events import Webhook
from scoring.chunk import Chunk
from scoring.error_codes import ErrorCode
from scoring.labels.item_labels import ItemLabels
from scoring.layout import Continuations, GroupWork, LabelScores, ScoredChunk, TargetScores, TokenIds
from scoring.options import Priority, ScoreOptions
from scoring.sources import Sources
from scoring.work import work_of_group


class JobStatus(StrEnum):
    """The status of a job. A job reaches exactly one of the last four, and then never changes."""

    RECEIVING = "receiving"  # an upload of which more is to come
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def ended(self) -> bool:
        return self in ENDED


ENDED = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.EXPIRED})


class Origin(StrEnum):
    """How a job was submitted. It decides how long the job is kept and how durable its acceptance is."""

    JOB = "job"  # ``POST /v1/jobs``: the answer is 202, so the job must survive any crash
    LINE = "line"  # a line of a file, which is a request of a batch
    CALL = "call"  # ``POST /v1/score``: the client waits for the scores, and calls again if no answer comes


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A client's Idempotency-Key."""

    key: str
    body_hash: str  # hash of the decoded body, so that the key can't be used for a different request


@dataclass(frozen=True, slots=True, eq=False)
class Submission:
    """A validated job, ready to be stored."""

    model: str
    work_key: str  # of the model: see ModelCard.work_key
    prefix: TokenIds
    chunks: Sequence[Chunk]
    label_token_ids: tuple[int, ...]  # that any of the items has; with continuations, see scoring.prepare
    prompt_tokens: int  # of all sequences of the job
    total_items: int
    options: ScoreOptions = field(default_factory=ScoreOptions)
    priority: Priority = Priority.NORMAL
    expires_in: float | None = None  # seconds from acceptance to the deadline
    metadata: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    origin: Origin = Origin.JOB
    idempotency: Idempotency | None = None
    tenant: str = "default"
    quota: int | None = None  # most tokens of unfinished work that the tenant may have; None for no limit
    webhook: Webhook | None = None
    notice_key: bytes | None = field(default=None, repr=False)  # of a call: signs its result in the notice of its end
    item_labels: ItemLabels | None = None  # which of the labels each item has; None: all of them
    form: Mapping[str, Any] | None = None  # as JSON: what the answer needs beside the scores, by options.shape
    traceparent: str | None = None  # of the request, as W3C writes it; None: it is not traced
    may_reuse: bool = True  # whether scores that are kept may be used for its items

    def __post_init__(self) -> None:
        items = sum(len(chunk.rows) for chunk in self.chunks)
        if items != self.total_items:
            raise ValueError(f"the chunks hold {items} items, not {self.total_items}")

    @property
    def model_name(self) -> str:
        """What requests call the model, with its adapter if it has one."""
        return name_of(self.model, self.options.adapter)

    @property
    def waiting_chunks(self) -> int:
        """How many chunks have something to compute."""
        return sum(not chunk.is_known for chunk in self.chunks)

    @property
    def reused_items(self) -> int:
        """How many items are not computed, because an equal item was or will be."""
        return sum(chunk.reused for chunk in self.chunks)

    @property
    def price(self) -> int:
        """The tokens that are charged to the quota of its tenant; 0 if it has none."""
        return 0 if self.quota is None else work_of_group(len(self.prefix), self.chunks)

    @property
    def ends_durably(self) -> bool:
        """Whether the end of the job must outlive a crash of the database.

        That of a call need not, because its client has been answered by then, unless the client may send the call again
        and expect the same answer, or is told of its end.
        """
        return self.origin is not Origin.CALL or self.idempotency is not None or self.webhook is not None

    @property
    def stored_bytes(self) -> int:
        """The bytes that the job takes in the store once it is scored, apart from the usual ones of any job's rows."""
        return int(self.prefix.nbytes) + self.bytes_beside_tokens + self.bytes_of(self.chunks)

    @property
    def bytes_beside_tokens(self) -> int:
        """The bytes of what belongs to the job as a whole and may be long."""
        labels = 0 if self.item_labels is None else self.item_labels.nbytes
        url = 0 if self.webhook is None else len(self.webhook.url)
        return labels + url + sum(len(json.dumps(one)) for one in (self.form, dict(self.metadata)) if one)

    def bytes_of(self, chunks: Iterable[Chunk]) -> int:
        """Return the bytes that chunks of the job take once they are scored: those of their tokens and scores."""
        each = 2 * SCORE_BYTES * len(self.label_token_ids)  # a logit and a log-probability of each label
        total = 0
        for chunk in chunks:
            total += chunk.nbytes + each * len(chunk.rows)
            if self.options.needs_targets and chunk.continuations is not None:
                of_target = SCORE_BYTES + (TOKEN_BYTES + SCORE_BYTES) * self.options.top
                total += len(chunk.continuations) + of_target * len(chunk.continuations.tokens)
            elif self.options.top:
                total += SCORE_BYTES * len(chunk.rows)
        return total


@dataclass(frozen=True, slots=True)
class Accepted:
    """A committed job."""

    job_id: str
    replayed: bool  # it was accepted by an earlier request with the same Idempotency-Key and body
    reused_items: int = 0  # of a job that is new


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job failed, in words for its owner."""

    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as it is stored. Times are Unix seconds on the database's clock."""

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
    metadata: Mapping[str, str]  # the client's own
    warnings: tuple[str, ...]
    error: JobError | None
    webhook: Webhook | None
    item_labels: ItemLabels | None = None  # which of the labels each item has; None: all of them
    form: Mapping[str, Any] | None = None  # see Submission.form; None in a list, too
    reused_items: int = 0  # that are not computed, because an equal item was: see scoring.sources

    @property
    def model_name(self) -> str:
        """What requests call the model, with its adapter if it has one."""
        return name_of(self.model, self.options.adapter)

    @property
    def queued_seconds(self) -> float | None:
        """How long it has waited for a worker: until its start, its end or now. None while its items are received."""
        if self.status is JobStatus.RECEIVING:
            return None
        return max(0.0, (self.started_at or self.finished_at or time.time()) - self.created_at)


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job of which a batch holds chunks."""

    id: str
    priority: Priority
    chunk_ids: tuple[int, ...]
    traceparent: str | None  # of the request that submitted it; None: it is not traced


@dataclass(frozen=True, slots=True, eq=False)
class PartialChunk:
    """A claimed chunk of which not every item is computed."""

    sources: Sources  # of all items
    not_computed: int  # tokens of the sequences of the other items
    recomputed: int
    """How many items more are computed than the job says, because another kind of worker has scored them. Below zero:
    how many fewer, because this worker has scored equal items of the job since it was accepted."""


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """A batch of work that a worker holds until its lease runs out."""

    batch_id: str  # the fence: scores for the batch are accepted only with this id
    groups: tuple[GroupWork, ...]  # the ids of their chunks are those of the store
    interactive: bool  # whether all of the work is interactive; otherwise none of it is
    work_left: bool
    """Whether more work may wait for the same worker. It can be true without reason after a claim of 128 chunks or
    more, but never false while work that could be read was left."""
    durable: bool
    """Whether the end of any of its jobs has to outlive a crash of the database: see Submission.ends_durably."""
    tokens: Mapping[str, int] = field(default_factory=dict)  # the work that was claimed, in tokens, by tenant
    jobs: tuple[ClaimedJob, ...] = ()  # whose chunks they are
    partial: Mapping[int, PartialChunk] = field(default_factory=dict)
    """The chunks that hold more items than are computed, by their ids."""
    contents: Mapping[int, Sequence[bytes]] = field(default_factory=dict)
    """Of computed items that later chunks of the same jobs may have, too, by the ids of chunks: a hash of each."""
    shared_prefixes: tuple[int, ...] = ()  # the ids of the prefixes that are computed once for all work behind them

    def whole(self, computed: ScoredChunk) -> ScoredChunk:
        """Return the scores of all items of a chunk, from those that were computed."""
        partial = self.partial.get(computed.id)
        if partial is None:
            return computed
        known = partial.sources.known
        return replace(
            computed,
            scores=partial.sources.spread(computed.scores),
            cached_tokens=computed.cached_tokens + partial.not_computed,
            algorithms=tuple(sorted({*computed.algorithms, *(() if known is None else known.algorithms)})),
            recomputed=partial.recomputed,
        )

    @property
    def chunk_ids(self) -> list[int]:
        return [chunk.id for group in self.groups for chunk in group.chunks]


@dataclass(frozen=True, slots=True)
class SucceededJob:
    """The times of a job that has succeeded: Unix seconds on the database's clock."""

    priority: Priority
    created_at: float
    started_at: float  # when its first chunk was claimed
    finished_at: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of storing scores."""

    job_ids: tuple[str, ...]  # jobs that succeeded with these scores
    fenced: int  # chunks whose scores were dropped, because the batch does not hold them
    results: Mapping[str, str] = field(default_factory=dict)
    """By job id, the signed results of those of the jobs whose request can be answered with their notice."""
    succeeded: tuple[SucceededJob, ...] = ()  # the times of these jobs


@dataclass(frozen=True, slots=True)
class Returned:
    """The result of returning the unfinished chunks of a batch."""

    waiting: int  # chunks that wait again
    job_ids: tuple[str, ...]  # jobs that failed


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep."""

    job_ids: tuple[str, ...]  # jobs that the sweep ended
    models: frozenset[str]  # models with work that waits again
    removed: int  # jobs past their retention
    more: bool = False  # whether more jobs may be past their deadline


@dataclass(frozen=True, slots=True, eq=False)
class ScorePage:
    """Scores of a job in the order of its items, without the items that were not scored."""

    job: JobRecord
    indices: npt.NDArray[np.int64]  # [N], indices of the items in the job
    scores: LabelScores  # N rows
    next_offset: int | None  # the index of the first item after this page; None: the job has no more
    # Of the N rows, where an answer needs them: see ScoreOptions.needs_targets.
    continuations: Continuations | None = None
    targets: TargetScores | None = None
    provenances: tuple[int | None, ...] = ()  # the ids of the distinct ones of these scores; None: not known

    @property
    def number_of_targets(self) -> int:
        """How many tokens of these items have scores of their own."""
        return 0 if self.continuations is None else len(self.continuations.tokens)

    @property
    def has_more(self) -> bool:
        """Whether the job has items after this page."""
        return self.next_offset is not None

    def first(self, rows: int) -> ScorePage:
        """Return the page with its first rows only."""
        if rows >= len(self.indices):
            return self
        continuations, targets = self.continuations, self.targets
        if continuations is not None and targets is not None:
            continuations = continuations.of_rows(0, rows, len(self.indices))
            targets = targets.part(slice(len(continuations.tokens)), slice(len(continuations)))
        return replace(
            self,
            indices=self.indices[:rows],
            next_offset=int(self.indices[rows]),
            scores=self.scores.part(slice(rows)),
            continuations=continuations,
            targets=targets,
        )


JobResult = tuple[JobRecord, ScorePage | None]
"""A job and all of its scores; None if it has not succeeded or has too many items."""


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A scoring worker and what it serves. Times are Unix seconds on the database's clock."""

    id: str
    card: ModelCard
    weights_fingerprint: str
    device: str
    dtype: str
    started_at: float = 0.0
    last_seen: float = 0.0
    tokens_per_second: float | None = None  # measured lately, counted as in scoring.work; None before any measurement
    planning: Mapping[str, Any] | None = None
    """{``planner``: how it plans, as :func:`scoring.planning.description.describe` has it, ``claim_seconds``: how much
    work it takes at a time}; None if it does not say."""
    estimate_ratio: float | None = None  # measured over estimated seconds; None before enough was measured
    provenance_id: int | None = None
    """Of all that it computes, without algorithms; None: its scores may depend on what else it computes."""
