"""Parse and validate a job from the bytes of a body. All of this blocks on the processor, so call it in a thread.

The order of the checks is fixed, so that a request with several errors always gets the same one: first the JSON, then
the fields that do not concern scoring, then the shapes of query, items and labels, and last what needs the tokenizer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from api.answers.reranking import Ranking
from api.reading import ReadingContext
from api.requests.bodies.json_body import parse_json
from api.requests.fields import check_fields
from api.requests.headers.idempotency import idempotency_of
from api.requests.kinds import SYSTEMONE, Kind, kind_of
from api.requests.receipts import check_is_whole, wants_receipt, with_receipt
from api.requests.sender import Sender
from api.requests.webhook import read_webhook
from jobs.store.identifiers import new_notice_key
from jobs.store.records import Idempotency, Origin, Submission
from jobs.store.webhook_events import Webhook
from public_api import paths
from scoring.error_codes import ErrorCode, RequestError, invalid
from scoring.labels.fields import refuse_labels_for_each_item
from scoring.limits import Limit, Limits
from scoring.options import Priority
from scoring.prepare import Preparation, PreparedRequest, prepare
from scoring.request import ScoreRequest
from scoring.values import parse_flag

JOBS = f"POST {paths.JOBS}"
"""The route of all jobs, for their Idempotency-Keys."""

LINES_ADVICE = "send it as JSON lines (application/x-ndjson)"
JOBS_ADVICE = "submit it to /v1/jobs"
SEVERAL_ADVICE = "send it as several jobs"
IDS_ADVICE = "send token ids instead of text"

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
MAX_EXPIRES_IN = 366 * 86400.0


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What the body of ``POST /v1/jobs`` asks for."""

    submission: Submission
    dry_run: bool  # say what the job would take, and store nothing


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A job whose client waits for it."""

    submission: Submission
    timeout: float  # seconds
    cancel_on_timeout: bool
    ranking: Ranking | None = None  # if it ranks its items


def parse_object(data: bytes) -> Mapping[str, object]:
    """Return the JSON object in a body. Raises RequestError."""
    body = parse_json(data)
    if not isinstance(body, dict):
        raise invalid("the body must be a JSON object")
    return body


def read_job(reading: ReadingContext, data: bytes, sender: Sender) -> JobRequest:
    """Return the job in the body of ``POST /v1/jobs``. Raises RequestError."""
    return job_of(reading, parse_object(data), sender, idempotency_of(sender.idempotency_key, JOBS, data))


def job_of(
    reading: ReadingContext, body: Mapping[str, object], sender: Sender, idempotency: Idempotency | None
) -> JobRequest:
    """Return the job in a body that is parsed. Raises RequestError."""
    kind = kind_of(body)
    reading = reading.of_model(body.get("model"), sender.principal.policy)
    limits = limits_of(
        reading,
        items=Limit("max_items", reading.scoring.max_items, LINES_ADVICE),
        tokens=Limit("max_tokens_per_job", reading.limits.max_tokens_per_job, SEVERAL_ADVICE),
    )
    fields = _job_fields(reading, body, kind, sender)
    dry_run = parse_flag(body.get("dry_run"), "dry_run")
    has_receipt = wants_receipt(reading, body)
    request = parse_request(reading, body, kind)
    prepared = prepare_request(reading, sender, request, limits)
    submission = submission_of(reading, sender, request, prepared, fields, idempotency)
    if request.options.baseline:
        check_is_whole(submission, "baseline")
    return JobRequest(with_receipt(reading, body, paths.JOBS, submission) if has_receipt else submission, dry_run)


def read_upload(reading: ReadingContext, body: Mapping[str, object], sender: Sender) -> tuple[Submission, Preparation]:
    """Return the job in the first line of an upload, and the preparation of its items. Raises RequestError."""
    if body.get("items") is not None:
        raise invalid("items come behind the first line, one a line", "items")
    if wants_receipt(reading, body):
        message = "a receipt is of a request in one JSON body, and not of JSON lines"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="return_receipt")
    if body.get("baseline") is not None:
        message = "a baseline stands in one JSON body with the items, and not in JSON lines"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="baseline")
    if parse_flag(body.get("dry_run"), "dry_run"):
        message = "a dry run takes one JSON body; JSON lines would have to be stored"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="dry_run")
    reading = reading.of_model(body.get("model"), sender.principal.policy)
    most = reading.limits
    limits = replace(
        limits_of(
            reading,
            items=Limit("max_items_per_upload", reading.scoring.max_items_per_upload),
            tokens=Limit("max_tokens_per_job", most.max_tokens_per_job, SEVERAL_ADVICE),
        ),
        stored_tokens=Limit("max_stored_tokens_per_upload", most.max_stored_tokens_per_upload, SEVERAL_ADVICE),
        repeated_characters=Limit(
            "max_repeated_characters_per_upload", most.max_repeated_characters_per_upload, IDS_ADVICE
        ),
    )
    kind = kind_of(body)
    if kind is SYSTEMONE:
        raise invalid("a decision has no items: send it as one JSON body", "kind")
    fields = _job_fields(reading, body, kind, sender)
    refuse_labels_for_each_item(body)
    request = parse_request(reading, {**body, "items": []}, kind)
    wanted = reading.scoring.multi_item_algorithm
    preparation = Preparation(request, reading.card, reading.tokenizer, limits, wanted, reading.stop_if_unwanted)
    return submission_of(reading, sender, request, preparation.prepared(()), fields, None), preparation


def call_timeout(reading: ReadingContext, body: Mapping[str, object]) -> float:
    """Return how many seconds a call wants to wait. Raises RequestError."""
    return seconds_of(body, "timeout", reading.api.max_call_timeout_seconds) or reading.api.call_timeout_seconds


def call_limits(reading: ReadingContext) -> Limits:
    return limits_of(
        reading,
        items=Limit("max_items_per_call", reading.scoring.max_items_per_call, JOBS_ADVICE),
        tokens=Limit("max_tokens_per_call", reading.scoring.max_tokens_per_call, JOBS_ADVICE),
    )


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a body that do not concern scoring."""

    origin: Origin
    priority: Priority
    expires_in: float | None
    metadata: Mapping[str, str]
    webhook: Webhook | None = None
    warnings: tuple[str, ...] = ()


def _job_fields(reading: ReadingContext, body: Mapping[str, object], kind: Kind, sender: Sender) -> Fields:
    warnings = check_fields(body, kind.job_fields, kind.refused, strict=kind.is_strict or sender.is_strict)
    webhook = read_webhook(body, reading.webhook_rules)
    given = one_of(body, "priority", [str(priority) for priority in Priority])
    expires_in = seconds_of(body, "expires_in", MAX_EXPIRES_IN)
    priority = Priority(given) if given is not None else Priority.NORMAL
    return Fields(Origin.JOB, priority, expires_in, read_metadata(body), webhook, warnings)


def parse_request(reading: ReadingContext, body: Mapping[str, object], kind: Kind) -> ScoreRequest:
    """Return what a body of this kind asks to be scored. Raises RequestError."""
    adapter = reading.adapter_of(body.get("model"))
    request = kind.parse(reading, body)
    if adapter is not None:
        request = replace(request, options=replace(request.options, adapter=adapter))
    return request if kind.judged is None else kind.judged(reading, body, request)


def submission_of(
    reading: ReadingContext,
    sender: Sender,
    request: ScoreRequest,
    prepared: PreparedRequest,
    fields: Fields,
    idempotency: Idempotency | None,
) -> Submission:
    """Return what is stored of a request."""
    return Submission(
        model=reading.card.name,
        work_key=reading.card.work_key,
        prefix=prepared.prefix,
        chunks=prepared.chunks,
        label_token_ids=prepared.label_token_ids,
        item_labels=prepared.item_labels,
        prompt_tokens=prepared.prompt_tokens,
        total_items=prepared.total_items,
        options=request.options,
        priority=fields.priority,
        expires_in=fields.expires_in,
        metadata=fields.metadata,
        warnings=(*fields.warnings, *prepared.warnings),
        form=None if request.decision is None else request.decision.form(prepared.sequence_lengths),
        origin=fields.origin,
        idempotency=idempotency,
        tenant=sender.principal.tenant,
        quota=sender.principal.policy.max_waiting_tokens,
        webhook=fields.webhook,
        notice_key=new_notice_key() if fields.origin is Origin.CALL else None,
        may_reuse=not sender.wants_computed,
    )


def prepare_request(reading: ReadingContext, sender: Sender, request: ScoreRequest, limits: Limits) -> PreparedRequest:
    """Tokenize and check a request that arrived as one body. Raises RequestError."""
    reading.check_pairs(request)
    wanted = reading.scoring.multi_item_algorithm
    tokenizer = reading.tokenizer.of(sender.principal.tenant)
    try:
        return prepare(request, reading.card, tokenizer, limits, wanted, reading.stop_if_unwanted)
    except RequestError as error:
        raise request.worded(error) from None


def limits_of(reading: ReadingContext, *, items: Limit, tokens: Limit) -> Limits:
    """Return the limits of a job or call that arrives as one body."""
    scoring, limits = reading.scoring, reading.limits
    return Limits(
        max_labels=scoring.max_labels,
        item_labels=Limit("max_item_labels", scoring.max_item_labels, SEVERAL_ADVICE),
        items=items,
        tokens=tokens,
        stored_tokens=Limit("max_stored_tokens_per_job", limits.max_stored_tokens_per_job, LINES_ADVICE),
        repeated_characters=Limit(
            "max_repeated_characters_per_job", limits.max_repeated_characters_per_job, IDS_ADVICE
        ),
        query_characters=Limit("max_query_characters", limits.max_query_characters),
        item_characters=Limit("max_item_characters", limits.max_item_characters),
        label_characters=Limit("max_label_characters", limits.max_label_characters),
        label_tokens=Limit("max_label_tokens", limits.max_label_tokens, SEVERAL_ADVICE),
        chunk_tokens=scoring.chunk_tokens,
        chunk_items=scoring.chunk_items,
    )


def one_of(body: Mapping[str, object], name: str, allowed: Collection[str]) -> str | None:
    """Return the value of a field that has one of these values; None without one. Raises RequestError."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or value not in allowed:
        raise invalid(f"{name} must be one of {', '.join(allowed)}", name)
    return value


def seconds_of(body: Mapping[str, object], name: str, maximum: float) -> float | None:
    """Return the value of a field that is a number of seconds; None without one. Raises RequestError."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= maximum:
        raise invalid(f"{name} must be a number of seconds above 0 and at most {maximum:g}", name)
    return float(value)


def read_metadata(body: Mapping[str, object]) -> dict[str, str]:
    """Return the client's own strings in a body. Raises RequestError."""
    value = body.get("metadata")
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_METADATA:
        raise invalid(f"metadata must be an object of at most {MAX_METADATA} strings", "metadata")
    for name, text in value.items():
        if not _storable(name, MAX_METADATA_KEY):
            raise invalid(f"names in metadata have at most {MAX_METADATA_KEY} characters, none of them NUL", "metadata")
        if not _storable(text, MAX_METADATA_VALUE):
            message = f"values in metadata are strings of at most {MAX_METADATA_VALUE} characters, none of them NUL"
            raise invalid(message, f"metadata.{name}")
    return value


def _storable(value: object, max_length: int) -> bool:
    """Return whether a value is a string that can be stored: PostgreSQL can't store NUL."""
    return isinstance(value, str) and len(value) <= max_length and "\0" not in value
