"""Parse a scoring request, and check every rule of shape and type that needs no tokenizer.

The order of the checks is fixed, and the first error is reported: ``query``, ``items`` (their shape, then whether they
are of the query's kind), the template that is named, labels, options, the wording. Within a list, the error with the
lowest index is reported.
:mod:`scoring.prepare` checks what depends on a tokenizer or a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

from scoring.error_codes import ErrorCode, RequestError
from scoring.options import ScoreOptions
from scoring.templates.asked import TEMPLATE_FIELDS, find_template, wording_of
from scoring.templates.template import Template
from scoring.templates.wording import Wording

_OPTIONS = ("apply_softmax", "return_logprobs", "return_logits", "item_first", "return_provenance")

SCORE_FIELDS = frozenset({"query", "items", "label_token_ids", "labels", "temperature", *_OPTIONS, *TEMPLATE_FIELDS})
"""The fields of a body that :func:`parse_score_request` reads."""

MAX_TEMPERATURE = 1e6
"""The highest temperature. At it, all labels have nearly the same score."""

_MIXED = "query and items must both be text or both be token ids"


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A well-formed request. Exactly one of the three label fields is set.

    Token ids are integers of any size here; :mod:`scoring.prepare` checks them against the vocabulary.
    """

    query: str | list[int]
    items: list[str] | list[list[int]]  # texts if the query is a text, lists of token ids if it is one
    label_token_ids: tuple[int, ...] | None
    labels: tuple[str, ...] | None
    options: ScoreOptions
    wording: Wording | None = None  # of texts; None if query and item are the whole text
    template: Template | None = None  # that the wording was taken from, if it was
    item_label_token_ids: tuple[tuple[int, ...], ...] | None = None  # labels for each item


def parse_score_request(body: Mapping[str, object], templates: Mapping[str, Template] | None = None) -> ScoreRequest:
    """Read a request from a parsed JSON object, ignoring fields other than :data:`SCORE_FIELDS`.

    A field that is null counts as absent. templates: those that a request may name; the labels of the one that it names
    are its labels if it gives none. Raises :class:`RequestError`, whose ``param`` names the place.
    """
    query = _parse_query(body.get("query"))
    text = isinstance(query, str)
    items = _parse_items(body.get("items"), text=text)
    template = find_template(body, templates or {})
    given = (body.get("label_token_ids"), body.get("labels"))
    of_items = _parse_labels_for_each_item(*given, items=len(items))
    if of_items is not None:
        label_token_ids, labels = None, None
    elif template is not None and given == (None, None):
        label_token_ids, labels = None, template.labels
    else:
        label_token_ids, labels = _parse_labels(*given)
    flags = {name: parse_flag(body.get(name), name) for name in _OPTIONS}
    options = ScoreOptions(**flags, temperature=_parse_temperature(body.get("temperature"), **flags))
    wording = wording_of(body, template, text=text, item_first=options.item_first)
    if wording is not None:
        options = replace(options, label_mass=True)
    return ScoreRequest(query, items, label_token_ids, labels, options, wording, template, of_items)


def check_text(text: str, param: str) -> None:
    """Raise :class:`RequestError` for text with a lone surrogate, which can't be encoded as UTF-8."""
    if not _is_encodable(text):
        raise RequestError(
            ErrorCode.INVALID_REQUEST, f"{param} holds a lone surrogate, which is not valid Unicode text", param=param
        )


def _parse_query(query: object) -> str | list[int]:
    if query is None:
        raise RequestError(ErrorCode.MISSING_QUERY, "query is required", param="query")
    if isinstance(query, str):
        check_text(query, "query")
        return query
    if isinstance(query, list):
        _check_ids(query, "query")
        return query
    raise _invalid("query must be a string or a list of token ids", "query")


def parse_query_text(query: object) -> str:
    """Return a query that must be a text. Raises :class:`RequestError`."""
    text = None if isinstance(query, list) else _parse_query(query)
    if not isinstance(text, str):
        raise _invalid("query must be a string", "query")
    return text


def _parse_items(items: object, *, text: bool) -> list[str] | list[list[int]]:
    """Return the items. A single string and a flat list of ids count as one item."""
    if items is None:
        raise RequestError(ErrorCode.MISSING_ITEMS, "items is required", param="items")
    if isinstance(items, str):
        check_text(items, "items")
        if not text:
            raise RequestError(ErrorCode.MIXED_INPUT_TYPES, _MIXED, param="items")
        return [items]
    if not isinstance(items, list):
        raise _invalid("items must be a list of strings or a list of lists of token ids", "items")
    if items and _is_number(items[0]):
        _check_ids(items, "items")
        if text:
            raise RequestError(ErrorCode.MIXED_INPUT_TYPES, _MIXED, param="items")
        return [items]
    return check_items(items, text=text)


def check_items(items: list[object], *, text: bool, first: int = 0) -> list[str] | list[list[int]]:
    """Return items after checking that they are all texts (``text``) or all lists of token ids.

    first: index of the first one among the request's items. Raises :class:`RequestError`.
    """
    _check_item_shapes(items, first)
    kind = str if text else list
    if not set(map(type, items)) <= {kind}:
        n = next(n for n, item in enumerate(items, first) if type(item) is not kind)
        raise RequestError(ErrorCode.MIXED_INPUT_TYPES, _MIXED, param=f"items[{n}]")
    return cast("list[str] | list[list[int]]", items)


def _check_item_shapes(items: list[object], first: int) -> None:
    """Check that each item is encodable text or a list of integers.

    All items are first checked together, which is faster; only after a failure are they checked one by one.
    """
    kinds = set(map(type, items))
    texts = [item for item in items if type(item) is str] if str in kinds else []
    lists = [item for item in items if type(item) is list] if list in kinds else []
    if kinds <= {str, list} and _is_encodable("".join(texts)) and set(map(type, chain.from_iterable(lists))) <= {int}:
        return
    for n, item in enumerate(items, first):
        if isinstance(item, str):
            check_text(item, f"items[{n}]")
        elif isinstance(item, list):
            _check_ids(item, f"items[{n}]")
        else:
            raise _invalid(f"items[{n}] must be a string or a list of token ids", f"items[{n}]")


def _parse_labels(
    label_token_ids: object, labels: object
) -> tuple[tuple[int, ...], None] | tuple[None, tuple[str, ...]]:
    if label_token_ids is not None and labels is not None:
        raise _invalid("give either label_token_ids or labels, not both", "labels")
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
        raise _invalid("labels must be a list of strings", "labels")
    if not labels:
        raise RequestError(ErrorCode.EMPTY_LABEL_TOKEN_IDS, "labels must name at least one label", param="labels")
    for n, label in enumerate(labels):
        if not isinstance(label, str):
            raise _invalid(f"labels[{n}] must be a string", f"labels[{n}]")
        check_text(label, f"labels[{n}]")
    return tuple(labels)


def _parse_labels_for_each_item(
    label_token_ids: object, labels: object, *, items: int
) -> tuple[tuple[int, ...], ...] | None:
    """Return the labels for each item, or None if all items have the same ones."""
    if labels is not None or not _is_list_of_lists(label_token_ids):
        return None
    lists = cast("list[object]", label_token_ids)
    for n, of_item in enumerate(lists):
        where = f"label_token_ids[{n}]"
        if not isinstance(of_item, list):
            raise _bad_label(f"{where} must be a list, because label_token_ids[0] is one: labels for each item", where)
        if not of_item:
            raise RequestError(ErrorCode.EMPTY_LABEL_TOKEN_IDS, f"{where} must name at least one token", param=where)
        for place, label in enumerate(of_item):
            if type(label) is not int:
                inner = f"{where}[{place}]"
                raise _bad_label(f"{inner} must be an integer: a label is one token id", inner)
    if len(lists) != items:
        message = f"label_token_ids holds labels for {len(lists)} items, and there are {items}"
        raise _bad_label(message, "label_token_ids")
    return tuple(map(tuple, cast("list[list[int]]", lists)))


def refuse_labels_for_each_item(label_token_ids: object) -> None:
    """Raise :class:`RequestError` for labels for each item, where the items are not at hand."""
    if _is_list_of_lists(label_token_ids):
        message = "labels for each item can't be sent with JSON lines; send labels and items in one JSON body"
        raise _bad_label(message, "label_token_ids")


def _is_list_of_lists(label_token_ids: object) -> bool:
    return isinstance(label_token_ids, list) and bool(label_token_ids) and isinstance(label_token_ids[0], list)


def _parse_temperature(value: object, *, apply_softmax: bool, **_: bool) -> float:
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_TEMPERATURE:
        raise _invalid(f"temperature must be a number above 0 and at most {MAX_TEMPERATURE:g}", "temperature")
    if value != 1 and not apply_softmax:
        message = "a temperature other than 1 needs apply_softmax: without it, scores are the model's own probabilities"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="temperature")
    return float(value)


def parse_flag(value: object, name: str) -> bool:
    """Return a flag, which is false where it is null or absent. Raises :class:`RequestError`."""
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _invalid(f"{name} must be true or false", name)
    return value


def _check_ids(values: list[object], where: str) -> None:
    """Raise :class:`RequestError` unless all values are of type int. JSON's ``true`` and ``2.0`` are no token ids."""
    if set(map(type, values)) <= {int}:
        return
    n = next(n for n, value in enumerate(values) if type(value) is not int)
    raise _invalid(f"{where}[{n}] must be an integer token id", f"{where}[{n}]")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _is_encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _invalid(message: str, param: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, message, param=param)


def _bad_label(message: str, param: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_LABEL_TOKEN_IDS, message, param=param)
