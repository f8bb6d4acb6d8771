"""The questions of a decision, and how they are read from a body of System One.

The rules are those of the package ``decision`` of transformers 5.24, which is the reference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

from scoring.error_codes import ErrorCode, RequestError
from scoring.quoting import quote

MOST_QUESTIONS = 400
"""The most questions that a request may have, as in OpenAI's interface."""

MOST_OPTIONS = 255
"""The most options that a question may have, as in OpenAI's interface."""

MOST_FAULTS, MOST_FAULT_BYTES = 20, 5_000
"""The most faults that one error names, and the bytes that they may have as JSON, unless the first alone has more."""


class Kind(StrEnum):
    """What a question asks for, by the name that System One has for it."""

    NOUL = "noul"  # yes or no
    CHOICE = "choice"  # one of several options
    SCORE = "score"  # a level of an ordered scale


class Option(NamedTuple):
    """A possible answer to a question."""

    value: str | bool  # the name of an option; of a level, its number as a text
    description: object  # a text, an object, a list or None


@dataclass(frozen=True, slots=True)
class Question:
    """A question as it was sent."""

    name: str | None
    kind: Kind
    instructions: object  # a text, an object, a list or None
    options: tuple[Option, ...]  # of yes or no: true, then false
    legend: tuple[object, ...] = ()  # of levels: what the answer says of each


class Fault(NamedTuple):
    """What is wrong with a question."""

    code: ErrorCode
    param: str  # the path of the value
    message: str


def refuse(faults: Sequence[Fault]) -> None:
    """Raise RequestError for the first of the faults, if there are any, with a message that names the others, too."""
    if not faults:
        return
    sizes = accumulate(len(json.dumps(fault.message)) for fault in faults[:MOST_FAULTS])
    named = max(1, sum(size <= MOST_FAULT_BYTES for size in sizes))
    messages = [fault.message for fault in faults[:named]]
    if len(faults) > named:
        messages.append(f"and {len(faults) - named} more faults")
    raise RequestError(faults[0].code, "; ".join(messages), param=faults[0].param)


def read_each(named: Sequence[tuple[str, object]], read: Callable[[str, object], Question]) -> tuple[Question, ...]:
    """Return the questions of a request. Raises one RequestError for all faults.

    named: each question with its path. read: raises FaultyError.
    """
    if not named:
        raise RequestError(ErrorCode.MISSING_QUESTIONS, "questions is required: ask at least one", param="questions")
    if len(named) > MOST_QUESTIONS:
        message = f"there are {len(named)} questions; {MOST_QUESTIONS} are allowed: send several requests"
        raise RequestError(ErrorCode.TOO_MANY_QUESTIONS, message, param="questions")
    found: list[Question] = []
    faults: list[Fault] = []
    for path, value in named:
        try:
            found.append(read(path, value))
        except FaultyError as error:
            faults.append(error.fault)
    refuse(faults)
    return tuple(found)


class FaultyError(Exception):
    """A question that can't be read."""

    def __init__(self, path: str, message: str, code: ErrorCode = ErrorCode.INVALID_QUESTION) -> None:
        super().__init__(message)
        self.fault = Fault(code, path, f"{path} {message}")


def read_systemone(questions: object) -> tuple[Question, ...]:
    """Return the questions in the body of a System One request. Raises RequestError."""
    if questions is not None and not isinstance(questions, Mapping):
        raise RequestError(ErrorCode.INVALID_QUESTION, "questions must map names to questions", param="questions")
    named = questions or {}
    # Long names that differ may have the same path.
    found = read_each([(path_of(name), value) for name, value in named.items()], _read)
    return tuple(replace(question, name=name) for question, name in zip(found, named, strict=True))


def path_of(name: str) -> str:
    """Return the path of a question that has a name."""
    return f"questions.{name}" if len(name) <= 64 and name.isprintable() else f"questions[{quote(name)}]"


def _read(path: str, value: object) -> Question:
    """Return a question, without its name. Raises FaultyError."""
    if not isinstance(value, Mapping):
        raise FaultyError(path, "must be an object with a type")
    kind = kind_of(path, value, {kind.value: kind for kind in Kind})
    check_names(path, value, {"type", "instructions", "criteria"})
    instructions, criteria = value.get("instructions"), value.get("criteria")
    if instructions is not None:
        check_content(f"{path}.instructions", instructions)
    of_criteria = f"{path}.criteria"
    if kind is Kind.SCORE:
        if not isinstance(criteria, list) or not criteria:
            raise FaultyError(of_criteria, "must list the levels, the lowest first")
        check_count(of_criteria, len(criteria))
        for n, level in enumerate(criteria):
            check_content(f"{of_criteria}[{n}]", level)
        return Question(None, kind, instructions, levels(criteria), tuple(criteria))
    if criteria is None and kind is Kind.NOUL:
        criteria = {}
    if not isinstance(criteria, Mapping) or (not criteria and kind is Kind.CHOICE):
        wanted = "map true and false to descriptions" if kind is Kind.NOUL else "map each option to a description"
        raise FaultyError(of_criteria, f"must {wanted}, which may be null")
    if kind is Kind.NOUL:
        check_names(of_criteria, criteria, {"true", "false"})
        criteria = {"true": criteria.get("true"), "false": criteria.get("false")}
    check_count(of_criteria, len(criteria))
    for option, description in criteria.items():
        if description is not None:
            check_content(f"{of_criteria}.{option}"[:256], description)
    return Question(None, kind, instructions, tuple(Option(*one) for one in criteria.items()))


def levels(descriptions: Sequence[object]) -> tuple[Option, ...]:
    """Return the levels of a scale as options, from 0."""
    return tuple(Option(str(n), description) for n, description in enumerate(descriptions))


def kind_of(path: str, question: Mapping[str, object], kinds: Mapping[str, Kind]) -> Kind:
    """Return the kind of a question. kinds: by the names that the interface has for them. Raises FaultyError."""
    kind = question.get("type")
    if kind == "box":
        raise FaultyError(
            path, "asks for a place in an image, which no model here can see", ErrorCode.IMAGES_NOT_SUPPORTED
        )
    if not isinstance(kind, str) or kind not in kinds:
        raise FaultyError(f"{path}.type", f"must be one of {', '.join(kinds)}")
    return kinds[kind]


def check_names(path: str, value: Mapping[str, object], known: set[str]) -> None:
    """Raise FaultyError for a field that is not known."""
    for name in value:
        if name not in known:
            raise FaultyError(path, f"has the unknown field {quote(name)}; it may have {', '.join(sorted(known))}")


def check_content(path: str, value: object) -> None:
    """Raise FaultyError for what is not a text, an object or a list."""
    if not isinstance(value, str | list | dict):
        raise FaultyError(path, "must be a text, an object or a list")


def check_count(path: str, options: int) -> None:
    """Raise FaultyError for more options than a question may have."""
    if options > MOST_OPTIONS:
        raise FaultyError(path, f"has {options} options; {MOST_OPTIONS} are allowed", ErrorCode.TOO_MANY_OPTIONS)
