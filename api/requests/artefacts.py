"""Find the calibration or threshold that a request names, and refuse one that was made for something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from api.reading import ReadingContext
from api.requests.decisions import state_of
from checkpoints.adapter_folder import SEPARATOR
from checkpoints.card import ModelCard
from judgement.applying import Rule, write_rules
from judgement.artefacts import Artefact, Kind
from judgement.folder import ArtefactFolder
from judgement.sample import JudgementError
from scoring.decisions.orders import Order, orders_of, parse_permute
from scoring.decisions.prompts import text_of
from scoring.decisions.questions import Kind as QuestionKind
from scoring.decisions.questions import Question, read_systemone
from scoring.error_codes import ErrorCode, RequestError, invalid
from scoring.options import Scoring
from scoring.quoting import QUOTED_PIECES, quote
from scoring.request import ScoreRequest
from scoring.templates.template import Template

FIELDS = ("calibration", "threshold")
"""The fields of a body that name an artefact. Each has the name of its kind."""


def with_artefact(reading: ReadingContext, body: Mapping[str, object], request: ScoreRequest) -> ScoreRequest:
    """Return a request for scores, with what it names to be applied to them. Raises RequestError."""
    found = named_artefact(reading, body)
    if found is None:
        return request
    name, artefact, field = found
    if difference := _difference_of_model(reading.card, artefact, request.options.adapter) or _difference(
        artefact, body, request
    ):
        raise refused(name, difference, field)
    return _with_rules(request, {"": Rule.of(artefact, name)})


def with_artefacts_of_questions(
    reading: ReadingContext, body: Mapping[str, object], request: ScoreRequest
) -> ScoreRequest:
    """Return a decision, with what it names to be applied to the answers of its questions. Raises RequestError."""
    given: dict[str, Mapping[str, object]] = {}
    for field in FIELDS:
        names = body.get(field)
        if not isinstance(names, Mapping | None):
            raise invalid(f"{field} must be an object with the name of an artefact for each question", field)
        given[field] = names or {}
    assert request.decision is not None
    questions = {one.question.name: one.question for one in request.decision.asked}
    places: dict[str | None, set[str]] = {}
    for path, one in zip(request.decision.paths, request.decision.asked, strict=True):
        places.setdefault(one.question.name, set()).add(path)
    rules: dict[str, Rule] = {}
    for question in dict.fromkeys(name for names in given.values() for name in names):
        of_question = {field: names.get(question) for field, names in given.items()}
        found = named_artefact(reading, of_question)
        if found is None:
            continue
        name, artefact, field = found
        if question not in questions:
            raise invalid(f"{field}: there is no question {quote(question)}", field)
        if len(places[question]) > 1:
            raise invalid(f"{field}: there are several questions {quote(question)}", field)
        if difference := _difference_of_model(
            reading.card, artefact, request.options.adapter
        ) or _difference_of_question(artefact, questions[question], body, are_one=request.decision.prompts.are_one):
            raise refused(name, difference, field)
        rules[question] = Rule.of(artefact, name)
    return _with_rules(request, rules) if rules else request


def _with_rules(request: ScoreRequest, rules: Mapping[str, Rule]) -> ScoreRequest:
    return replace(request, options=replace(request.options, artefact=write_rules(rules)))


def named_artefact(reading: ReadingContext, body: Mapping[str, object]) -> tuple[str, Artefact, str] | None:
    """Return the name of an artefact, the artefact, and the field that names it; None if there is none.

    A threshold has its calibration in it. If a body names both, they must be the same. Raises RequestError.
    """
    named = {field: body[field] for field in FIELDS if body.get(field) is not None}
    found = {field: _find(reading, name, field) for field, name in named.items()}
    if not found:
        return None
    if len(found) == len(FIELDS):
        inner = found["threshold"].calibration
        if inner is None or inner.id != found["calibration"].id:
            made = "without a calibration" if inner is None else "with another calibration"
            raise refused(str(named["threshold"]), f"was made {made}: name the threshold alone", "threshold")
    field = next(reversed(found))
    return str(named[field]), found[field], field


def artefacts_for(folder: ArtefactFolder | None, card: ModelCard, adapter: str | None) -> dict[str, Artefact]:
    """Return the artefacts that were made for a model with an adapter, or without one, by their names.

    What is no artefact is left out: a request that names it is told why.
    """
    found = dict[str, Artefact]()
    if folder is None:
        return found
    for name in folder.names():
        with suppress(JudgementError):
            artefact = folder.find(name)
            if artefact is not None and _difference_of_model(card, artefact, adapter) is None:
                found[name] = artefact
    return found


def refused(name: str, why: str, param: str) -> RequestError:
    """Return the error for an artefact that can't be applied. why: what it is or does."""
    return RequestError(ErrorCode.INVALID_ARTEFACT, f"the artefact {quote(name)} {why}", param=param)


def _find(reading: ReadingContext, name: object, field: str) -> Artefact:
    if not isinstance(name, str):
        raise invalid(f"{field} must be the name of an artefact", field)
    folder = reading.artefacts
    try:
        found = None if folder is None else folder.find(name)
    except JudgementError as error:
        raise RequestError(ErrorCode.INVALID_ARTEFACT, str(error), param=field) from None
    if found is None:
        names = folder.names() if folder else []
        there = ", ".join(names[:QUOTED_PIECES]) + (", …" if len(names) > QUOTED_PIECES else "")
        message = (
            f"there is no artefact {quote(name)}; there are {there or 'none'} in the folder of this service "
            "(SCORELINE_CALIBRATIONS), each a file that is named without its ending"
        )
        raise RequestError(ErrorCode.INVALID_ARTEFACT, message, param=field)
    if found.kind is not Kind(field):
        raise refused(name, f"is a {found.kind}, and no {field}", field)
    return found


def _difference_of_model(card: ModelCard, artefact: Artefact, adapter: str | None) -> str | None:
    """Return why an artefact is not for a model. The weights are compared where those of workers are known."""
    if not artefact.model:
        return "was made from scores in a file, and so it does not say of which model they are"
    if artefact.model.get("tokenizer_fingerprint") != card.tokenizer_fingerprint:
        return f"is for another model, or another tokenizer: {artefact.model.get('model')}"
    served, name = f"{card.name}{SEPARATOR}", str(artefact.model.get("model"))
    if (name.removeprefix(served) if name.startswith(served) else None) != adapter:
        return f"is for another model: {name}"
    return None


def _difference(artefact: Artefact, body: Mapping[str, object], request: ScoreRequest) -> str | None:
    """Return why an artefact is not for the prompt of a request."""
    prompt, template, options = artefact.prompt, request.template, request.options
    if "questions" in prompt:
        return "is for a question, which is asked at /v1/systemone"
    if not isinstance(request.query, str):
        return "is for texts, and query and items are token ids"
    if not options.activation.is_softmax:
        return "is for labels of which one is true, and the outputs of the served model are no such labels"
    if request.item_labels is not None:
        return "is for one list of labels, and each item has its own"
    scoring = str(template.label_scoring if template else Scoring.TOKEN)
    normalization = str(template.label_normalization if template else "none")
    asked = {
        "template": template and template.name,
        "query_template": body.get("query_template"),
        "item_template": body.get("item_template"),
        "instruction": body.get("instruction"),
        "label_scoring": str(options.scoring),
        "label_normalization": str(options.label_normalization),
        "item_first": options.item_first,
        "baseline": body["baseline"] if options.baseline else None,
    }
    expected = {
        **dict.fromkeys(asked),
        "label_scoring": scoring,
        "label_normalization": normalization,
        "item_first": False,
        **{name: value for name, value in prompt.items() if name in asked},
        "template": _template_name(prompt.get("template"), template),
    }
    for name, value in expected.items():
        if asked[name] != value:
            return f"is for another prompt: {name} is {_shown(value)} there, and {_shown(asked[name])} here"
    if prompt["query"] not in (None, request.query):
        return f"is for another prompt: query is {_shown(prompt['query'])} there"
    if prompt["labels"] and tuple(prompt["labels"]) != request.labels:
        return f"is for other labels: {', '.join(map(_shown, prompt['labels']))}"
    if not prompt["labels"] and (template is not None and request.labels != template.labels):
        return "is for the labels of the template, and the request has its own"
    if len(request.labels or ()) != len(artefact.labels):
        return f"is for other labels: {', '.join(map(_shown, artefact.labels))}"
    return None


def _difference_of_question(
    artefact: Artefact, question: Question, body: Mapping[str, object], *, are_one: bool
) -> str | None:
    """Return why an artefact is not for a question. are_one: all questions of the request stand in one prompt."""
    if "questions" not in artefact.prompt:
        return "is for labels, which are scored at /v1/score"
    (made_for,) = read_systemone(artefact.prompt["questions"])
    if _seen(made_for) != _seen(question):
        return f"is for another question: {_shown(made_for.instructions)}"
    state = body["state"] if "state" in body else state_of(body.get("input"))
    if artefact.prompt["is_object"] is isinstance(state, str):
        return f"is for a state that is {'an object' if artefact.prompt['is_object'] else 'a text'}"
    made_with, asked_with = artefact.prompt.get("permute"), body.get("permute")
    if question.kind is QuestionKind.CHOICE and _orders(question, made_with) != _orders(question, asked_with):
        return (
            f"is for other orders of the options: permute is {_shown(made_with)} there, and {_shown(asked_with)} here"
        )
    if are_one:
        return "is for a question in a prompt of its own, and this model sees all questions in one"
    return None


def _seen(question: Question) -> object:
    """Return what the model sees of a question, which is the same in the words of each interface."""
    options = [(text_of(option.value), option.description) for option in question.options]
    return question.kind, question.instructions, options


def _orders(question: Question, permute: object) -> Sequence[Order]:
    return orders_of(len(question.options), parse_permute(permute), "")


def _template_name(expected: object, template: Template | None) -> object:
    """Return the name of the template that is expected. It may end with ``@`` and the digest that it must have."""
    if template is not None and expected == f"{template.name}@{template.digest}":
        return template.name
    return expected


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return quote(value) if isinstance(value, str) else "not given" if value is None else str(value).lower()
