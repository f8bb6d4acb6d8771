"""Read a request to rank documents: one query, whose documents are the items of a call in the wording of a template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from api.answers.reranking import Ranking
from api.answers.schemas.reranking import RerankBody, TextsBody
from api.reading import ReadingContext
from api.requests import refused_fields
from api.requests.artefacts import with_artefact
from api.requests.fields import check_fields, with_items_called
from api.requests.sender import Sender
from api.requests.submission import (
    Call,
    Fields,
    call_limits,
    call_timeout,
    prepare_request,
    submission_of,
)
from checkpoints.classification import Activation
from jobs.store.records import Idempotency, Origin
from public_api import paths
from scoring.error_codes import ErrorCode, RequestError, invalid
from scoring.labels.classes import refuse_other_work
from scoring.options import Priority, ScoreOptions, Scoring
from scoring.request import ScoreRequest, parse_query_text
from scoring.templates.asked import find_template, invalid_template, wording_by
from scoring.templates.template import Template
from scoring.templates.wording import Place, Wording
from scoring.values import check_text, parse_flag

TEXTS_PATH = "/rerank"
"""The path that also takes the body of Text Embeddings Inference."""

RERANK = {paths.RERANK: True, "/v2/rerank": False, TEXTS_PATH: True}
"""The paths of rankings, and whether each returns documents unless told otherwise."""

_JOINTS = 8
"""Tokens that a document may have besides, where it touches the texts of its template."""

_OF_BOTH = RerankBody.model_fields.keys() & TextsBody.model_fields.keys()
"""The fields that mean the same in both bodies."""


def ranking_of(
    returns_documents: bool,
    reading: ReadingContext,
    body: Mapping[str, object],
    sender: Sender,
    idempotency: Idempotency | None,
    *,
    truncates: bool = False,
) -> Call:
    """Return the ranking in a body that is parsed. Raises RequestError.

    returns_documents: whether the documents are returned if the body does not say. truncates: whether documents are cut
    so that each fits behind the query.
    """
    unknown = check_fields(body, RerankBody.model_fields, refused_fields.RERANK, strict=sender.is_strict)
    timeout = call_timeout(reading, body)
    top_n, most_tokens = _count(body, "top_n", 1), _count(body, "max_tokens_per_doc", 0) or None
    if body.get("return_documents") is not None:
        returns_documents = parse_flag(body["return_documents"], "return_documents")
    adapter = reading.adapter_of(body.get("model"))
    query, documents = parse_query_text(body.get("query")), documents_of(body.get("documents"))
    instruction = body.get("instruction")
    if not isinstance(instruction, str | None):
        raise invalid("instruction must be a string", "instruction")
    classes = reading.card.classes
    if classes is not None:
        refuse_other_work(classes)
    template = find_template(body, reading.templates.by_name) or reading.templates.default
    if template is None:
        message = "no template is known to suit the classes of the served model: name one, or set SCORELINE_TEMPLATE"
        raise invalid_template(message, "template")
    activation = Activation.VOCABULARY if classes is None else classes.activation
    wording = wording_by(template, instruction)
    options = ScoreOptions(
        apply_softmax=activation.is_softmax,
        label_mass=classes is None,
        relevance=str(template.relevance),
        scoring=template.label_scoring,
        label_normalization=template.label_normalization,
        return_provenance=parse_flag(body.get("return_provenance"), "return_provenance"),
        activation=activation,
        adapter=adapter,
    )
    limits = call_limits(reading)
    try:
        limits.check_items(len(documents))
        limits.check_query_and_labels(query, ())
        limits.check_item_texts(documents)
        if truncates:
            room = _room(reading, wording, query, template)
            most_tokens = room if most_tokens is None else min(room, most_tokens)
        items, warnings = _cut(reading, documents, most_tokens)
        request = ScoreRequest(query, items, None, template.labels, options, wording, template)
        request = with_artefact(reading, body, request)
        prepared = prepare_request(reading, sender, request, limits)
    except RequestError as error:
        raise with_items_called("documents", error) from None
    # Nobody comes back for a ranking, so a job that is out of time is given up.
    fields = Fields(Origin.CALL, Priority.INTERACTIVE, timeout, {}, warnings=(*unknown, *warnings))
    submission = submission_of(reading, sender, request, prepared, fields, idempotency)
    ranking = Ranking(top_n, documents if returns_documents else None, options.relevance)
    return Call(submission, timeout, cancel_on_timeout=True, ranking=ranking)


def ranking_of_documents_or_texts(
    reading: ReadingContext, body: Mapping[str, object], sender: Sender, idempotency: Idempotency | None
) -> Call:
    """Return the ranking in a body of Cohere or of Text Embeddings Inference, which has ``texts``. Raises RequestError.

    The answer to the latter is a list alone, and so it holds no warnings.
    """
    if body.get("texts") is None:
        return ranking_of(True, reading, body, sender, idempotency)
    check_fields(body, TextsBody.model_fields, refused_fields.TEXTS, strict=sender.is_strict)
    truncates = parse_flag(body.get("truncate"), "truncate")
    if body.get("truncation_direction") not in (None, "Left", "Right", "left", "right"):
        raise invalid('truncation_direction must be "Left" or "Right"', "truncation_direction")
    if truncates and body.get("truncation_direction") in ("Left", "left"):
        message = "texts are cut at their ends: send the truncation_direction Right, or none"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="truncation_direction")
    raw = parse_flag(body.get("raw_scores"), "raw_scores")
    translated = {
        **{name: value for name, value in body.items() if name in _OF_BOTH},
        "documents": texts_of(body["texts"]),
        "return_documents": parse_flag(body.get("return_text"), "return_text"),
    }
    try:
        call = ranking_of(False, reading, translated, sender, idempotency, truncates=truncates)
    except RequestError as error:
        raise with_items_called("texts", error, "documents") from None
    assert call.ranking is not None
    return replace(call, ranking=replace(call.ranking, is_bare=True, raw=raw))


def texts_of(value: object) -> list[str]:
    """Return the texts of a request. Raises RequestError."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise invalid("texts must be a list of texts", "texts")
    return value


def documents_of(value: object) -> list[str]:
    """Return the texts of the documents of a request. Raises RequestError."""
    if value is None:
        raise RequestError(ErrorCode.MISSING_ITEMS, "documents is required", param="documents")
    if not isinstance(value, list):
        raise invalid("documents must be a list of texts, or of objects with a text", "documents")
    texts: list[str] = []
    for n, document in enumerate(value):
        text = document.get("text") if isinstance(document, Mapping) else document
        if not isinstance(text, str):
            raise invalid(f"documents[{n}] must be a text, or an object with a text", f"documents[{n}]")
        check_text(text, f"documents[{n}]")
        texts.append(text)
    return texts


def _room(reading: ReadingContext, wording: Wording, query: str, template: Template) -> int:
    """Return how many tokens a document may have, so that its prompt fits into the context with what is read behind it.

    A label of one token is read at the end of the prompt. One of several stands behind it.
    """
    given = {Place.QUERY: query, Place.INSTRUCTION: wording.instruction, Place.ITEM: ""}
    around = [
        "".join(part if isinstance(part, str) else given[part] for part in piece)
        for piece in (*wording.query, *wording.item)
    ]
    taken = sum(len(reading.tokenizer.encode(text, add_special_tokens=True)) for text in around)
    if template.label_scoring is Scoring.SEQUENCE:
        taken += max(len(reading.tokenizer.encode_behind_text(label)) for label in template.labels)
    return max(1, reading.card.context_length - taken - _JOINTS)


def _cut(reading: ReadingContext, documents: list[str], most: int | None) -> tuple[list[str], tuple[str, ...]]:
    """Return the beginnings of the documents, and a warning that says how many were cut."""
    if most is None:
        return documents, ()
    beginnings: list[str] = []
    for beginning in reading.tokenizer.beginnings(documents, most):
        reading.stop_if_unwanted()
        beginnings.append(beginning)
    cut = sum(len(beginning) < len(document) for beginning, document in zip(beginnings, documents, strict=True))
    if not cut:
        return documents, ()
    return beginnings, (f"{cut} of {len(documents)} documents were cut behind their first {most} tokens",)


def _count(body: Mapping[str, object], name: str, least: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or value < least:
        raise invalid(f"{name} must be an integer of at least {least}", name)
    return value
