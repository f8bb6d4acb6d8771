"""The labels of a request as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from checkpoints.card import ModelCard
from scoring.error_codes import ErrorCode, RequestError
from scoring.labels.classes import class_number
from scoring.labels.fields import ListsOfLabels
from scoring.labels.item_labels import ItemLabels
from scoring.limits import Limits
from scoring.request import ScoreRequest
from scoring.tokenizing.tokenization import TextTokenizer
from scoring.vocabulary import check_range


def check_number_of_labels(request: ScoreRequest, limits: Limits) -> None:
    """Raise :class:`RequestError` for more labels than are allowed, before any is looked at."""
    if request.decision is not None:
        return  # Its questions and their options have limits of their own, by which there are some hundred labels.
    given: Sequence[object] = request.labels or request.label_token_ids or request.label_token_sequences or ()
    if len(given) > limits.max_labels:
        raise _too_many_labels(f"{len(given)} labels", limits, labels_field(request))
    lists: ListsOfLabels = request.item_labels or ()
    for n, of_item in enumerate(lists):
        if len(of_item) > limits.max_labels:
            raise _too_many_labels(f"{len(of_item)} labels", limits, f"{labels_field(request)}[{n}]")
    total = sum(map(len, lists))
    if total > limits.item_labels.most:
        message = f"the items have {total} labels in all, more than the {limits.item_labels.most} allowed here"
        raise limits.item_labels.exceeded(message, labels_field(request))
    different = len(set(chain.from_iterable(lists)))
    if different > limits.max_labels:
        raise _too_many_labels(f"the items' {different} different labels", limits, labels_field(request))


def _too_many_labels(what: str, limits: Limits, param: str) -> RequestError:
    return RequestError(ErrorCode.TOO_MANY_LABELS, f"{what} are more than the {limits.max_labels} allowed", param=param)


def find_label_token_ids(
    request: ScoreRequest, card: ModelCard, tokenizer: TextTokenizer, limits: Limits
) -> tuple[tuple[int, ...], ItemLabels | None]:
    """Return all labels of a request, and which of them each item has; None: all of them.

    None are returned of a request whose labels may have several tokens. Raises :class:`RequestError`.
    """
    if request.options.has_continuations:
        return (), None
    field, known = labels_field(request), dict[str, int]()
    if request.item_labels is not None:
        return ItemLabels.collect(
            [_ids_of(of_item, f"{field}[{n}]", card, tokenizer, known) for n, of_item in enumerate(request.item_labels)]
        )
    given: Sequence[str | int] = request.labels or request.label_token_ids or ()
    return _ids_of(given, field, card, tokenizer, known), None


def labels_field(request: ScoreRequest) -> str:
    """Return the name of the field that the labels of a request are in."""
    of_items = request.item_labels
    if request.labels is not None or (of_items and isinstance(of_items[0][0], str)):
        return "labels"
    return "label_token_ids" if request.label_token_sequences is None else "label_token_sequences"


def _ids_of(
    labels: Sequence[str | int], where: str, card: ModelCard, tokenizer: TextTokenizer, known: dict[str, int]
) -> tuple[int, ...]:
    """Return labels as ids, or as numbers of classes, after checking them.

    where: their place. known: ids of texts, to which this adds.
    """
    found: list[int] = []
    for n, label in enumerate(labels):
        if isinstance(label, str):
            if label not in known:
                place, classes = f"{where}[{n}]", card.classes
                known[label] = (
                    _single_token(label, place, tokenizer) if classes is None else class_number(label, place, classes)
                )
            label = known[label]
        found.append(label)
    check_range(found, card, where)
    return tuple(found)


def _single_token(label: str, param: str, tokenizer: TextTokenizer) -> int:
    try:
        return tokenizer.single_token(label)
    except RequestError as error:
        raise RequestError(error.code, error.message, param=param) from None
