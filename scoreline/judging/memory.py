"""Judge rows that are in memory, as those of a labelled file are judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from judgement.sample import Sample, check_labels
from scoreline.client import InvalidRequest, Model, ScoreResult
from scoreline.client.exchange.bodies import is_blank, plain
from scoreline.client.mapping import Pair
from scoreline.exit_codes import CommandError
from scoreline.failures import in_python
from scoreline.judging.backlog import Backlog
from scoreline.judging.evaluation import Report, evaluate
from scoreline.judging.labelled import Labelled
from scoreline.judging.scored import Scored
from scoreline.judging.systems import PROMPT_OPTIONS, System, in_one_order
from scoreline.runs.prompts import Columns
from scoreline.templates import labels_of, model_of

ITEMS, TRUTH, QUERIES, GROUPS = "items", "truth", "queries", "groups"
"""The columns of the rows, which are called as the arguments that they come from."""


@contextmanager
def _as_value_errors() -> Iterator[None]:
    """Have what can't be judged be a ValueError, which names the arguments."""
    try:
        yield
    except CommandError as error:
        raise ValueError(in_python(str(error)).replace("in the file", "in truth")) from None


class Evaluating:
    """Rows in memory, and the systems that are compared on them. Every method raises ValueError."""

    @_as_value_errors()
    def __init__(
        self, columns: Mapping[str, Any], systems: Mapping[str, Mapping[str, Any]], *, keep_duplicates: bool
    ) -> None:
        """columns: a list, an array or a column for each of ITEMS, TRUTH, QUERIES and GROUPS; None: there is none.

        systems: their options, as ``SystemOptions`` has them.
        """
        cells = {name: _cells(column) for name, column in columns.items() if column is not None}
        self._labelled = Labelled.in_memory(cells, TRUTH)
        self._texts = cells[ITEMS]
        queries = QUERIES if QUERIES in cells else None
        grouping = GROUPS if GROUPS in cells else queries
        self._systems = [_system(name, options, queries) for name, options in systems.items()]
        of_systems = [(one.columns, {**one.options, "labels": list(one.labels) or None}) for one in self._systems]
        self._backlog = Backlog(self._labelled.rows, of_systems)
        for place in range(len(self._texts)):
            if grouping is not None and cells[grouping][place] is None:
                raise ValueError(f"{self._labelled.where(place)}: there is nothing in {grouping!r}")
        self._groups = self._labelled.groups(Columns(queries, ITEMS), grouping, keeps_duplicates=keep_duplicates)

    @_as_value_errors()
    def asked(self, models: Sequence[Model]) -> list[Pair]:
        """Return what is to be scored, after a look at the true labels. models: those that the service serves."""
        of_each = [model_of(models, one.options.get("model")) for one in self._systems]
        self._called = [
            one.called(labels_of(model, one.labels, one.options.get("template")))
            for one, model in zip(self._systems, of_each, strict=True)
        ]
        labels = in_one_order([(one.name, own) for one, own in zip(self._systems, self._called, strict=True)])
        truth = self._labelled.places(labels)
        check_labels(Sample.of([[1.0] * len(labels)] * len(truth), truth))
        return self._backlog.pairs

    def about_items(self, error: InvalidRequest, number: int) -> InvalidRequest:
        """Return an error of what was asked, by its number, with the place of its item among all items."""
        return self._backlog.about_rows(error, number)

    @_as_value_errors()
    def report(self, results: Iterable[ScoreResult]) -> Report:
        """Return what the systems are worth. results: of what was asked, in its order."""
        answers = self._backlog.read(results)
        found = [
            Scored(system.name, called, [*answer.shares], model=answer.model, prompt=system.prompt)
            for system, called, answer in zip(self._systems, self._called, answers, strict=True)
        ]
        return evaluate(self._labelled, found, self._groups, self._texts)


def _cells(column: Any) -> list[Any]:
    """Return a column as a list, with None for each cell that is missing or blank."""
    values = plain(column)
    return [None if is_blank(cell) else _whole(cell) for cell in (values if isinstance(values, list) else [values])]


def _whole(cell: Any) -> Any:
    """Return a whole number as one: a column of classes with a gap has 1.0 for 1."""
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def _system(name: str, options: Mapping[str, Any], queries: str | None) -> System:
    given = options.get("labels")
    names = tuple(str(_whole(one)).strip() for one in given) if isinstance(given, Mapping) else ()
    labels = () if given is None else given.values() if isinstance(given, Mapping) else plain(given)
    texts = tuple(labels) if isinstance(labels, Iterable) else ()
    if isinstance(given, str) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{name}: labels must be a list of texts, or a mapping of names to texts")
    asked = {key: options[key] for key in PROMPT_OPTIONS if options.get(key) is not None}
    query = options.get("query")
    columns = Columns(queries if query is None else None, ITEMS, query or "")
    return System(name, columns, texts, names, {**asked, "apply_softmax": True})
