"""What is asked about each row of a table, and of which service: the same for all kinds of tables and engines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal, TypedDict

from scoreline.client import AsyncClient, Model
from scoreline.client.decisions import Questions, bodies_of
from scoreline.client.options import Permute, PromptOptions
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.frames.errors import TableError, as_table_errors
from scoreline.runs.decisions import StateColumns, permute_of, read_questions
from scoreline.runs.formats import STANDARD, Format, Kind
from scoreline.runs.plan import Empty, Plan, Remedy, given_options, new_columns
from scoreline.runs.prompts import Columns, read_columns
from scoreline.runs.windows import WINDOW
from scoreline.templates import model_of, pinned, template_of


class TableOptions(TypedDict, total=False):
    """How the rows of a table are scored.

    column_prefix: what the names of the new columns begin with.
    on_error, on_too_long: ``"fail"``: a row that can't be scored, or has more tokens than the model takes, ends the
    whole with an error; ``"skip"``: its cells are null. empty: the same for a row without a text; ``"score"`` scores it
    like any other.
    max_items, max_tokens: raise CostError, before anything is scored, if the rows are more, or their prompts have more
    tokens, which the service counts first.
    run: the name of a run. Whoever asks the same of the same rows of a query under the same name within a day gets the
    scores of the jobs that are there, so a task that is tried again, or done twice, scores nothing twice. Its jobs go
    on when whoever asked is gone.
    concurrency: jobs at a time. patience: seconds for which a service that is away is waited for, once it has answered.
    url, api_key: those of the service; None: as for :class:`Client`. model: the name of a model; None: the served one.
    """

    column_prefix: str
    on_error: Literal["fail", "skip"]
    on_too_long: Literal["fail", "skip"]
    empty: Literal["fail", "skip", "score"]
    max_items: int | None
    max_tokens: int | None
    run: str | None
    concurrency: int
    patience: float
    url: str | None
    api_key: str | None
    model: str | None


class ItemOptions(TableOptions, PromptOptions, total=False):
    """The same, and what the model is asked about an item, as :meth:`Client.score` takes it.

    Templates may name further columns, as in ``"{item} ({column:city})"``.
    baseline: items that say nothing, such as ``""`` and ``"N/A"``: probabilities are without the share of each label
    that these get.
    """

    baseline: Sequence[str] | None


MOST_AT_ONCE = 500
"""Jobs at a time, at most."""

_NOT_SENT = ("column_prefix", "on_error", "on_too_long", "empty", "run", "concurrency")
_TEXTS = ("column_prefix", "run", "model", "url", "api_key")
_OF_THE_CALLER = ("max_items", "max_tokens", "patience", "url", "api_key")


@dataclass(frozen=True, slots=True)
class Asking:
    """What is asked about each row. It can be sent to other processes."""

    plan: Plan
    max_items: int | None = None
    max_tokens: int | None = None
    patience: float = 3600.0
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    was_reached: bool = False  # whether the service has answered whoever asks first, and so is waited for

    @property
    def needed(self) -> list[str]:
        """The columns that are read."""
        names = [name for name, _ in self.plan.columns.named]
        return list(dict.fromkeys([*names, *(name for one in self.plan.columns.fillings for name in one.columns)]))

    def client(self, *, is_reached: bool = True) -> AsyncClient:
        """Return a client of the service. is_reached: whether the service has answered, so that it is waited for."""
        client = AsyncClient(self.url, api_key=self.api_key, retry_seconds=self.patience, outage_seconds=self.patience)
        client.service.was_reached = is_reached
        return client

    def of_served(self, models: Sequence[Model]) -> Asking:
        """Return the same of the model and the template that the service means now. Raises TableError and NotFound."""
        options = dict(self.plan.options)
        model = model_of(models, options.get("model"))
        options["model"] = model.id
        template = options.get("template")
        if self.plan.only_relevance and template is None:
            template = model.template
            if template is None and len(model.classes) != 1:
                raise TableError(f"the model {model.id} has no template that says what relevance is: name a template")
        with as_table_errors():
            if template is not None:
                options["template"] = pinned(template_of(model, template))
        return replace(self, plan=replace(self.plan, options=options))

    def columns(self, models: Sequence[Model], taken: Sequence[str]) -> dict[str, Kind]:
        """Return the new columns. models: what the service serves. taken: the columns of the table.

        Raises TableError and NotFound.
        """
        with as_table_errors():
            plan, labels = self.plan.of_served(models)
            return new_columns(plan, labels, taken)


def scoring(
    item_column: str,
    *,
    query_column: str | None = None,
    query: str | None = None,
    labels: Sequence[str] = (),
    label_columns: Sequence[str] = (),
    **options: Any,
) -> Asking:
    """Return the question how probable labels are behind the query and the item of each row.

    query_column, query: where the query is, or the same one for all rows. labels: none for a ``template`` that has
    some, or for a model with classes. label_columns: those with the labels of each row. options: ItemOptions.
    Raises TableError and TypeError.
    """
    given = _checked(options, ItemOptions)
    with as_table_errors():
        for name, texts in (("labels", labels), ("label_columns", label_columns)):
            if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
                raise CommandError(f"{name} must be a list of texts", ExitCode.USAGE)
        if label_columns and (labels or given.get("template") is not None):
            raise CommandError("rows of label_columns have no other labels: leave out labels", ExitCode.USAGE)
        columns = read_columns(
            item_column, query_column, query, given, label_columns, scores_empty=given.get("empty") == Empty.SCORE
        )
        sent = {f"{one.place}_template": one.sent for one in columns.fillings}
        return _asking(columns, {**given, **sent}, tuple(labels))


def ranking(
    document_column: str, *, query_column: str | None = None, query: str | None = None, **options: Any
) -> Asking:
    """Return the question how relevant the document of each row is to its query.

    options: ItemOptions. Without ``template``, the one of the model says what relevance is.
    """
    asking = scoring(document_column, query_column=query_column, query=query, **options)
    return replace(asking, plan=replace(asking.plan, only_relevance=True))


def deciding(
    questions: Questions | str | os.PathLike[str],
    *,
    state_column: str | None = None,
    state_columns: Sequence[str] | None = None,
    permute: Permute | None = None,
    **options: Any,
) -> Asking:
    """Return questions about the state of each row, which is a column, or an object with several.

    questions: as those of :meth:`Client.decide`, or a file with them as JSON. permute: as there. options:
    TableOptions.
    """
    given = _checked(options, TableOptions)
    with as_table_errors():
        bodies = read_questions(os.fspath(questions)) if isinstance(questions, str | os.PathLike) else None
        if (state_column is None) == (state_columns is None):
            raise CommandError("give either state_column or state_columns", ExitCode.USAGE)
        names = (state_column,) if state_column is not None else tuple(state_columns or ())
        if isinstance(state_columns, str) or not names or len(set(names)) < len(names):
            raise CommandError("state_columns must be a list of different names", ExitCode.USAGE)
        if permute is not None:
            given["permute"] = permute_of(str(permute))
        columns = StateColumns(names, is_object=state_column is None, scores_empty=given.get("empty") == Empty.SCORE)
        found = bodies if bodies is not None else bodies_of(questions)  # type: ignore[arg-type]
        return _asking(columns, given, (), found)


def asking(**asked: Any) -> Asking:
    """Return what is asked, by the arguments of one of the functions of :mod:`scoreline.frames`.

    With ``questions`` it is a decision, as :func:`deciding` has it. With ``labels`` (an empty list for a model with
    classes), ``label_columns`` or a ``template``, it is a score, as :func:`scoring` has it. With none of them, or with
    a ``document_column``, it is the relevance, as :func:`ranking` has it.
    """
    if "questions" in asked:
        return deciding(asked.pop("questions"), **asked)
    if "document_column" in asked:
        return ranking(asked.pop("document_column"), **asked)
    if "item_column" not in asked:
        raise TypeError("give item_column, or document_column, or questions and state_column")
    is_scored = any(asked.get(name) is not None for name in ("labels", "label_columns", "template"))
    return (scoring if is_scored else ranking)(asked.pop("item_column"), **asked)


def _checked(options: Mapping[str, Any], known: type) -> dict[str, Any]:
    for name in options:
        if name not in known.__annotations__:
            meant = "".join(f": did you mean {one!r}?" for one in get_close_matches(name, known.__annotations__, 1))
            raise TypeError(f"there is no option {name!r} here{meant}")
    return dict(options)


def _asking(
    columns: Columns | StateColumns,
    options: Mapping[str, Any],
    labels: tuple[str, ...],
    questions: Mapping[str, Any] | None = None,
) -> Asking:
    for name, kind in (("on_error", Remedy), ("on_too_long", Remedy), ("empty", Empty)):
        if options.get(name, "fail") not in [*kind]:
            choices = ", ".join(map(repr, map(str, kind)))
            raise CommandError(f"{name} must be one of {choices}, not {options[name]!r}", ExitCode.USAGE)
    texts = {name: options.get(name) for name in _TEXTS}
    for name, text in [*texts.items(), *((option, column) for column, option in columns.named)]:
        if not isinstance(text, str | None):
            raise CommandError(f"{name} must be a text, not {text!r}", ExitCode.USAGE)
    concurrency, run, patience = options.get("concurrency", 256), options.get("run"), options.get("patience", 0)
    if not 1 <= concurrency <= MOST_AT_ONCE:
        raise CommandError(f"concurrency must be from 1 to {MOST_AT_ONCE}, not {concurrency}", ExitCode.USAGE)
    if run is not None and not run.strip():
        raise CommandError("run must be a name, and not empty", ExitCode.USAGE)
    if patience < 0:
        raise CommandError(f"patience must be at least 0, not {patience}", ExitCode.USAGE)
    sent = {name: value for name, value in options.items() if name not in (*_NOT_SENT, *_OF_THE_CALLER)}
    plan = Plan(
        source=STANDARD,
        source_format=Format.PARQUET,
        target=STANDARD,
        target_format=Format.JSON_LINES,
        columns=columns,
        labels=labels,
        options=given_options(sent),
        window=WINDOW,
        questions=questions or {},
        prefix=options.get("column_prefix", ""),
        on_error=Remedy(options.get("on_error", "fail")),
        on_too_long=Remedy(options.get("on_too_long", "fail")),
        empty=Empty(options.get("empty", "fail")),
        concurrency=concurrency,
        shared_run=run,
    )
    own = {name: options[name] for name in _OF_THE_CALLER if name in options}
    return Asking(plan, **own)
