"""Calls that wait for their answer: scores, rankings, models and tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Unpack

from scoreline.client.errors import InvalidRequest
from scoreline.client.exchange.bodies import JsonBody, check_column, check_is_list, plain
from scoreline.client.exchange.flow import Flow, Request
from scoreline.client.exchange.sending import Service, idempotency, send
from scoreline.client.options import Column, Items, Query, ScoreOptions
from scoreline.client.results import Model, Ranking, ScoreResult
from scoreline.client.tables import Asked, index_of

T = TypeVar("T")

SLACK_SECONDS = 15.0
"""Time that an answer may take beyond the time that the service was asked to wait."""

NO_FIELDS = frozenset({"service", "idempotency_key", "options"})
"""Arguments of operations that are no fields of a body."""

NO_OPTIONS: Mapping[str, object] = {}


def score(
    service: Service,
    query: Query,
    items: Items,
    *,
    timeout: float = 60.0,
    on_timeout: Literal["continue", "cancel"] | None = None,
    idempotency_key: str | None = None,
    **options: Unpack[ScoreOptions],
) -> Flow[ScoreResult]:
    """Score items and wait for the result.

    query: the text, or the token ids, that all items follow. items: what follows it, each scored on its own.
    timeout: seconds to wait; then TimedOut is raised, and the job goes on. on_timeout: ``"cancel"``: it is given up.
    idempotency_key: makes it safe to repeat the call. The client makes one for its own repetitions, so a call that you
    interrupt is scored all the same.

    >>> result = client.score(
    ...     "Review: ",
    ...     ["The room was spotless and the staff were lovely.", "The soup was cold and the waiter forgot us."],
    ...     item_template="{item}\\nSentiment:",
    ...     labels=[" positive", " negative"],
    ...     apply_softmax=True,
    ... )
    >>> [[round(score, 1) for score in row] for row in result.scores]
    [[1.0, 0.0], [0.0, 1.0]]
    """
    body = fields_of(locals())
    asked = remembered(items, options)
    request = call("/v1/score", lambda raw: ScoreResult.read(raw, asked), body, timeout, idempotency_key)
    return (yield from send(service, request))


def rerank(
    service: Service,
    query: str,
    documents: Sequence[str] | Column,
    *,
    top_n: int | None = None,
    return_documents: bool = False,
    instruction: str | None = None,
    template: str | None = None,
    max_tokens_per_doc: int | None = None,
    calibration: str | None = None,
    threshold: str | None = None,
    return_provenance: bool = False,
    return_receipt: bool = False,
    model: str | None = None,
    timeout: float = 60.0,
    idempotency_key: str | None = None,
) -> Flow[Ranking]:
    """Rank documents by their relevance to a query, and wait for it.

    top_n: how many results to return; None: all. return_documents: return the texts with the results.
    instruction: what makes a document relevant, if the template has a place for it. template: the name of a template
    of the service; None: the one that it has for its model.
    max_tokens_per_doc: cut documents behind so many tokens; None: none is ever cut.
    calibration, threshold: the name of one that the service has: each result has what it makes of it, too.
    return_provenance: also return what computed the relevance. return_receipt: also return a signed statement of
    request, ranking and provenance. model: the name of a model; None: the served one.
    timeout: seconds to wait; a ranking that is out of time is given up, and TimedOut is raised.
    idempotency_key: makes it safe to repeat the call; the client makes one for its own repetitions.

    >>> documents = ["The train leaves at nine.", "Water the fern once a week and keep it out of the sun."]
    >>> ranking = client.rerank("how do I care for indoor plants?", documents)
    >>> [document.index for document in ranking.results]
    [1, 0]
    """
    body = fields_of(locals(), "return_documents")
    asked = remembered(documents, field="documents")
    body |= {"return_documents": return_documents}  # The service has another default.
    request = call("/v1/rerank", lambda raw: Ranking.read(raw, asked), body, timeout, idempotency_key)
    return (yield from send(service, request))


def models(service: Service) -> Flow[list[Model]]:
    """Return the served models.

    >>> [model.id for model in client.models()]
    ['demonstration']
    """
    request = Request("GET", "/v1/models", lambda raw: [Model.read(one) for one in raw["data"]])
    return (yield from send(service, request))


def tokenize(
    service: Service, text: str, *, add_special_tokens: bool = False, model: str | None = None
) -> Flow[list[int]]:
    """Return the token ids of a text.

    add_special_tokens: add what the tokenizer adds to a plain text, as scoring does to query + item.

    >>> len(client.tokenize(" yes"))
    1
    """
    body = JsonBody(fields_of(locals()))

    def read(raw: Mapping[str, Any]) -> list[int]:
        tokens: list[int] = raw["tokens"]
        return tokens

    return (yield from send(service, Request("POST", "/v1/tokenize", read, body=body)))


def call(
    path: str, read: Callable[[Any], T], body: Mapping[str, object], timeout: float, key: str | None
) -> Request[T]:
    """Return the request of a call, whose answer takes as long as the service was asked to wait, and a little more."""
    headers, seconds = idempotency(key), timeout + SLACK_SECONDS
    return Request("POST", path, read, headers=headers, body=JsonBody(body), seconds=seconds)


def fields_of(arguments: Mapping[str, object], *left_out: str) -> dict[str, object]:
    """Return the fields of a body: the arguments of an operation under their names, without those that are None or off.

    arguments: ``locals()``, as the first thing that the operation does. So no option can be forgotten in the body. Its
    ``options``, if it has some, are arguments themselves.
    left_out: arguments that are no fields, besides those that no operation sends in its body.
    """
    for name in ("items", "documents"):
        check_column(arguments.get(name), name)
    options = arguments.get("options", NO_OPTIONS)
    assert isinstance(options, Mapping)
    return given(
        {name: value for name, value in {**arguments, **options}.items() if name not in {*NO_FIELDS, *left_out}}
    )


def given(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a body that differ from their defaults. All options of the service default to these."""
    return {name: value for name, value in fields.items() if value is not None and value is not False}


def remembered(
    items: object,
    options: Mapping[str, object] = NO_OPTIONS,
    *,
    field: str = "items",
) -> Asked:
    """Return what a client remembers of a request, after checking its items. field: their name in messages."""
    check_items(items, field)
    return Asked(_column_names(options), index_of(items))


def check_items(items: object, field: str = "items") -> None:
    """Raise InvalidRequest or TypeError for items that are no list. A single text is probably a mistake.

    field: the name of the items in messages.
    """
    if isinstance(items, str):
        raise InvalidRequest("invalid_request", f"{field} must be a list of texts, not one text", param=field)
    check_is_list(items, f"is no list of {field}")


def _column_names(options: Mapping[str, object]) -> tuple[str | int, ...] | None:
    """Return the names of the columns of the scores, or None where items have labels of their own."""
    labels = options.get("labels")
    values: Any = options.get("label_token_ids") if labels is None else labels
    if values is None:
        return None
    names = values if isinstance(values, list | tuple) else plain(values)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str | int) for name in names):
        return None
    return tuple(names)
