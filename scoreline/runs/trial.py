"""Say what a run would do: read all of its input, and ask the service about the first rows. Nothing is scored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from scoreline.client import AsyncClient, DryRun, InvalidRequest
from scoreline.runs.beginning import check_columns, check_input
from scoreline.runs.plan import Empty, Plan, new_columns
from scoreline.runs.prompts import Text
from scoreline.runs.reading import open_source
from scoreline.runs.run import all_columns, empty_rows, in_a_thread
from scoreline.runs.scoring import concerns_rows
from scoreline.runs.windows import Group, all_windows

MAX_GROUPS = 20
MAX_ROWS = 1_000
MAX_PROBLEMS = 10
"""How many queries and rows the service is asked about, and how many problems are told."""


@dataclass(slots=True)
class Trial:
    """What a run would do."""

    rows: int = 0
    jobs: int = 0
    empty: int = 0  # rows without a text
    failed: int = 0  # rows that can't be scored for another reason, as far as that is known
    problems: list[str] = field(default_factory=list)  # what is wrong with rows, of the first of them
    new_columns: list[str] = field(default_factory=list)
    first: tuple[Any, Text] | None = None  # the query, or the state, and the item of the first row, as they are sent
    prompt_tokens: float = 0.0  # estimated
    seconds: float | None = 0.0  # of scoring, estimated; None if nobody knows
    warnings: list[str] = field(default_factory=list)  # of the service


async def try_out(plan: Plan, client: AsyncClient) -> Trial:
    """Return what a run would do. Raises CommandError for what would end it, and ScorelineError."""
    trial = Trial()
    asked: list[Group] = []
    check_input(plan)
    source = open_source(plan.source, plan.source_format)
    try:
        check_columns(source, plan)
        plan, labels = plan.of_served(await client.models())
        windows = all_windows(source, plan.window, plan.limit)
        while (window := await in_a_thread(lambda: next(windows, None))) is not None:
            if not trial.rows:
                taken = source.columns if source.columns is not None else all_columns([window])
                plan.check_templates(source.name, taken)
                trial.new_columns = [*new_columns(plan, labels, taken)]
            groups, wrong, empty = window.groups(plan.columns)
            trial.rows += len(window.rows)
            trial.jobs += len(groups)
            trial.empty += len(empty)
            trial.failed += len(wrong)
            if empty and plan.empty is Empty.FAIL:
                trial.problems.append(str(empty_rows(source, window, empty)))
            trial.problems += [f"{source.unit} {window.numbers[place]}: {what}" for place, what in wrong.items()]
            del trial.problems[MAX_PROBLEMS:]
            for group in groups:
                if len(asked) < MAX_GROUPS and sum(len(one.items) for one in asked) < MAX_ROWS:
                    asked.append(group)
        if asked:
            trial.first = asked[0].query, asked[0].items[0]
            await _ask(trial, asked, plan, client)
        return trial
    finally:
        source.close()


async def _ask(trial: Trial, groups: list[Group], plan: Plan, client: AsyncClient) -> None:
    """Ask the service what some groups would take, and estimate from that what all rows take."""
    rows = 0
    for group in groups:
        try:
            found = await dry_run(group, plan, client)
        except InvalidRequest as error:
            if not concerns_rows(error, group, plan):
                raise  # The options are wrong, not the rows.
            trial.problems.append(f"{str(group.query)[:60]!r}: {error}")
            continue
        rows += len(group.items)
        trial.prompt_tokens += found.prompt_tokens
        known = trial.seconds is not None and found.estimated_seconds is not None
        trial.seconds = (trial.seconds or 0.0) + (found.estimated_seconds or 0.0) if known else None
        trial.warnings = list(dict.fromkeys([*trial.warnings, *found.warnings]))
    share = (trial.rows - trial.empty - trial.failed) / rows if rows else 0.0
    trial.prompt_tokens *= share
    trial.seconds = None if trial.seconds is None else trial.seconds * share


async def dry_run(group: Group, plan: Plan, client: AsyncClient) -> DryRun:
    """Return what the job of a group would take. Raises ScorelineError."""
    if plan.questions:
        return await client.dry_run_decision(group.query, plan.questions, priority="bulk", **plan.options)
    query: Any = group.query
    labels: Any = group.labels or plan.labels or None
    return await client.dry_run(query, group.items, labels=labels, priority="bulk", **plan.options)
