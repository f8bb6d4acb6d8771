"""What a run is to do: the user's options, checked and put together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from scoreline.client import Model
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.decisions import StateColumns, answer_columns
from scoreline.runs.formats import STANDARD, Format, Kind, unfinished
from scoreline.runs.prompts import Columns, check_template
from scoreline.runs.windows import WindowSize
from scoreline.templates import labels_of, model_of

LABEL_MASS = "label_mass"
RELEVANCE = "relevance"
ACTION = "action"
SCORES = "scores"
BEST_LABEL = "best_label"
"""The columns of rows that have labels of their own: a list of scores, and the label with the highest one."""


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are given. A number is, even if it is 0."""
    return {name: value for name, value in options.items() if value or (value == 0 and value is not False)}


class Remedy(StrEnum):
    """What the run does when a row can't be scored."""

    FAIL = "fail"  # the run ends with an error
    SKIP = "skip"  # the row is written with empty cells, and counted


class Empty(StrEnum):
    """What the run does with a row that has no text in one of its columns."""

    FAIL = "fail"  # the run ends with an error
    SCORE = "score"  # it is scored like any other
    SKIP = "skip"  # it is written with empty cells, and counted


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do."""

    source: str  # a file, or - for standard input
    source_format: Format
    target: str  # a file, or - for standard output
    target_format: Format
    columns: Columns | StateColumns
    labels: tuple[str, ...]
    options: Mapping[str, Any]  # of each job, as the client takes them
    window: WindowSize
    questions: Mapping[str, Any] = field(default_factory=dict)  # about each row, by their names; empty: it is scored
    only_relevance: bool = False  # in place of the scores of labels, which are the service's own business
    with_probabilities: bool = False  # of each option of a question, in place of the answer
    has_label_mass: bool = True  # whether the labels have a share of the probability of all tokens
    prefix: str = ""  # of the names of the new columns
    on_too_long: Remedy = Remedy.FAIL
    on_error: Remedy = Remedy.FAIL
    empty: Empty = Empty.FAIL
    limit: int | None = None  # rows of the file that are scored; None: all
    escape_formulas: bool = False  # in CSV and TSV
    concurrency: int = 256  # jobs that wait or run at the same time
    restart: bool = False  # throw away what an earlier run has written
    shared_run: str | None = None  # the name of a run of which several processes each score a part

    @property
    def journal(self) -> Path | None:
        """Where the journal is; None if the run can't be resumed."""
        return None if self.target == STANDARD else Path(self.target + ".journal")

    @property
    def has_relevance(self) -> bool:
        """Whether the service makes one number of a row's scores."""
        return self.options.get("template") is not None

    @property
    def errors(self) -> Path | None:
        """Where the rows are named whose cells are empty; None if the output is no file."""
        return None if self.target == STANDARD else Path(self.target + ".errors.jsonl")

    @property
    def files(self) -> list[Path]:
        """Where this run writes before its files are complete."""
        if self.errors is None:
            return []
        return [unfinished(Path(self.target), self.target_format), unfinished(self.errors, Format.JSON_LINES)]

    @property
    def touched(self) -> list[Path]:
        """All files that this run writes, replaces or removes."""
        if self.journal is None or self.errors is None:
            return []
        return [Path(self.target), self.errors, self.journal, *self.files]

    def of_served(self, models: Sequence[Model]) -> tuple[Plan, tuple[str, ...]]:
        """Return the plan for what a service serves, and the labels that all rows have.

        Raises CommandError, and NotFound if it does not serve the model.
        """
        model = model_of(models, self.options.get("model"))
        plan = replace(self, has_label_mass=not model.classes)
        if self.questions or self.columns.labels:
            return plan, ()
        return plan, labels_of(model, self.labels, self.options.get("template"))

    @property
    def doubts_scores(self) -> bool:
        """Whether the scores of all rows may give reason to doubt the prompt or a label."""
        return self.has_label_mass and not (self.columns.labels or self.questions or self.only_relevance)

    @property
    def of_each_row(self) -> tuple[str, ...]:
        """The names of what a row has beside its scores."""
        decides = self.options.get("threshold") is not None
        shown = {LABEL_MASS: self.has_label_mass, RELEVANCE: self.has_relevance, ACTION: decides}
        return tuple(name for name, is_shown in shown.items() if is_shown)

    def check_templates(self, file: str, columns: Collection[str]) -> None:
        """Raise CommandError if a column stands in a template as the places of the service do.

        file: the name of the input; columns: those that it has.
        """
        written = {f"{filling.place}_template": filling.written for filling in self.columns.fillings}
        for name in ("query_template", "item_template", "instruction"):
            text = written.get(name) or self.options.get(name)
            check_template("--" + name.replace("_", "-"), text, file, columns)

    @property
    def asked(self) -> dict[str, Any]:
        """What jobs say beside their texts."""
        return {"labels": self.labels, "questions": self.questions, **self.options}

    def fingerprint(self) -> dict[str, Any]:
        """Return what must be the same when the run is resumed, by words for a message.

        The rows that are written are compared with the input, too.
        """
        return {
            "output format": self.target_format,
            **self.columns.fingerprint(),
            "list of labels": list(self.labels),
            **({"set of questions": self.questions} if self.questions else {}),
            **({"kind of answers": "probabilities"} if self.with_probabilities else {}),
            **({"kind of scores": "relevance"} if self.only_relevance else {}),
            **{name.replace("_", " "): value for name, value in self.options.items()},
            "column prefix": self.prefix,
            **({"escaping of formulas": True} if self.escape_formulas else {}),
            "window": [self.window.rows, self.window.characters],
        }


def new_columns(plan: Plan, labels: Sequence[str], taken: Sequence[str]) -> dict[str, Kind]:
    """Return the columns that the run adds: one for each label or question, and what belongs to them.

    labels: of the plan, or of its template. taken: the columns of the input. Raises CommandError.
    """
    found: list[tuple[str, Kind]]
    if plan.questions:
        found = answer_columns(plan.questions, with_probabilities=plan.with_probabilities)
    elif plan.only_relevance:
        found = [(RELEVANCE, Kind.NUMBER)]
    elif plan.columns.labels:
        found = [(SCORES, Kind.NUMBERS), (BEST_LABEL, Kind.TEXT)]
    else:
        plain = [label.strip() for label in labels]
        distinct = plain if all(plain) and len(set(plain)) == len(plain) else labels
        found = [(label, Kind.NUMBER) for label in distinct]
    if not (plan.questions or plan.only_relevance):
        found += [(name, Kind.TEXT if name == ACTION else Kind.NUMBER) for name in plan.of_each_row]
    names = [plan.prefix + name for name, _ in found]
    for name in names:
        if name in taken or names.count(name) > 1:
            message = f"there would be two columns {name!r}: give the new ones another name, as with --column-prefix p_"
            raise CommandError(message, ExitCode.USAGE)
    return dict(zip(names, (kind for _, kind in found), strict=True))
