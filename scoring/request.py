"""Parse a scoring request, and check every rule of shape and type that needs no tokenizer.

The order of the checks is fixed, and the first error is reported: ``query``, ``items`` (their shape, then whether they
are of the query's kind), the template that is named, labels, options, the wording. Within a list, the error with the
lowest index is reported.
:mod:`scoring.prepare` checks what depends on a tokenizer or a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import Any, TypeVar, cast

from checkpoints.classification import Activation, Classes
from scoring.classes import check_options, refuse_labels_of_tokens
from scoring.decisions.decision import Decision
from scoring.error_codes import ErrorCode, RequestError, invalid
from scoring.options import Normalization, ScoreOptions, Scoring
from scoring.templates.asked import TEMPLATE_FIELDS, find_template, wording_of
from scoring.templates.template import Template
from scoring.templates.wording import Wording

_OPTIONS = ("apply_softmax", "return_logprobs", "return_logits", "item_first", "return_provenance")

_LABEL_FIELDS = ("label_token_ids", "labels", "label_token_sequences", "label_scoring", "label_normalization")

SCORE_FIELDS = frozenset({"query", "items", "temperature", *_LABEL_FIELDS, *_OPTIONS, *TEMPLATE_FIELDS})
"""The fields of a body that :func:`parse_score_request` reads."""

_LIKELIHOOD_OPTIONS = ("return_token_logprobs", "return_tokens", "return_provenance")

MAX_TEMPERATURE = 1e6
"""The highest temperature. At it, all labels have nearly the same score."""

ListsOfLabels = tuple[tuple[int | str, ...], ...]

_MIXED = "query and items must both be text or both be token ids"


@dataclass(frozen=True, slots=True)
class PromptsRead:
    """What is read of whole prompts: one of the two at least."""

    own: bool  # the scores of the tokens of each prompt behind its first one
    next: bool  # the most probable token behind each prompt


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A well-formed request. Exactly one of the four label fields is set, and none for a likelihood.

    Token ids are integers of any size here; :mod:`scoring.prepare` checks them against the vocabulary.
    """

    query: str | list[int]
    items: list[str] | list[list[int]]  # texts if the query is a text, lists of token ids if it is one
    label_token_ids: tuple[int, ...] | None
    labels: tuple[str, ...] | None
    options: ScoreOptions
    wording: Wording | None = None  # of texts; None if query and item are the whole text
    template: Template | None = None  # that the wording was taken from, if it was
    item_labels: ListsOfLabels | None = None  # labels for each item: as ids, or as texts
    label_token_sequences: tuple[tuple[int, ...], ...] | None = None  # labels of any number of tokens
    decision: Decision | None = None  # the prompts of a decision, whose texts are the items behind what they share
    read: PromptsRead | None = None  # of a completion, whose items are whole prompts behind nothing

    @property
    def pairs(self) -> int:
        """The pairs of an item and a token that stands behind it, which are made one by one; of texts, a character."""
        if self.options.scoring is not Scoring.SEQUENCE:
            return 0
        labels = self.labels or self.label_token_sequences or ()
        return len(self.items) * sum(max(1, len(label)) for label in labels)


def parse_score_request(
    body: Mapping[str, object], templates: Mapping[str, Template] | None = None, classes: Classes | None = None
) -> ScoreRequest:
    """Read a request from a parsed JSON object, ignoring fields other than :data:`SCORE_FIELDS`.

    A field that is null counts as absent. templates: those that a request may name; the labels of the one that it names
    are its labels if it gives none. classes: of the served model, which are then the labels of a request that gives
    none at all. Raises :class:`RequestError`, whose ``param`` names the place.
    """
    query = _parse_query(body.get("query"))
    text = isinstance(query, str)
    items = _parse_items(body.get("items"), text=text)
    template = find_template(body, templates or {})
    given = {name: body.get(name) for name in _LABEL_FIELDS}
    if template is not None and not any(given[name] is not None for name in _LABEL_FIELDS[:3]):
        given |= {"labels": list(template.labels)}
        given |= {name: value for name, value in template.label_fields.items() if given[name] is None}
    activation = Activation.VOCABULARY
    if classes is not None:
        refuse_labels_of_tokens(body)
        activation = classes.activation
        given["labels"] = list(classes.names) if given["labels"] is None else given["labels"]
    labels = _parse_any_labels(given, items=len(items))
    flags: dict[str, Any] = {name: parse_flag(body.get(name), name) for name in _OPTIONS}
    check_options(activation, **flags)
    temperature = _parse_temperature(body.get("temperature"), **flags)
    if labels.scoring is Scoring.SEQUENCE and flags["return_logits"]:
        message = "labels of several tokens have no logits: send return_logprobs"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="return_logits")
    options = ScoreOptions(
        **flags,
        temperature=temperature,
        scoring=labels.scoring,
        label_normalization=labels.normalization,
        activation=activation,
    )
    wording = wording_of(body, template, text=text, item_first=options.item_first)
    if wording is not None and options.is_of_vocabulary:
        options = replace(options, label_mass=True)
    if template is not None and labels.texts == template.labels:
        options = replace(options, relevance=str(template.relevance))
    return ScoreRequest(
        query,
        items,
        labels.ids,
        labels.texts,
        options,
        wording,
        template,
        item_labels=labels.of_items,
        label_token_sequences=labels.sequences,
    )


def parse_likelihood_request(body: Mapping[str, object]) -> ScoreRequest:
    """Read a request for the likelihood of its items, as :func:`parse_score_request` does for scores."""
    query = _parse_query(body.get("query"))
    items = _parse_items(body.get("items"), text=isinstance(query, str))
    flags: dict[str, Any] = {name: parse_flag(body.get(name), name) for name in _LIKELIHOOD_OPTIONS}
    return ScoreRequest(query, items, None, None, ScoreOptions(**flags, scoring=Scoring.LIKELIHOOD))


def parse_prompts(prompts: object, read: PromptsRead, options: ScoreOptions) -> ScoreRequest:
    """Return a request for the scores of whole prompts, which errors call ``items``.

    prompts: a text, token ids, or a list of either. Raises :class:`RequestError`.
    """
    text = isinstance(prompts, str) or (isinstance(prompts, list) and bool(prompts) and isinstance(prompts[0], str))
    try:
        items = _parse_items(prompts, text=text)
    except RequestError as error:
        if error.code is not ErrorCode.MIXED_INPUT_TYPES:
            raise
        message = f"{error.param} is of another kind than the first one: all must be texts, or all token ids"
        raise RequestError(error.code, message, param=error.param) from None
    return ScoreRequest("" if text else [], items, None, None, options, read=read)


def check_text(text: str, param: str) -> None:
    """Raise :class:`RequestError` for text with a lone surrogate, which can't be encoded as UTF-8."""
    if not _is_encodable(text):
        raise invalid(f"{param} holds a lone surrogate, which is not valid Unicode text", param)


def _parse_query(query: object) -> str | list[int]:
    if query is None:
        raise RequestError(ErrorCode.MISSING_QUERY, "query is required", param="query")
    if isinstance(query, str):
        check_text(query, "query")
        return query
    if isinstance(query, list):
        _check_ids(query, "query")
        return query
    raise invalid("query must be a string or a list of token ids", "query")


def parse_query_text(query: object) -> str:
    """Return a query that must be a text. Raises :class:`RequestError`."""
    text = None if isinstance(query, list) else _parse_query(query)
    if not isinstance(text, str):
        raise invalid("query must be a string", "query")
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
        raise invalid("items must be a list of strings or a list of lists of token ids", "items")
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
            raise invalid(f"items[{n}] must be a string or a list of token ids", f"items[{n}]")


@dataclass(frozen=True, slots=True)
class _Labels:
    """The labels of a request: one of the four fields is set."""

    ids: tuple[int, ...] | None = None
    texts: tuple[str, ...] | None = None
    of_items: ListsOfLabels | None = None
    sequences: tuple[tuple[int, ...], ...] | None = None
    scoring: Scoring = Scoring.TOKEN
    normalization: Normalization = Normalization.NONE


def _parse_any_labels(given: Mapping[str, object], *, items: int) -> _Labels:
    """Return the labels, given the fields of a body that are about them. items: how many there are."""
    scoring = _parse_choice(given["label_scoring"], "label_scoring", (Scoring.TOKEN, Scoring.SEQUENCE))
    normalization = _parse_choice(given["label_normalization"], "label_normalization", tuple(Normalization))
    ids, texts, sequences = (given[name] for name in _LABEL_FIELDS[:3])
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
            return _Labels(of_items=_parse_labels_for_each_item(cast("list[object]", lists), field, items=items))
    of_all, labels = _parse_labels(ids, texts)
    return _Labels(of_all, labels)


def _parse_label_sequences(ids: object, texts: object, sequences: object, normalization: Normalization) -> _Labels:
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
        return _Labels(texts=labels, scoring=Scoring.SEQUENCE, normalization=normalization)
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
    return _Labels(sequences=tuple(map(tuple, sequences)), scoring=Scoring.SEQUENCE, normalization=normalization)


Choice = TypeVar("Choice", bound=StrEnum)


def _parse_choice(value: object, name: str, allowed: Sequence[Choice]) -> Choice:
    """Return the value of a field that has one of these values, of which the first one is the default."""
    if value is None:
        return allowed[0]
    found = [one for one in allowed if one == value]
    if not isinstance(value, str) or not found:
        raise invalid(f"{name} must be one of {', '.join(allowed)}", name)
    return found[0]


def _parse_labels(
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


def _parse_temperature(value: object, *, apply_softmax: bool, **_: bool) -> float:
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_TEMPERATURE:
        raise invalid(f"temperature must be a number above 0 and at most {MAX_TEMPERATURE:g}", "temperature")
    if value != 1 and not apply_softmax:
        message = "a temperature other than 1 needs apply_softmax: without it, scores are the model's own probabilities"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="temperature")
    return float(value)


def parse_flag(value: object, name: str) -> bool:
    """Return a flag, which is false where it is null or absent. Raises :class:`RequestError`."""
    if value is None:
        return False
    if not isinstance(value, bool):
        raise invalid(f"{name} must be true or false", name)
    return value


def _check_ids(values: list[object], where: str) -> None:
    """Raise :class:`RequestError` unless all values are of type int. JSON's ``true`` and ``2.0`` are no token ids."""
    if set(map(type, values)) <= {int}:
        return
    n = next(n for n, value in enumerate(values) if type(value) is not int)
    raise invalid(f"{where}[{n}] must be an integer token id", f"{where}[{n}]")


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


def _bad_label(message: str, param: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_LABEL_TOKEN_IDS, message, param=param)
