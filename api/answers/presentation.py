"""Convert jobs and scores to the JSON of responses, whose shapes are documented in ``api.answers.schemas.jobs``.

JSON has no infinities. Scores are always finite. A log-probability of minus infinity (of a label whose probability is 0
in float32) and an infinite logit are written as ``null``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json
from starlette.responses import Response

from api.answers.decisions.shown_answers import IS_DECISION, show_decision
from api.answers.items.column import Column
from api.answers.items.columns import Computed, columns_of, computed_of, whole_columns
from api.answers.items.judged import artefact_ids
from api.answers.receipts import asked_at, sign
from api.answers.schemas.jobs import (
    Delivery,
    DeliveryAttempt,
    DeliveryEndpoint,
    Job,
    JobErrorShape,
    JobWebhook,
    WebhookSecret,
)
from api.answers.schemas.server import ServedArtefact, ServedClasses, ServedTemplate
from api.answers.shown import shown
from api.callers.compatibility import Compatibility
from checkpoints.adapter_folder import name_of
from checkpoints.card import ModelCard, shorten
from checkpoints.classification import Activation
from jobs.catalogue import DEFAULT_MODEL
from jobs.store.provenance import Provenance
from jobs.store.records import JobRecord, ScorePage, Submission, WorkerRecord
from jobs.store.signed_result import CallResult
from jobs.webhooks.delivery_log import DeliveryRecord
from jobs.webhooks.secrets import WebhookSecret as SecretRecord
from judgement.artefacts import Artefact
from public_api import paths
from public_api.paths import job_urls
from scoring.layout import Continuations
from scoring.options import ScoreOptions, Scoring, Shape
from scoring.templates.known import KnownTemplates

if TYPE_CHECKING:
    from judgement.receipts import ReceiptKeys

EMBEDDED_ITEMS = 1_000
"""The job object includes the result of a job with at most this many items; larger results are read in pages."""

SLICE_VALUES = 2**15
"""Scores are encoded so many at a time, in some milliseconds: encoding holds the interpreter's lock."""

BYTES_PER_ITEM, BYTES_PER_VALUE, BYTES_PER_TARGET = 64, 20, 64
"""What an item, a number of it and a token that is its target take in an answer, about."""

MEDIA_TYPE = "application/json"


def encode(value: Any) -> bytes:
    """Encode a value as JSON; infinities and NaN become ``null``."""
    return to_json(value, inf_nan_mode="null")


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response with plain data, or with JSON that is already encoded."""
    content = value if isinstance(value, bytes) else encode(value)
    return Response(content, status, headers, media_type=MEDIA_TYPE)


def show_job(job: JobRecord, provenance: Sequence[Provenance | None] | None = None) -> dict[str, Any]:
    """Return the job object, without its scores. provenance: what computed them, if that is to be shown."""
    is_likelihood = job.options.scoring is Scoring.LIKELIHOOD
    is_decision = job.options.shape in IS_DECISION
    provenance_shown = {} if provenance is None else {"provenance": show_provenance(provenance, job.options)}
    return shown(
        Job,
        job,
        model=job.model_name,
        kind="decision" if is_decision else "likelihood" if is_likelihood else "score",
        label_scoring=None if is_likelihood or is_decision else _kind_of_labels(job.options),
        progress={"total_items": job.total_items, "scored_items": job.scored_items},
        usage=show_usage(job, job.cached_tokens),
        error=None if job.error is None else shown(JobErrorShape, job.error),
        webhook=None if job.webhook is None else shown(JobWebhook, job.webhook),
        urls=job_urls(job.id),
        **provenance_shown,
    )


def show_provenance(provenance: Sequence[Provenance | None], options: ScoreOptions) -> list[dict[str, Any] | None]:
    """Return what computed the scores of a job. None stands for scores of a version that recorded nothing."""
    ids = artefact_ids(options)
    return [None if one is None else asdict(one) | ids for one in provenance]


def encode_job(
    result: ScorePage,
    provenance: Sequence[Provenance | None] | None = None,
    receipt_keys: ReceiptKeys | None = None,
) -> bytes:
    """Return the job object with its scores, if they can be shown, encoded. provenance: see :func:`show_job`."""
    job = show_job(result.job, provenance)
    if result.scores.impossible_row() is not None:
        return encode(job)
    # The answer to a call can be another one than the result of its job, and the former has the receipt.
    is_asked_for = asked_at(result.job.options) == paths.JOBS
    keys = receipt_keys if is_asked_for else None
    scored = replace(ScoredJob.read(result), provenance=provenance, receipt_keys=keys)
    return encode_object({**job, "result": encode_scoring(scored)})


@dataclass(frozen=True, slots=True, eq=False)
class ScoredJob:
    """A job that succeeded, with all of its scores."""

    id: str
    job: JobRecord | Submission
    finished_at: float  # Unix seconds
    cached_tokens: int
    computed: Computed  # of all items
    provenance: Sequence[Provenance | None] | None = None  # what computed it, if the answer needs it
    receipt_keys: ReceiptKeys | None = None  # that sign its receipt, if it is to have one

    @classmethod
    def read(cls, page: ScorePage) -> ScoredJob:
        """Return a job that was read with all of its scores."""
        job = page.job
        return cls(job.id, job, job.finished_at or job.created_at, job.cached_tokens, computed_of(page))

    @classmethod
    def noticed(cls, submission: Submission, job_id: str, result: CallResult) -> ScoredJob:
        """Return a call that was submitted here and whose result came with a notice, so that its job was not read."""
        continuations = None
        if result.targets is not None:
            parts = [chunk.continuations for chunk in submission.chunks if chunk.continuations is not None]
            continuations = Continuations.join(parts)
        computed = Computed(submission, result.scores, submission.item_labels, continuations, result.targets)
        return cls(job_id, submission, result.finished_at, result.cached_tokens, computed)

    def warnings(self, items: str = "items") -> list[str]:
        """Return the warnings of the job, and what its scores give reason to. items: what the client calls them."""
        return [*self.job.warnings, *self.computed.warnings(items)]

    def encode(self, answer: Mapping[str, Any]) -> bytes:
        """Encode an answer with what computed the scores, and with a receipt, where they are asked for."""
        options = self.job.options
        provenance = None if self.provenance is None else show_provenance(self.provenance, options)
        if options.return_provenance and provenance is not None:
            answer = {**answer, "provenance": provenance}
        encoded = encode_object(answer)
        if options.receipt is None or self.receipt_keys is None:
            return encoded
        receipt = sign(
            encoded,
            options.receipt,
            self.receipt_keys,
            job_id=self.id,
            finished_at=self.finished_at,
            provenance=provenance,
        )
        return b"%b,%b" % (encoded[:-1], encode({"receipt": receipt})[1:])


def expected_bytes(job: JobRecord | Submission, items: int, targets: int = 0) -> int:
    """Return about how many bytes an answer with the scores of some items, and of their targets, will have."""
    options = job.options
    of_item = BYTES_PER_ITEM + BYTES_PER_VALUE * options.numbers_shown * len(job.label_token_ids)
    lists = 2 if options.shape is Shape.COMPLETION else 1  # for the most probable token of each place
    return items * of_item + BYTES_PER_TARGET * lists * targets


def encode_scoring(scored: ScoredJob) -> bytes:
    """Return the response of a call, or the result of a job, encoded. Only a ranking is another one."""
    job = scored.job
    if job.options.shape in IS_DECISION:
        computed = scored.computed
        assert computed.item_labels is not None
        answer = show_decision(job, computed.scores, computed.item_labels, scored.cached_tokens)
        return scored.encode({"id": scored.id, "model": job.model_name, **answer})
    is_likelihood = job.options.scoring is Scoring.LIKELIHOOD
    columns, baseline = whole_columns(scored.computed)
    return scored.encode(
        {
            "id": scored.id,
            "object": "likelihood" if is_likelihood else "scoring",
            "model": job.model_name,
            "created": math.floor(scored.finished_at),
            **{name: _encode_column(column) for name, column in columns.items()},
            **baseline,
            "usage": show_usage(job, scored.cached_tokens),
            "warnings": scored.warnings(),
        }
    )


def encode_page(page: ScorePage) -> bytes:
    """Return a page of scores, encoded."""
    what_follows = {"has_more": page.has_more, "next_offset": page.next_offset}
    return encode_object({"object": "list", "data": encode_slices(_lines(page)), **what_follows})


def encode_lines(page: ScorePage) -> bytes:
    """Return the items of a page as JSON lines."""
    return b"".join(encode(line) + b"\n" for lines in _lines(page) for line in lines)


def show_delivery(delivery: DeliveryRecord) -> dict[str, Any]:
    """Return a delivery: an event that was, or will be, sent to a webhook."""
    is_of_batch = delivery.job_id.startswith("batch_")
    never_failed = {"failing_since": None, "disabled_at": None}
    return shown(
        Delivery,
        delivery,
        job_id=None if is_of_batch else delivery.job_id,
        batch_id=delivery.job_id if is_of_batch else None,
        attempts=[shown(DeliveryAttempt, one, outcome=one.reason or "delivered") for one in delivery.attempts],
        endpoint=never_failed if delivery.endpoint is None else shown(DeliveryEndpoint, delivery.endpoint),
    )


def show_secrets(secrets: Sequence[SecretRecord]) -> dict[str, Any]:
    return {"object": "list", "data": [shown(WebhookSecret, secret) for secret in secrets]}


def show_model(
    card: ModelCard, templates: KnownTemplates, aliases: Sequence[str], workers: Sequence[WorkerRecord]
) -> dict[str, Any]:
    """Return a model, with the templates that requests may name, and the workers that serve the same."""
    return {
        "id": card.name,
        "object": "model",
        "created": math.floor(min((worker.started_at for worker in workers), default=0)),
        "owned_by": "scoreline",
        "parent": None,
        "aliases": list(aliases),
        "version": card.version,
        "max_model_len": card.context_length,
        "vocabulary": card.vocabulary,
        "delimiter": card.delimiter,
        "classes": None if card.classes is None else shown(ServedClasses, card.classes),
        "template": templates.default_name,
        "templates": [
            shown(ServedTemplate, template, name=name, relevance=str(template.relevance))
            for name, template in templates.by_name.items()
        ],
        "live_workers": len(workers),
    }


def with_adapter(model: Mapping[str, Any], adapter: str | None, artefacts: Mapping[str, Artefact]) -> dict[str, Any]:
    """Return a model, as :func:`show_model` returns it, with an adapter, or as it is, and its artefacts by name."""
    served = [shown(ServedArtefact, one, name=name, kind=str(one.kind)) for name, one in artefacts.items()]
    named = {} if adapter is None else {"id": name_of(model["id"], adapter), "parent": model["id"], "aliases": []}
    return {**model, **named, "artefacts": served}


def show_models(models: Sequence[Mapping[str, Any]], default: str) -> dict[str, Any]:
    """Return the list of models for all clients, as :func:`with_adapter` returns them. default: its name."""
    names = {name: one for one in models for name in (one["id"], *one["aliases"])}
    if default in names:
        names.setdefault(DEFAULT_MODEL, names[default])
    return {"object": "list", "data": models, "models": [_named(name, one) for name, one in names.items()]}


def _named(name: str, model: Mapping[str, Any]) -> dict[str, str]:
    """Return a model under one of its names, as System One's clients read it."""
    does = "scores items, ranks documents and answers decisions" if model["classes"] is None else "classifies items"
    if model["classes"] is not None and model["classes"]["activation"] == Activation.DECISIONS:
        does = "answers decisions"
    since = datetime.fromtimestamp(model["created"] or time.time(), UTC).date().isoformat()
    description = f"{model['id']}: {does}, in {model['max_model_len']} tokens at most"
    return {"name": name, "description": description, "release_date": since}


def show_readiness(card: ModelCard, compatibility: Compatibility) -> dict[str, Any]:
    """Return what a ready process serves, and how the live workers compare."""
    return {
        "status": "ok",
        "model": {
            "id": card.name,
            "tokenizer": shorten(card.tokenizer_fingerprint),
            "vocabulary": card.vocabulary,
            "max_model_len": card.context_length,
            "delimiter": card.delimiter,
        },
        "workers": {"live": compatibility.live, "matching": len(compatibility.matching)},
        "warnings": list(compatibility.warnings),
    }


def _kind_of_labels(options: ScoreOptions) -> str:
    return options.scoring.value if options.is_of_vocabulary else "class"


def _lines(page: ScorePage) -> Iterator[list[dict[str, Any]]]:
    """Yield one object per item, a slice of the items at a time: its index, and the values that were requested."""
    columns = columns_of(computed_of(page))
    for part in _slices(len(page.indices), sum(column.most_values for column in columns.values())):
        rows = {name: column.part(part) for name, column in columns.items()}
        yield [
            {"index": index, **{name: values[n] for name, values in rows.items()}}
            for n, index in enumerate(page.indices[part].tolist())
        ]


def _encode_column(column: Column) -> bytes:
    """Encode the values of all items as a list."""
    return encode_slices(column.part(part) for part in _slices(len(column), column.most_values))


def _slices(items: int, values_per_item: int) -> Iterator[slice]:
    """Yield slices of the items with at most :data:`SLICE_VALUES` values each, but at least one item."""
    step = max(1, SLICE_VALUES // max(1, values_per_item))
    return (slice(start, start + step) for start in range(0, items, step))


def encode_slices(slices: Iterable[list[Any]]) -> bytes:
    """Encode one list that is given as slices, none of them empty."""
    return b"[%b]" % b",".join(encode(part)[1:-1] for part in slices)


def encode_object(fields: Mapping[str, Any]) -> bytes:
    """Encode an object. A value of bytes is JSON already; the fields between such values are encoded together."""
    parts: list[bytes] = []
    for encoded, group in groupby(fields.items(), lambda field: isinstance(field[1], bytes)):
        if encoded:
            parts += [encode(name) + b":" + value for name, value in group]
        else:
            parts.append(encode(dict(group))[1:-1])
    return b"{%b}" % b",".join(parts)


def show_usage(job: JobRecord | Submission, cached_tokens: int) -> dict[str, Any]:
    """Return the tokens of all sequences, how many of them did not have to be computed, and how many items."""
    return {
        "prompt_tokens": job.prompt_tokens,
        "completion_tokens": 0,
        "total_tokens": job.prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "reused_items": job.reused_items,
    }
