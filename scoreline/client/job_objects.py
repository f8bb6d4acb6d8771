"""Jobs and what belongs to them, as the client returns them. Times are Unix seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from scoreline.client.decisions import Decision
from scoreline.client.options import Priority
from scoreline.client.reading import read_fields
from scoreline.client.results import LikelihoodResult, Provenance, ScoreResult
from scoreline.client.tables import NOTHING_ASKED, Asked, Short

ENDED = frozenset({"succeeded", "failed", "cancelled", "expired"})
"""The final statuses of a job."""

JobStatus = Literal["receiving", "queued", "running", "succeeded", "failed", "cancelled", "expired"]
JobKind = Literal["score", "likelihood", "decision"]


class JobFailure(NamedTuple):
    """Why a job failed."""

    code: str  # the code of the error
    message: str  # what has happened, in words


@dataclass(frozen=True, slots=True, repr=False)
class Job(Short):
    """A job in its present state."""

    id: str  # by which the job is named in requests
    model: str  # the name of the model that scores it
    kind: JobKind  # what it computes: scores, likelihoods or answers
    status: JobStatus  # how far it has come
    priority: Priority  # which jobs it lets pass, and which let it pass
    total_items: int  # how many items it has
    scored_items: int  # how many of them are scored
    created_at: float  # when it was accepted
    started_at: float | None  # when a worker first took work of it; None: not yet
    finished_at: float | None  # when it ended; None: not yet
    queued_seconds: float | None  # how long it waited for a worker; None while its items come, and of an old service
    expires_at: float | None  # what is not scored by then is given up
    error: JobFailure | None  # code and message, if it failed
    metadata: Mapping[str, str]  # what the sender attached to it
    warnings: list[str]  # what is odd about the request, in words
    prompt_tokens: int  # the lengths of all sequences, summed
    cached_tokens: int  # prompt tokens that did not have to be computed
    reused_items: int  # items that were not computed, because an equal item was
    provenance: list[Provenance | None] | None  # what computed its scores, once it has ended
    result: ScoreResult | None  # if it succeeded and has at most 1,000 items; None for likelihoods
    likelihoods: LikelihoodResult | None  # the same of a job of likelihoods
    decision: Decision | None  # the same of a job of a decision
    asked: Asked = field(repr=False, compare=False)  # what the client remembers of the request, if it sent it itself
    raw: Mapping[str, Any] = field(repr=False)  # the whole response

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.status in ENDED

    @classmethod
    def read(cls, raw: Mapping[str, Any], asked: Asked = NOTHING_ASKED) -> Job:
        """Read a job object."""
        error, result, usage = raw.get("error"), raw.get("result"), raw["usage"]
        kind = raw.get("kind", "score")  # A service of an older version has no other.
        return read_fields(
            cls,
            raw,
            optional={"queued_seconds"},
            kind=kind,
            total_items=raw["progress"]["total_items"],
            scored_items=raw["progress"]["scored_items"],
            error=JobFailure(error["code"], error["message"]) if error else None,
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
            reused_items=usage.get("reused_items", 0),
            provenance=Provenance.read_all(raw),
            result=ScoreResult.read(result, asked) if result and kind == "score" else None,
            likelihoods=LikelihoodResult.read(result, asked) if result and kind == "likelihood" else None,
            decision=Decision.read(result) if result and kind == "decision" else None,
            asked=asked,
        )


@dataclass(frozen=True, slots=True)
class PlannedItems:
    """Items that would be scored by one algorithm."""

    algorithm: str  # the name of the algorithm
    items: int  # how many items it would score
    reason: str  # why it was chosen for them


@dataclass(frozen=True, slots=True, repr=False)
class DryRun(Short):
    """What a job would take."""

    model: str  # the name of the model that would score it
    total_items: int  # how many items it has
    prompt_tokens: int  # the lengths of all sequences, summed
    cached_tokens: int  # prompt tokens that would not have to be computed
    work: int  # tokens to compute, as quotas count them
    plan: list[PlannedItems] | None  # None while no worker says how it plans
    estimated_seconds: float | None  # of scoring it, by all live workers; None if nobody knows
    estimated_wait_seconds: float | None  # before that; None if nobody knows
    calibrated: bool  # whether the estimate rests on times that the workers have measured
    waits_for: list[str]  # what it would wait for, as messages; empty if it would be scored at once
    warnings: list[str]  # what is odd about the request, in words
    raw: Mapping[str, Any] = field(repr=False)  # the whole response

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> DryRun:
        """Read the answer to a dry run."""
        plan, usage = raw["plan"], raw["usage"]
        return read_fields(
            cls,
            raw,
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
            plan=None
            if plan is None
            else [PlannedItems(one["algorithm"], one["items"], one["reason"]) for one in plan],
            waits_for=[one["message"] for one in raw["waits_for"]],
        )


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event that was sent, or is to be sent, to the webhook of a job or of a batch."""

    id: str  # by which the delivery is named in requests
    event: str  # what it tells of, such as "job.succeeded"
    url: str  # where it is sent
    state: Literal["pending", "delivered", "failed", "skipped"]  # whether it has arrived
    created_at: float  # when the event happened
    next_attempt_at: float | None  # when it is sent next; None: there is no further attempt
    attempts: list[Mapping[str, Any]]  # as in the response, oldest first
    raw: Mapping[str, Any] = field(repr=False)  # the whole response

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Delivery:
        """Read an entry of the log of deliveries."""
        return read_fields(cls, raw)
