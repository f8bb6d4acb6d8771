"""What the commands on a labelled file have in common: their options, and how the file gets its scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from scoreline.commands.options import BaselineOption, LabelsOption, PermuteOption, PromptOptions
from scoreline.commands.run import carry_out
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.judging.labelled import LabelledFile, read_labelled
from scoreline.judging.scored import Scored, Scoring
from scoreline.judging.systems import PROMPT_OPTIONS, System, in_one_order, read_systems
from scoreline.runs.formats import Format, format_of
from scoreline.runs.plan import Empty, Remedy
from scoreline.runs.prompts import Columns, Text
from scoreline.terminal.printable import printable

if TYPE_CHECKING:
    from judgement.sample import Sample

Check = Callable[["Sample", Sequence[str]], None]
"""It takes a sample in which only the true labels are known, and what labels are called, and may raise an error."""

PATIENCE = 3600.0
"""Seconds for which a service that is away is waited for, as long as ``run`` waits."""


class LabelledOptions(PromptOptions):
    """The options that say how a labelled file is scored, or where its scores are."""

    item_column: Annotated[str | None, typer.Option(help="The column of the items.")]
    query_column: Annotated[
        str | None, typer.Option(help="The column of the queries. Rows that share one count as one group.")
    ]
    query: Annotated[str | None, typer.Option(help="The query of all rows, where the file has no column of queries.")]
    label: LabelsOption
    means: Annotated[
        list[str] | None,
        typer.Option(
            help="What a label is called in the column of true labels, if not as it is; once for each, in their order."
        ),
    ]
    questions: Annotated[
        str | None, typer.Option(metavar="FILE", help="Ask a question of this file about each row, as `run` does.")
    ]
    question: Annotated[str | None, typer.Option(help="Which of the questions the true labels answer.")]
    state_column: Annotated[str | None, typer.Option(help="With --questions: the column that they are about.")]
    state_columns: Annotated[str | None, typer.Option(metavar="A,B,...", help="The same for several columns.")]
    permute: PermuteOption
    baseline: BaselineOption
    scores: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Score nothing: the file has these columns, one for each label."),
    ]
    on_too_long: Annotated[Remedy | None, typer.Option(help="Rows with more tokens than the model takes.")]
    on_error: Annotated[Remedy | None, typer.Option(help="Rows with another error.")]
    empty: Annotated[Empty | None, typer.Option(help="Rows with nothing but blanks in a text.")]
    keep_duplicates: Annotated[
        bool, typer.Option("--keep-duplicates", help="Rows with the same texts are no error, and count as one group.")
    ]
    input_format: Annotated[Format | None, typer.Option(help="If the name of the file does not tell.")]
    concurrency: Annotated[int | None, typer.Option(min=1, max=500, help="Jobs at a time. Default: 256.")]


class LabelledWork:
    """A labelled file, and what is to be scored of it."""

    def __init__(
        self, source: str, truth: str, given: LabelledOptions, needs: Sequence[str], systems: str | None = None
    ) -> None:
        """Read the file and the options. needs: packages that the client does not need. Raises CommandError."""
        if missing := [name for name in needs if find_spec(name) is None]:
            raise CommandError(f'this needs {", ".join(missing)}: pip install "scoreline[judgement]"', ExitCode.USAGE)
        self._given = given
        self._columns = [name.strip() for name in (given["scores"] or "").split(",") if name.strip()]
        self._systems: list[System] = []
        texts: Columns | None = None
        needed: list[tuple[str, str]] = [(column, "--scores") for column in self._columns]
        if self._columns:
            self._refuse_prompts(given, systems)
            if given["item_column"] is not None:
                texts = Columns(given["query_column"], given["item_column"])
            needed += [(given["query_column"], "--query-column")] if given["query_column"] is not None else []
        else:
            scores_empty = given["empty"] is Empty.SCORE
            self._systems = read_systems(systems, given, truth=truth, scores_empty=scores_empty)
            needed += self._systems[0].columns.named
        self._texts = texts if self._columns else self._systems[0].columns
        needed += texts.named if texts is not None else []
        source_format = format_of(source, given["input_format"], "--input-format")
        self.labelled: LabelledFile = read_labelled(source, source_format, needed, truth)
        keeps = given["keep_duplicates"]
        self.groups = self.labelled.groups(self._texts, given["query_column"], keeps_duplicates=keeps)

    def _refuse_prompts(self, given: LabelledOptions, systems: str | None) -> None:
        options = {"systems": systems, **given}
        for name in (*PROMPT_OPTIONS, "systems", "query", "label", "questions"):
            if options.get(name):
                option = name.replace("_", "-")
                raise CommandError(
                    f"--scores has the file's own scores, and does not go with --{option}", ExitCode.USAGE
                )

    def scored(self, url: str, *checks: Check, ranking: bool = False) -> list[Scored]:
        """Return the scores of all systems. Raises CommandError and JudgementError.

        checks: what is looked at before anything is scored.
        """
        if ranking and self._given["query_column"] is None:
            raise CommandError("--ranking needs --query-column, which says which items belong together", ExitCode.USAGE)
        if ranking and any(system.options.get("baseline") for system in self._systems):
            raise CommandError("--ranking ranks by the model's scores, and does not go with --baseline", ExitCode.USAGE)
        if ranking:
            self.labelled.grades()
        else:
            self._check(url, checks)
        if self._columns:
            return [self._in_the_file(ranking=ranking)]
        scoring = self._scoring(ranking=ranking)
        return carry_out(scoring.folder, url, PATIENCE, lambda client: scoring.score(client, Console(stderr=True)))

    def _in_the_file(self, *, ranking: bool) -> Scored:
        if len(self._columns) < 2 and not ranking:
            raise CommandError(
                "--scores needs a column for each label, of which there are two at least", ExitCode.USAGE
            )
        labels = tuple(self._given["means"] or self._columns)
        if len(labels) != len(self._columns):
            raise CommandError("give --means once for each column of --scores", ExitCode.USAGE)
        return Scored("scores", labels, [*self.labelled.scores(self._columns, ranking=ranking)])

    def _scoring(self, *, ranking: bool) -> Scoring:
        given = self._given
        remedies = {
            "on_too_long": given["on_too_long"] or Remedy.FAIL,
            "on_error": given["on_error"] or Remedy.FAIL,
            "empty": given["empty"] or Empty.FAIL,
        }
        return Scoring(self.labelled, self._systems, remedies, given["concurrency"] or 256, ranking=ranking)

    def _check(self, url: str, checks: Sequence[Check]) -> None:
        if self._columns:
            called: list[tuple[str, ...]] = [self._in_the_file(ranking=False).labels]
        else:
            scoring = self._scoring(ranking=False)
            called = carry_out(scoring.folder, url, PATIENCE, scoring.called)
        from judgement.sample import Sample

        names = [system.name for system in self._systems] or [self.labelled.name]
        for name, labels in zip(names, called, strict=True):
            if len(labels) < 2:
                raise CommandError(f"{name} has one label only: give another --label", ExitCode.USAGE)
        in_one_order(list(zip(names, called, strict=True)))
        for labels in called:
            truth = self.labelled.places(labels)
            even = [[1.0] * len(labels)] * len(truth)
            for check in checks:
                check(Sample.of(even, truth, self.groups), labels)

    def sample(self, system: Scored) -> Sample:
        """Return the rows of a system that could be scored. Raises CommandError and JudgementError."""
        from scoreline.judging.evaluation import samples_of, scored_rows

        rows = scored_rows([system])
        if len(rows) < len(self.labelled.rows):
            warn(f"{len(self.labelled.rows) - len(rows):,} rows could not be scored, and do not count")
        return samples_of(self.labelled, [system], rows, self.groups)[0]

    def texts(self) -> Sequence[Text | None]:
        """Return the text by which each row is shown."""
        shown: list[Text | None] = []
        for row in self.labelled.rows:
            if isinstance(self._texts, Columns):
                value = row.get(self._texts.item)
            elif self._texts is not None:
                value = {name: row.get(name) for name in self._texts.columns}
                value = next(iter(value.values())) if len(value) == 1 else json.dumps(value, default=str)
            else:
                value = None
            shown.append(value if value is None or isinstance(value, str | list) else str(value))
        return shown


def warn(what: str) -> None:
    """Print a warning."""
    Console(stderr=True).print(
        f"warning: {printable(what)}", style="yellow", markup=False, highlight=False, soft_wrap=True
    )
