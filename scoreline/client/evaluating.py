"""``evaluate``: what scores of items are worth whose true labels are known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from scoreline.client import mapping
from scoreline.client.errors import InvalidRequest
from scoreline.client.exchange.flow import Compute, Flow
from scoreline.client.exchange.sending import Service
from scoreline.client.mapping import CONCURRENCY
from scoreline.client.operations import scoring
from scoreline.client.options import Column, EvaluateOptions, Items, ManyOptions, SystemOptions
from scoreline.client.progress import MapProgress


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation:
    """What systems are worth, measured on labelled items: the report of ``scoreline evaluate``.

    A figure has its ``value``, and with ``low`` and ``high`` its interval of 95 %; None: it is not known. That of a
    difference has ``is_clear``, too: whether the interval leaves 0 out.
    """

    report: Mapping[str, Any]  # all that is known, as ``scoreline evaluate --json`` writes it

    @property
    def systems(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The metrics of each system, by their names, as in ``systems["short"]["accuracy"]["value"]``."""
        return {one["name"]: one["metrics"] for one in self.report["systems"]}

    @property
    def differences(self) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
        """The metrics of one system less those of another, as in ``differences["long", "short"]["accuracy"]``."""
        return {(one["system"], one["base"]): one["metrics"] for one in self.report["differences"]}

    @property
    def warnings(self) -> list[str]:
        """What to keep in mind, in words."""
        found: list[str] = self.report["warnings"]
        return found

    def json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def html(self) -> str:
        """Return the report as a page that loads nothing, as ``scoreline evaluate --html`` writes it."""
        from scoreline.judging.page import report_page

        return report_page(self.report)

    def save(self, path: str | Path) -> None:
        """Write the page to a file, or JSON if its name ends in ``.json``. Raises OSError."""
        is_json = Path(path).suffix.lower() == ".json"
        Path(path).write_text(self.json() if is_json else self.html(), encoding="utf-8")

    def __repr__(self) -> str:
        """Return how good the systems are, as text."""
        found = [f"{name}: {metrics['accuracy']['value']:.4f}" for name, metrics in self.systems.items()]
        return f"Evaluation({self.report['rows']:,} rows, accuracy of {', '.join(found)})"

    def _repr_html_(self) -> str:
        from scoreline.judging.page import report_summary

        return report_summary(self.report)


def evaluate(
    service: Service,
    items: Items,
    truth: Sequence[object] | Column,
    *,
    queries: Sequence[str] | Column | None = None,
    groups: Sequence[object] | Column | None = None,
    systems: Mapping[str, SystemOptions] | None = None,
    keep_duplicates: bool = False,
    concurrency: int = CONCURRENCY,
    **options: Unpack[EvaluateOptions],
) -> Flow[Evaluation]:
    """Score items whose true labels are known, and say how good the scores are, as ``scoreline evaluate`` does.

    All systems are scored together, by :meth:`map`. Raises ValueError for items or true labels that can't be judged,
    most of them before anything is scored, and ImportError without ``pip install "scoreline[judgement]"``.

    items: N texts. truth: the N true labels, as ``labels`` calls them.
    query: the text that all items follow. queries: N texts instead, of which equal ones make a group.
    groups: N values that are equal for items which depend on one another, if queries do not say it: intervals count
    groups. keep_duplicates: equal items are no error, but a group.
    systems: what is compared, by its name: options that differ from those of the call, as in
    ``{"short": {}, "long": {"query": "..."}}``; None: the call alone, whose name is ``"prompt"``.
    labels: texts, which are called as they are but for blanks around them, or a mapping of what each is called to its
    text; None: those of the template, or the classes of the model.
    label_scoring, label_normalization, temperature, query_template, item_template, template, instruction, model: as
    for :meth:`score`. baseline: as there, and what is judged are the ``adjusted`` probabilities.
    concurrency: jobs under way at a time.

    >>> reviews = ["A lovely room.", "The soup was cold.", "The staff were lovely.", "The waiter forgot us."]
    >>> truth = ["good", "bad", "good", "bad"]
    >>> labels = {"good": " positive", "bad": " negative"}
    >>> systems = {"plain": {}, "asking": {"item_template": "{item}\\nSentiment:"}}
    >>> found = client.evaluate(reviews, truth, query="Review: ", labels=labels, systems=systems)
    >>> found.systems["asking"]["accuracy"]["value"]
    1.0
    """
    columns = {"items": items, "truth": truth, "queries": queries, "groups": groups}
    for name, column in columns.items():
        if column is not None:
            scoring.check_items(column, name)
    if queries is not None and options.get("query") is not None:
        raise ValueError("give either query, one text for all items, or queries, one for each")
    if systems is not None and not systems:
        raise ValueError("there are no systems")
    given: dict[str, Any] = dict(options)
    many = {name: given.pop(name) for name in ManyOptions.__annotations__ if name in given}
    compared = {name: {**given, **own} for name, own in (systems or {"prompt": {}}).items()}
    for name, own in compared.items():
        if unknown := own.keys() - SystemOptions.__annotations__.keys():
            raise TypeError(f"systems[{name!r}] has an unexpected option {min(unknown)!r}")
    try:
        from scoreline.judging.memory import Evaluating
    except ModuleNotFoundError as error:
        raise ImportError(f'evaluate needs {error.name}: pip install "scoreline[judgement]"') from None
    evaluating = yield from Compute(lambda: Evaluating(columns, compared, keep_duplicates=keep_duplicates))
    models = yield from scoring.models(service)
    pairs = yield from Compute(lambda: evaluating.asked(models))
    returned = 0

    def count(now: MapProgress) -> None:
        nonlocal returned
        returned = now.pairs
        if many.get("progress") is not None:
            many["progress"](now)

    try:
        results = yield from mapping.map(service, pairs, concurrency=concurrency, **(many | {"progress": count}))
    except InvalidRequest as error:
        raise evaluating.about_items(error, returned) from None  # results come in order
    return Evaluation((yield from Compute(lambda: evaluating.report(results))))
