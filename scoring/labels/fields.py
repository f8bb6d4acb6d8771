"""The fields of a request that are about its labels, and every rule for them that needs no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from scoring.error_codes import ErrorCode, RequestError, invalid
from scoring.options import Normalization, Scoring
from scoring.values import check_text, parse_choice

LABEL_FIELDS = ("label_token_ids", "labels", "label_token_sequences", "label_scoring", "label_normalization")

ListsOfLabels = tuple[tuple[int | str, ...], ...]


@dataclass(frozen=True, slots=True)
class GivenLabels:
    """The labels of a request: one of the four fields is set."""

    ids: tuple[int, ...] | None = None
    texts: tuple[str, ...] | None = None
    of_items: ListsOfLabels | None = None
    sequences: tuple[tuple[int, ...], ...] | None = None
    scoring: Scoring = Scoring.TOKEN
    normalization: Normalization = Normalization.NONE


def parse_labels(given: Mapping[str, object], *, items: int) -> GivenLabels:
    """Return the labels, given the fields of a body that are about them. items: how many there are."""
    scoring = parse_choice(given["label_scoring"], "label_scoring", (Scoring.TOKEN, Scoring.SEQUENCE))
    normalization = parse_choice(given["label_normalization"], "label_normalization", tuple(Normalization))
    ids, texts, sequences = (given[name] for name in LABEL_FIELDS[:3])
    if scoring is Scoring.SEQUENCE:
        return _parse_label_sequences(ids, texts, sequences, normalization)
    for name in ("label_token_sequences", "label_normalization"):
        if given[name] is not None and (name == "label_token_sequences" or normalization is not Normalization.NONE):
            message = f'{name} needs label_scoring: "sequence"; by default, a label is one token'
            raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param=name)
    if ids is not None and texts is not None:
        raise invalid("give either label_token_ids or labels, not both", "labels")
    for field, lists in (("label_token_ids", ids), ("labels", texts)):
        if _is_list_of_lists(lists):
            return GivenLabels(of_items=_parse_labels_for_each_item(cast("list[object]", lists), field, items=items))
    of_all, labels = _parse_single_tokens(ids, texts)
    return GivenLabels(of_all, labels)


def _parse_label_sequences(ids: object, texts: object, sequences: object, normalization: Normalization) -> GivenLabels:
    if ids is not None:
        message = 'label_token_ids are labels of one token: with label_scoring: "sequence", send label_token_sequences'
        raise _bad_label(message, "label_token_ids")
    if _is_list_of_lists(texts):
        message = (
            'labels for each item have one token each; with label_scoring: "sequence", all items have the same ones'
        )
        raise _bad_label(message, "labels")
    if texts is not None and sequences is not None:
        raise invalid("give either label_token_sequences or labels, not both", "labels")
    if texts is not None:
        labels = _parse_text_labels(texts)
        for n, label in enumerate(labels):
            if not label:
                raise _bad_label(f"labels[{n}] is empty: a label must have one token at least", f"labels[{n}]")
        return GivenLabels(texts=labels, scoring=Scoring.SEQUENCE, normalization=normalization)
    field = "label_token_sequences"
    if sequences is None:
        raise RequestError(ErrorCode.MISSING_LABEL_TOKEN_IDS, f"{field} (or labels) is required", param=field)
    if not isinstance(sequences, list):
        raise _bad_label(f"{field} must be a list of lists of token ids", field)
    if not sequences:
        raise RequestError(ErrorCode.EMPTY_LABEL_TOKEN_IDS, f"{field} must name at least one label", param=field)
    for n, sequence in enumerate(sequences):
        where = f"{field}[{n}]"
        if not isinstance(sequence, list):
            raise _bad_label(f"{where} must be a list of token ids", where)
        if not sequence:
            raise _bad_label(f"{where} is empty: a label must have one token at least", where)
        for place, token in enumerate(sequence):
            if type(token) is not int:
                raise _bad_label(f"{where}[{place}] must be an integer token id", f"{where}[{place}]")
    if normalization is Normalization.BYTES:
        message = "label_normalization: bytes needs labels as texts, because token ids have no bytes"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="label_normalization")
    return GivenLabels(sequences=tuple(map(tuple, sequences)), scoring=Scoring.SEQUENCE, normalization=normalization)


def _parse_single_tokens(
    label_token_ids: object, labels: object
) -> tuple[tuple[int, ...], None] | tuple[None, tuple[str, ...]]:
    if labels is not None:
        return None, _parse_text_labels(labels)
    if label_token_ids is None:
        raise RequestError(
            ErrorCode.MISSING_LABEL_TOKEN_IDS, "label_token_ids (or labels) is required", param="label_token_ids"
        )
    if not isinstance(label_token_ids, list):
        raise _bad_label("label_token_ids must be a list of token ids", "label_token_ids")
    if not label_token_ids:
        raise RequestError(
            ErrorCode.EMPTY_LABEL_TOKEN_IDS, "label_token_ids must name at least one token", param="label_token_ids"
        )
    for n, label in enumerate(label_token_ids):
        if type(label) is not int:
            where = f"label_token_ids[{n}]"
            raise _bad_label(f"{where} must be an integer: a label is one token id", where)
    return tuple(label_token_ids), None


def _parse_text_labels(labels: object) -> tuple[str, ...]:
    if not isinstance(labels, list):
        raise invalid("labels must be a list of strings", "labels")
    if not labels:
        raise RequestError(ErrorCode.EMPTY_LABEL_TOKEN_IDS, "labels must name at least one label", param="labels")
    for n, label in enumerate(labels):
        if not isinstance(label, str):
            raise invalid(f"labels[{n}] must be a string", f"labels[{n}]")
        check_text(label, f"labels[{n}]")
    return tuple(labels)


def _parse_labels_for_each_item(lists: list[object], field: str, *, items: int) -> ListsOfLabels:
    """Return the labels for each item. field: the one they are in. items: how many there are."""
    kind, what = (str, "a string") if field == "labels" else (int, "an integer: a label is one token id")
    for n, of_item in enumerate(lists):
        where = f"{field}[{n}]"
        if not isinstance(of_item, list):
            raise _bad_label(f"{where} must be a list, because {field}[0] is one: labels for each item", where)
        if not of_item:
            raise RequestError(ErrorCode.EMPTY_LABEL_TOKEN_IDS, f"{where} must name at least one label", param=where)
        for place, label in enumerate(of_item):
            if type(label) is not kind:
                raise _bad_label(f"{where}[{place}] must be {what}", f"{where}[{place}]")
            if isinstance(label, str):
                check_text(label, f"{where}[{place}]")
    if len(lists) != items:
        raise _bad_label(f"{field} holds labels for {len(lists)} items, and there are {items}", field)
    return tuple(map(tuple, cast("list[list[Any]]", lists)))


def refuse_labels_for_each_item(body: Mapping[str, object]) -> None:
    """Raise :class:`RequestError` for labels for each item, where the items are not at hand."""
    for field in ("label_token_ids", "labels"):
        if _is_list_of_lists(body.get(field)):
            message = "labels for each item can't be sent with JSON lines; send labels and items in one JSON body"
            raise _bad_label(message, field)


def _is_list_of_lists(labels: object) -> bool:
    return isinstance(labels, list) and bool(labels) and isinstance(labels[0], list)


def _bad_label(message: str, param: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_LABEL_TOKEN_IDS, message, param=param)
