"""Decisions: calls that wait for answers to questions about a state, and jobs of them."""

from __future__ import annotations

from typing import Literal, Unpack

from scoreline.client.decisions import Decision, Questions, State, bodies_of
from scoreline.client.exchange.bodies import JsonBody
from scoreline.client.exchange.flow import Flow, Request
from scoreline.client.exchange.sending import Service, send
from scoreline.client.job_objects import DryRun, Job
from scoreline.client.operations.scoring import call, fields_of
from scoreline.client.operations.submitting import submitted
from scoreline.client.options import DecisionJobOptions, DecisionOptions, Permute, Priority
from scoreline.client.tables import NOTHING_ASKED

KIND = "decision"
"""What a job of a decision calls itself."""


def decide(
    service: Service,
    state: State,
    questions: Questions,
    *,
    timeout: float = 60.0,
    on_timeout: Literal["continue", "cancel"] | None = None,
    idempotency_key: str | None = None,
    **options: Unpack[DecisionOptions],
) -> Flow[Decision]:
    """Ask questions about a state, and wait for the answers: probabilities, and nothing is generated.

    state: a text, or anything that JSON can say. questions: by their names; each is a YesNo, a Choice or a Scale, or a
    mapping as the service takes it.
    timeout: seconds to wait; then TimedOut is raised, and the job goes on. on_timeout: ``"cancel"``: it is given up.
    idempotency_key: makes it safe to repeat the call; the client makes one for its own repetitions.

    >>> from scoreline import Choice, YesNo
    >>> decision = client.decide(
    ...     "My parcel has not arrived. I want a refund.",
    ...     {
    ...         "team": Choice("Which team is this for?", ["billing", "delivery", "accounts"]),
    ...         "refund": YesNo("Is a refund requested?"),
    ...     },
    ... )
    >>> decision["team"] in ("billing", "delivery", "accounts"), 0 <= decision["refund"] <= 1
    (True, True)
    """
    body = fields_of(locals()) | {"questions": bodies_of(questions)}
    request = call("/v1/systemone", Decision.read, body, timeout, idempotency_key)
    return (yield from send(service, request))


def submit_decision(
    service: Service,
    state: State,
    questions: Questions,
    *,
    idempotency_key: str | None = None,
    **options: Unpack[DecisionJobOptions],
) -> Flow[Job]:
    """Submit a job of questions about a state. Once this returns, it survives the crash of any process of the service.

    ``decision`` of the awaited job has the answers.
    idempotency_key: makes it safe to submit again after an error, as that of :meth:`submit`.

    >>> from scoreline import Scale
    >>> job = client.submit_decision("I forgot my password.", {"urgency": Scale("How urgent is it?", ["low", "high"])})
    >>> 0 <= client.wait(job).decision["urgency"] <= 1
    True
    """
    body = fields_of(locals()) | {"kind": KIND, "questions": bodies_of(questions)}
    return (yield from submitted(service, JsonBody(body), idempotency_key, NOTHING_ASKED))


def dry_run_decision(
    service: Service,
    state: State,
    questions: Questions,
    *,
    permute: Permute | None = None,
    model: str | None = None,
    priority: Priority | None = None,
) -> Flow[DryRun]:
    """Return what a job of questions about a state would take, without submitting it.

    permute: as that of :meth:`decide`. model: the name of a model; None: the one that is served. priority: that of the
    job.

    >>> from scoreline import YesNo
    >>> client.dry_run_decision("I forgot my password.", {"refund": YesNo("Is a refund requested?")}).total_items
    1
    """
    body = fields_of(locals()) | {"kind": KIND, "dry_run": True, "questions": bodies_of(questions)}
    return (yield from send(service, Request("POST", "/v1/jobs", DryRun.read, body=JsonBody(body))))
