"""The labels of a request as token ids."""

from __future__ import annotations

from collections.abc import Sequence

from checkpoints.card import ModelCard
from scoring.error_codes import ErrorCode, RequestError
from scoring.item_labels import ItemLabels
from scoring.limits import Limits
from scoring.request import ScoreRequest
from scoring.tokenizing.tokenization import TextTokenizer
from scoring.vocabulary import check_range


def check_number_of_labels(request: ScoreRequest, limits: Limits) -> None:
    """Raise :class:`RequestError` for more labels than are allowed, before any is looked at."""
    given: Sequence[object] = request.labels or request.label_token_ids or request.label_token_sequences or ()
    if len(given) > limits.max_labels:
        raise _too_many_labels(f"{len(given)} labels", limits, labels_field(request))
    for n, of_item in enumerate(request.item_label_token_ids or ()):
        if len(of_item) > limits.max_labels:
            raise _too_many_labels(f"{len(of_item)} labels", limits, f"label_token_ids[{n}]")
    total = sum(map(len, request.item_label_token_ids or ()))
    if total > limits.item_labels.most:
        message = f"the items have {total} labels in all, more than the {limits.item_labels.most} allowed here"
        raise limits.item_labels.exceeded(message, "label_token_ids")


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
    if request.item_label_token_ids is not None:
        for n, of_item in enumerate(request.item_label_token_ids):
            check_range(of_item, card, f"label_token_ids[{n}]")
        together, item_labels = ItemLabels.collect(request.item_label_token_ids)
        if len(together) > limits.max_labels:
            raise _too_many_labels(f"the items' {len(together)} different labels", limits, "label_token_ids")
        return together, item_labels
    given: Sequence[str | int] = request.labels or request.label_token_ids or ()
    labels = tuple(
        label if isinstance(label, int) else _single_token(label, f"labels[{n}]", tokenizer)
        for n, label in enumerate(given)
    )
    check_range(labels, card, labels_field(request))
    return labels, None


def labels_field(request: ScoreRequest) -> str:
    """Return the name of the field that the labels of a request are in."""
    if request.labels is not None:
        return "labels"
    return "label_token_ids" if request.label_token_sequences is None else "label_token_sequences"


def _single_token(label: str, param: str, tokenizer: TextTokenizer) -> int:
    try:
        return tokenizer.single_token(label)
    except RequestError as error:
        raise RequestError(error.code, error.message, param=param) from None
