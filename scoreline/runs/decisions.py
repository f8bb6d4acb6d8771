"""Runs that ask questions about each row: what of a row is its state, and the columns of the answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scoreline.client.decisions import Answer, Decision
from scoreline.client.options import Permute
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.formats import Kind, Row
from scoreline.runs.prompts import EmptyTextError, Filling, Text

_CONFIDENCE = "_confidence"
_PROBABILITIES, _FLIPS, _MASS = "_probabilities", "_flips", "_label_mass"
YES, NO = "yes", "no"
"""The answers to a question of yes or no."""

MOST_ORDERS = 24
"""The most orders of options, as the service has it, whose code the command runs without."""

_KINDS = ("noul", "choice", "score")


@dataclass(frozen=True, slots=True)
class StateColumns:
    """Where the state of a row is. It takes the place of the columns of queries and items."""

    columns: tuple[str, ...]
    is_object: bool  # whether the state is an object with these columns, and not the value of the only one
    scores_empty: bool = False  # whether a state without a text is asked about like any other
    labels: tuple[str, ...] = ()
    fillings: tuple[Filling, ...] = ()

    @property
    def named(self) -> list[tuple[str, str]]:
        """All columns that must be there, each with the option that names it."""
        option = "--state-columns" if self.is_object else "--state-column"
        return [(column, option) for column in self.columns]

    def fingerprint(self) -> dict[str, Any]:
        """Return what must be the same when the run is resumed, by words for a message."""
        return {"state columns" if self.is_object else "state column": list(self.columns)}

    def texts(self, row: Row) -> tuple[Any, Text]:
        """Return the state of a row, and no item. Raises EmptyTextError for one without text."""
        state = {column: _json_of(row.get(column)) for column in self.columns}
        if not self.scores_empty and all(_is_blank(value) for value in state.values()):
            raise EmptyTextError(self.columns[0])
        if self.is_object:
            return state, ""
        (value,) = state.values()
        return value if isinstance(value, str | dict | list) else "" if value is None else json.dumps(value), ""

    def labels_of(self, _: Row) -> list[str]:
        """Return no labels."""
        return []


def read_state_columns(column: str | None, columns: str | None, *, scores_empty: bool = False) -> StateColumns:
    """Return where the states are that questions are about. columns: names with commas. Raises CommandError."""
    if (column is None) == (columns is None):
        raise CommandError(
            "give either --state-column, the column that the questions are about, or --state-columns", ExitCode.USAGE
        )
    names = [column] if column is not None else [name.strip() for name in (columns or "").split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise CommandError("--state-columns must be different names with commas between them", ExitCode.USAGE)
    return StateColumns(tuple(names), is_object=column is None, scores_empty=scores_empty)


def _json_of(value: Any) -> Any:
    """Return a value as JSON can say it: a date of a Parquet file, for example, as a text."""
    return value if isinstance(value, str) else json.loads(json.dumps(value, default=str))


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def permute_of(given: str) -> Permute:
    """Return in how many orders options are asked, as the client takes it. Raises CommandError."""
    if given == "balanced":
        return "balanced"
    if not given.isdecimal() or len(given) > 2 or not 2 <= int(given) <= MOST_ORDERS:
        raise CommandError(f'--permute must be "balanced" or a number from 2 to {MOST_ORDERS}', ExitCode.USAGE)
    return int(given)


def read_questions(name: str) -> dict[str, Any]:
    """Return the questions of a file: a JSON object with a question by each name. Raises CommandError."""
    try:
        found = json.loads(Path(name).read_text(encoding="utf-8"), object_pairs_hook=partial(_without_doubles, name))
    except OSError as error:
        raise CommandError(f"{name} can't be read: {error.strerror}", ExitCode.USAGE) from None
    except ValueError as error:
        raise CommandError(f"{name} is not JSON: {error}", ExitCode.USAGE) from None
    if not isinstance(found, dict) or not found:
        raise CommandError(f"{name} must be a JSON object with a question by each name", ExitCode.USAGE)
    for question, asked in found.items():
        if not isinstance(asked, dict) or asked.get("type") not in _KINDS:
            raise CommandError(f"{name}: the type of {question!r} must be one of {', '.join(_KINDS)}", ExitCode.USAGE)
    return found


def _without_doubles(file: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, none of whose values is dropped because another one has its name. Raises CommandError."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise CommandError(f"{file} has the name {name!r} twice in an object", ExitCode.USAGE)
        found[name] = value
    return found


def options_of(question: Mapping[str, Any]) -> list[str]:
    """Return what may be answered to a question: names of options, or numbers of levels as texts."""
    criteria = question.get("criteria")
    if question["type"] == "noul":
        return [YES, NO]
    return [str(level) for level in range(len(criteria))] if isinstance(criteria, list) else list(criteria or ())


def probabilities_of(answer: Answer) -> dict[str, float]:
    """Return the probability of each option, by its name."""
    if answer.probabilities is None:
        return {YES: answer.value, NO: 1 - answer.value}
    return {str(name): share for name, share in answer.probabilities.items()}


def answer_columns(questions: Mapping[str, Any], *, with_probabilities: bool = False) -> list[tuple[str, Kind]]:
    """Return the columns of the answers: that of yes or no has the probability, so it needs no confidence.

    with_probabilities: each answer has three columns instead, with the probabilities of all its options, with the share
    of the orders of options whose answer is another one, if it was asked in several, and with the label mass.
    """
    if with_probabilities:
        endings = ((_PROBABILITIES, Kind.SHARES), (_FLIPS, Kind.NUMBER), (_MASS, Kind.NUMBER))
        return [(name + ending, kind) for name in questions for ending, kind in endings]
    found: list[tuple[str, Kind]] = []
    for name, question in questions.items():
        found.append((name, Kind.TEXT if question["type"] == "choice" else Kind.NUMBER))
        if question["type"] != "noul":
            found.append((name + _CONFIDENCE, Kind.NUMBER))
    return found


def answer_cells(questions: Mapping[str, Any], decision: Decision, *, with_probabilities: bool = False) -> list[Any]:
    """Return the cells of a row for the columns of the answers."""
    if with_probabilities:
        answers = [decision.answers[name] for name in questions]
        return [cell for answer in answers for cell in (probabilities_of(answer), answer.flips, answer.label_mass)]
    found = [(decision.answers[name], question["type"]) for name, question in questions.items()]
    return [
        cell
        for answer, kind in found
        for cell in ((answer.value,) if kind == "noul" else (answer.value, answer.confidence))
    ]
