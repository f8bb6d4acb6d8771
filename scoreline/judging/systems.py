"""What is compared: systems, each of which is a prompt, or a question, with its labels."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.decisions import StateColumns, options_of, permute_of, read_questions, read_state_columns
from scoreline.runs.prompts import Columns, read_columns

PROMPT_OPTIONS = (
    "label_scoring",
    "label_normalization",
    "temperature",
    "template",
    "instruction",
    "query_template",
    "item_template",
    "baseline",
    "model",
)
"""The options of a request that a system may have."""

_KEYS = (*PROMPT_OPTIONS, "query", "label", "means", "questions", "question", "permute")


@dataclass(frozen=True, slots=True)
class System:
    """What gives rows probabilities."""

    name: str
    columns: Columns | StateColumns
    labels: tuple[str, ...] = ()  # as the service takes them; none: those of the template or the question
    means: tuple[str, ...] = ()  # what each label is called in the column of true labels; none: its text
    options: Mapping[str, Any] = field(default_factory=dict)  # of each job, as the client takes them
    questions: Mapping[str, Any] = field(default_factory=dict)  # the question by its name; empty: labels are scored

    @property
    def prompt(self) -> dict[str, Any]:
        """What an artefact says of it: all by which the same texts get the same scores, in any columns."""
        if isinstance(self.columns, StateColumns):
            return {"questions": dict(self.questions), "is_object": self.columns.is_object, **self.options}
        query = None if self.columns.query is not None else self.columns.same_query
        written = {filling.place: filling.written for filling in self.columns.fillings}
        filled = {"filled": written} if written else {}
        return {"query": query, "labels": list(self.labels), **self.options, **filled}

    @property
    def asked_options(self) -> list[str]:
        """What may be answered to its question."""
        return options_of(next(iter(self.questions.values())))

    def called(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Return what its labels are called in the column of true labels. Raises CommandError.

        labels: of the plan, or of its template.
        """
        if self.questions:
            labels = self.asked_options
        names = self.means or tuple(label.strip() for label in labels)
        if len(names) != len(labels):
            count = f"{len(labels)} labels, and --means is given {len(names)} times"
            raise CommandError(f"{self.name} has {count}: give it once for each label, in their order", ExitCode.USAGE)
        if len(set(names)) < len(names):
            raise CommandError(
                f"{self.name}: two labels are called the same: tell them apart by --means", ExitCode.USAGE
            )
        return names


def read_systems(file: str | None, options: Mapping[str, Any], *, truth: str, scores_empty: bool) -> list[System]:
    """Return the systems of a file, or the one that the options of the command describe. Raises CommandError.

    file: TOML with a table for each system, whose entries are named as options; what a table leaves out is as the
    options have it. truth: the column of true labels.
    """
    tables = {"prompt": {}} if file is None else _tables(file)
    return [_system(one, options, table, truth, scores_empty) for one, table in tables.items()]


def in_one_order(called: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[str, ...]:
    """Return the labels that all systems have, in the order of the first one. Raises CommandError.

    called: the name of each system, and what its labels are called in the column of true labels.
    """
    (first, labels), *others = called
    for name, own in others:
        if set(own) != set(labels):
            raise CommandError(
                f"{first} has the labels {', '.join(labels)}, and {name} has {', '.join(own)}: say by --means what "
                "each is called in the file",
                ExitCode.USAGE,
            )
    return labels


def _tables(file: str) -> dict[str, dict[str, Any]]:
    try:
        found = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"{file} can't be read: {error.strerror}", ExitCode.USAGE) from None
    except ValueError as error:
        raise CommandError(f"{file} is not TOML: {error}", ExitCode.USAGE) from None
    if not found or not all(isinstance(table, dict) for table in found.values()):
        raise CommandError(f"{file} must have a table for each system, such as [short]", ExitCode.USAGE)
    tables = {}
    for name, table in found.items():
        entries = {key.replace("-", "_"): value for key, value in table.items()}
        for key, value in entries.items():
            if key not in _KEYS:
                known = ", ".join(_KEYS).replace("_", "-")
                raise CommandError(f"{file}, [{name}]: there is no option {key!r}; it may have {known}", ExitCode.USAGE)
            is_list = isinstance(value, list) and all(isinstance(one, str) for one in value)
            wanted, is_right = {
                "label": ("a list of texts", is_list),
                "means": ("a list of texts", is_list),
                "baseline": ("a list of texts", is_list),
                "temperature": ("a number", isinstance(value, float | int)),
                "permute": ("a number or a text", isinstance(value, int | str)),
            }.get(key, ("a text", isinstance(value, str)))
            if not is_right:
                raise CommandError(f"{file}, [{name}]: {key} must be {wanted}", ExitCode.USAGE)
        tables[name] = entries
    return tables


def _system(name: str, options: Mapping[str, Any], table: Mapping[str, Any], truth: str, scores_empty: bool) -> System:
    merged = {**options, **table}
    if merged.get("questions") is not None:
        columns = read_state_columns(options["state_column"], options["state_columns"], scores_empty=scores_empty)
        given = [key for key in ("label", *PROMPT_OPTIONS) if merged.get(key) and key != "model"]
        if given:
            words = given[0].replace("_", "-")
            raise CommandError(
                f"{name}: --questions asks about a state, and does not go with --{words}", ExitCode.USAGE
            )
        question = _question(merged["questions"], merged.get("question"), truth)
        kept = {key: merged[key] for key in ("model",) if merged.get(key)}
        if merged.get("permute") is not None:
            kept["permute"] = permute_of(str(merged["permute"]))
        return System(name, columns, (), tuple(merged.get("means") or ()), kept, question)
    if merged.get("permute") is not None:
        raise CommandError(f"{name}: --permute belongs to --questions, which is missing", ExitCode.USAGE)
    text = None if options["query_column"] is not None and "query" not in table else merged.get("query")
    query_column = None if "query" in table else options["query_column"]
    of_items = read_columns(options["item_column"], query_column, text, merged, scores_empty=scores_empty)
    sent = {f"{one.place}_template": one.sent for one in of_items.fillings}
    asked = {key: merged[key] for key in PROMPT_OPTIONS if merged.get(key) is not None} | sent
    labels, means = tuple(merged.get("label") or ()), tuple(merged.get("means") or ())
    return System(name, of_items, labels, means, asked | {"apply_softmax": True})


def _question(file: str, name: str | None, truth: str) -> dict[str, Any]:
    """Return the question that the true labels answer, by its name."""
    questions = read_questions(file)
    wanted = name or (truth if truth in questions else next(iter(questions)) if len(questions) == 1 else None)
    if wanted not in questions:
        there = ", ".join(map(repr, questions))
        raise CommandError(
            f"{file} has the questions {there}: say with --question which one {truth!r} answers", ExitCode.USAGE
        )
    return {wanted: questions[wanted]}
