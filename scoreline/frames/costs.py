"""Count what scoring the rows of a table would take, by asking the service about each query and scoring nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from scoreline.client import AsyncClient, InvalidRequest
from scoreline.client.background import Background
from scoreline.client.mapping import outcome
from scoreline.frames.asked import Asking
from scoreline.frames.errors import CostError, as_table_errors
from scoreline.frames.streams import served
from scoreline.runs.plan import Plan
from scoreline.runs.reading import Source
from scoreline.runs.run import check_empty, check_remedy, first_of, in_a_thread
from scoreline.runs.scoring import Refusal, concerns_rows, refusal_of
from scoreline.runs.trial import dry_run
from scoreline.runs.windows import Group, all_windows

AT_ONCE = 16
"""Requests that are under way at a time."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What scoring some rows takes."""

    items: int  # rows that are scored; a row with several questions is one
    prompt_tokens: int | None  # the lengths of all prompts, summed; None: they were not counted

    def check(self, max_items: int | None, max_tokens: int | None) -> None:
        """Raise CostError if it is more than somebody allows. None: any number."""
        for found, most, what in ((self.items, max_items, "items"), (self.prompt_tokens, max_tokens, "tokens")):
            if most is not None and found is not None and found > most:
                raise CostError(f"{found:,} {what} are more than the {most:,} that max_{what} leaves: none is scored")


def cost_of(asking: Asking, source: Source, *, tokens: bool) -> Cost:
    """Return what scoring rows takes. tokens: whether tokens are counted. Raises TableError and ScorelineError."""
    asking = asking.of_served(served(asking))
    client = asking.client()
    with Background(client) as background, as_table_errors():
        return outcome(background.start(_cost_of(asking.plan, client, source, tokens=tokens)))


async def _cost_of(plan: Plan, client: AsyncClient, source: Source, *, tokens: bool) -> Cost:
    room = asyncio.Semaphore(AT_ONCE)
    items = prompt_tokens = 0

    async def count(group: Group, numbers: Sequence[int]) -> None:
        nonlocal items, prompt_tokens
        try:
            found = await dry_run(group, plan, client)
            prompt_tokens += found.prompt_tokens  # Not in one statement, which would add to what was there before.
        except InvalidRequest as error:
            if not concerns_rows(error, group, plan):
                raise
            middle = 0 if plan.questions else len(group.rows) // 2
            if not middle:  # Where its cells are left empty, it takes nothing.
                check_remedy(refusal_of(error), plan, source, numbers[group.rows[0]])
                items -= len(group.rows)
            for half in (group.part(0, middle), group.part(middle, len(group.rows))) if middle else ():
                await count(half, numbers)  # The neighbours of a row that is refused are counted without it.

    async def count_in_turn(group: Group, numbers: Sequence[int]) -> None:
        async with room:
            await count(group, numbers)

    try:
        windows = all_windows(source, plan.window)
        while (window := await in_a_thread(lambda: next(windows, None))) is not None:
            groups, wrong, empty = window.groups(plan.columns)
            check_empty(plan, source, window, empty)
            for place, message in wrong.items():
                check_remedy(Refusal(message, is_too_long=False), plan, source, window.numbers[place])
            items += sum(len(group.rows) for group in groups)
            if tokens:
                async with asyncio.TaskGroup() as tasks:
                    for group in groups:
                        tasks.create_task(count_in_turn(group, window.numbers))
    except BaseExceptionGroup as group:
        raise first_of(group) from None
    return Cost(items, prompt_tokens if tokens else None)
