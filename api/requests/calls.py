"""Read a call: a body whose sender waits for the answer. This blocks on the processor, so call it in a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from api.reading import ReadingContext
from api.requests.completions import completion_of
from api.requests.fields import check_fields
from api.requests.headers.idempotency import idempotency_of
from api.requests.kinds import DECISIONS, KINDS, Kind
from api.requests.receipts import wants_receipt, with_receipt
from api.requests.reranking import RERANK, TEXTS_PATH, ranking_of, ranking_of_documents_or_texts
from api.requests.sender import Sender
from api.requests.submission import (
    Call,
    Fields,
    call_limits,
    call_timeout,
    one_of,
    parse_object,
    parse_request,
    prepare_request,
    submission_of,
)
from jobs.store.records import Idempotency, Origin
from public_api import paths
from scoring.options import Priority


def read_call(reading: ReadingContext, data: bytes, sender: Sender, path: str) -> Call:
    """Return the call in the body of a ``POST`` to one of the paths of :data:`CALLS`. Raises RequestError."""
    body = parse_object(data)
    return parsed_call(reading, body, sender, path, idempotency_of(sender.idempotency_key, f"POST {path}", data))


def parsed_call(
    reading: ReadingContext,
    body: Mapping[str, object],
    sender: Sender,
    path: str,
    idempotency: Idempotency | None = None,
) -> Call:
    """Return the call in a body that is parsed. Raises RequestError."""
    reading = reading.of_model(body.get("model"), sender.principal.policy)
    has_receipt = wants_receipt(reading, body)
    call = CALLS[path](reading, body, sender, idempotency)
    if not has_receipt or (call.ranking is not None and call.ranking.is_bare):  # A list alone has no place for one.
        return call
    return replace(call, submission=with_receipt(reading, body, path, call.submission))


def call_of(
    kind: Kind, reading: ReadingContext, body: Mapping[str, object], sender: Sender, idempotency: Idempotency | None
) -> Call:
    """Return the call of a kind in a body that is parsed. Raises RequestError."""
    warnings = check_fields(body, kind.call_fields, kind.refused, strict=kind.is_strict or sender.is_strict)
    timeout = call_timeout(reading, body)
    cancel_on_timeout = one_of(body, "on_timeout", ["continue", "cancel"]) == "cancel"
    limits = call_limits(reading)
    # If the scores are not wanted after the timeout, the job expires, even if this process has ended by then.
    expires_in = timeout if cancel_on_timeout else None
    fields = Fields(Origin.CALL, Priority.INTERACTIVE, expires_in, {}, warnings=warnings)
    request = parse_request(reading, body, kind)
    prepared = prepare_request(reading, sender, request, limits)
    return Call(submission_of(reading, sender, request, prepared, fields, idempotency), timeout, cancel_on_timeout)


CALLS: Mapping[str, Callable[[ReadingContext, Mapping[str, object], Sender, Idempotency | None], Call]] = {
    **{kind.path: partial(call_of, kind) for kind in (*KINDS.values(), DECISIONS)},
    **{path: partial(ranking_of, returns_documents) for path, returns_documents in RERANK.items()},
    TEXTS_PATH: ranking_of_documents_or_texts,
    paths.COMPLETIONS: completion_of,
}
"""What reads a call, by its path."""
