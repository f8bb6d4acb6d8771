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
from typing import Any, cast

from checkpoints.classification import Activation, Classes
from scoring.decisions.decision import Decision
from scoring.error_codes import ErrorCode, RequestError, invalid
from scoring.labels.classes import check_options, refuse_labels_of_tokens, refuse_other_work
from scoring.labels.fields import LABEL_FIELDS, ListsOfLabels, parse_labels
from scoring.options import ScoreOptions, Scoring
from scoring.templates.asked import TEMPLATE_FIELDS, find_template, wording_of
from scoring.templates.template import Template
from scoring.templates.wording import Wording
from scoring.values import check_ids, check_text, is_encodable, parse_flag

_OPTIONS = ("apply_softmax", "return_logprobs", "return_logits", "item_first", "return_provenance")

SCORE_FIELDS = frozenset({"query", "items", "baseline", "temperature", *LABEL_FIELDS, *_OPTIONS, *TEMPLATE_FIELDS})
"""The fields of a body that :func:`parse_score_request` reads."""

_LIKELIHOOD_OPTIONS = ("return_token_logprobs", "return_tokens", "return_provenance")

MAX_TEMPERATURE = 1e6
"""The highest temperature. At it, all labels have nearly the same score."""

MOST_BASELINE = 16
"""The most items that say nothing. More of them hardly move the mean of what they get."""

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
    items: list[str] | list[list[int]]  # texts if the query is a text, lists of token ids if it is one; baseline: last
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

    def worded(self, error: RequestError) -> RequestError:
        """Return an error of the items in the words of a client who has sent questions, or a baseline."""
        if self.decision is not None:
            return self.decision.worded(error)
        first = len(self.items) - self.options.baseline
        name, bracket, rest = (error.param or "").partition("[")
        number = rest.partition("]")[0]
        if name != "items" or not bracket or int(number) < first:
            return error
        param = f"baseline[{int(number) - first}]"
        message = error.message.replace(f"items[{number}]", param)
        return RequestError(error.code, message, param=param, retry_after=error.retry_after, limit=error.limit)


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
    baseline = _parse_baseline(body.get("baseline"), text=text)
    template = find_template(body, templates or {})
    given = {name: body.get(name) for name in LABEL_FIELDS}
    if template is not None and not any(given[name] is not None for name in LABEL_FIELDS[:3]):
        given |= {"labels": list(template.labels)}
        given |= {name: value for name, value in template.label_fields.items() if given[name] is None}
    activation = Activation.VOCABULARY
    if classes is not None:
        refuse_other_work(classes)
        refuse_labels_of_tokens(body)
        activation = classes.activation
        given["labels"] = list(classes.names) if given["labels"] is None else given["labels"]
    labels = parse_labels(given, items=len(items))
    if baseline and (labels.of_items is not None or not activation.is_softmax):
        message = "a baseline is for one list of labels, of which one is true of each item"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="baseline")
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
        baseline=len(baseline),
    )
    wording = wording_of(body, template, text=text, item_first=options.item_first)
    if wording is not None and options.is_of_vocabulary:
        options = replace(options, label_mass=True)
    if template is not None and labels.texts == template.labels:
        options = replace(options, relevance=str(template.relevance))
    return ScoreRequest(
        query,
        cast("list[str] | list[list[int]]", [*items, *baseline]),
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


def _parse_query(query: object) -> str | list[int]:
    if query is None:
        raise RequestError(ErrorCode.MISSING_QUERY, "query is required", param="query")
    if isinstance(query, str):
        check_text(query, "query")
        return query
    if isinstance(query, list):
        check_ids(query, "query")
        return query
    raise invalid("query must be a string or a list of token ids", "query")


def parse_query_text(query: object) -> str:
    """Return a query that must be a text. Raises :class:`RequestError`."""
    text = _parse_query(query) if isinstance(query, str | None) else None
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
    if items and isinstance(items[0], int | float):
        check_ids(items, "items")
        if text:
            raise RequestError(ErrorCode.MIXED_INPUT_TYPES, _MIXED, param="items")
        return [items]
    return check_items(items, text=text)


def _parse_baseline(baseline: object, *, text: bool) -> list[str] | list[list[int]]:
    if baseline is None:
        return []
    if not isinstance(baseline, list) or not 0 < len(baseline) <= MOST_BASELINE:
        raise invalid(f"baseline must be a list of 1 to {MOST_BASELINE} items that say nothing", "baseline")
    return check_items(baseline, text=text, field="baseline")


def check_items(
    items: list[object], *, text: bool, first: int = 0, field: str = "items"
) -> list[str] | list[list[int]]:
    """Return items after checking that they are all texts (``text``) or all lists of token ids.

    first: index of the first one among the request's items. field: where they stand. Raises :class:`RequestError`.
    """
    _check_item_shapes(items, first, field)
    kind = str if text else list
    if not set(map(type, items)) <= {kind}:
        n = next(n for n, item in enumerate(items, first) if type(item) is not kind)
        raise RequestError(ErrorCode.MIXED_INPUT_TYPES, _MIXED.replace("items", field), param=f"{field}[{n}]")
    return cast("list[str] | list[list[int]]", items)


def _check_item_shapes(items: list[object], first: int, field: str) -> None:
    """Check that each item is encodable text or a list of integers.

    All items are first checked together, which is faster; only after a failure are they checked one by one.
    """
    kinds = set(map(type, items))
    texts = [item for item in items if type(item) is str] if str in kinds else []
    lists = [item for item in items if type(item) is list] if list in kinds else []
    if kinds <= {str, list} and is_encodable("".join(texts)) and set(map(type, chain.from_iterable(lists))) <= {int}:
        return
    for n, item in enumerate(items, first):
        if isinstance(item, str):
            check_text(item, f"{field}[{n}]")
        elif isinstance(item, list):
            check_ids(item, f"{field}[{n}]")
        else:
            raise invalid(f"{field}[{n}] must be a string or a list of token ids", f"{field}[{n}]")


def _parse_temperature(value: object, *, apply_softmax: bool, **_: bool) -> float:
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_TEMPERATURE:
        raise invalid(f"temperature must be a number above 0 and at most {MAX_TEMPERATURE:g}", "temperature")
    if value != 1 and not apply_softmax:
        message = "a temperature other than 1 needs apply_softmax: without it, scores are the model's own probabilities"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="temperature")
    return float(value)
