"""Which waiting chunks a claim takes: the order of flows and of groups, and what fits its budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Integer, Row, Select, bindparam, func, select

from jobs.queue.fair_shares import count_of_open_flows, is_of_class, next_flows, turn_of_flow
from jobs.queue.homes import FREE
from jobs.queue.read import CLAIMABLE
from jobs.store.codec import TOKEN_BYTES
from jobs.store.database import Transaction
from jobs.store.lists import is_one_of
from jobs.store.prefix_work import prefix_work
from jobs.store.tables import chunks, prefixes

WHOLE_GROUPS = 32  # groups after the first that are gathered from the whole backlog, not only from its urgent end
MAX_FLOWS = 64  # flows that one claim searches
FEW_CHUNKS = 128  # a backlog or a flow with fewer chunks is read in one query
ALIKE_TOKENS = slice(240, 256)  # queries in which these tokens are the same are taken to begin alike
ALIKE_SECONDS = 60.0  # a group is put behind one that begins alike if it is due at most so much later

Parameters = Mapping[str, str | int]
"""What :func:`jobs.queue.read.card_parameters` returns of the worker that claims."""

Group = tuple[list[Row[Any]], int]
"""Chunks that share a prefix, and the work of computing that prefix, in tokens."""


class Chosen(NamedTuple):
    """A chunk to claim."""

    id: int
    prefix_id: int
    tenant: str
    cost: int  # its work in tokens, with the work of its prefix if it is the first chunk of its group


@dataclass(slots=True)
class Choice:
    """What a claim takes, and what it learned about flows while it looked for it."""

    chunks: list[Chosen] = field(default_factory=list)
    interactive: bool = False  # of all chosen chunks
    seen: int = 0  # waiting chunks that the first query found; if fewer than FEW_CHUNKS, these are all that wait
    maybe_closed: bool = False  # whether the flow of any chosen chunk may be closed
    empty: list[str] = field(default_factory=list)  # tenants without work whose flow is open

    @property
    def tokens(self) -> Counter[str]:
        """The work of the chosen chunks, by tenant."""
        tokens: Counter[str] = Counter()
        for chunk in self.chunks:
            tokens[chunk.tenant] += chunk.cost
        return tokens

    def leaves_work(self, taken: int) -> bool:
        """Return whether more may wait when so many chunks have been taken."""
        return self.seen == FEW_CHUNKS or self.seen > taken

    def fill(
        self, candidates: Iterable[Group], budget_tokens: int, limit: int, *, all_within_budget: bool = False
    ) -> None:
        """Take of the groups, in this order, what fits a budget and a number of chunks.

        A first chunk that is larger than the budget is taken alone, unless all_within_budget.
        """
        for rows, prefix_tokens in candidates:
            # Only the first group may be split. The rest of a group that is claimed later computes its prefix again.
            if self.chunks and prefix_tokens + sum(row.token_count for row in rows) > budget_tokens:
                break
            to_prefill = prefix_tokens
            for row in rows:
                cost = row.token_count + to_prefill
                if all_within_budget and cost > budget_tokens:
                    continue
                if self.chunks and cost > budget_tokens:
                    return
                # After a batch was lost, each of its chunks limits the size of the next batch it is in.
                room = min(limit, row.batch_limit or limit)
                if len(self.chunks) >= room:
                    continue
                self.chunks.append(Chosen(row.id, row.prefix_id, row.tenant, cost))
                limit = room
                to_prefill = 0
                budget_tokens -= cost
                if len(self.chunks) == limit:  # return now, before the generator sends its next query
                    return


def choose(
    tx: Transaction,
    worker: Parameters,
    budget_tokens: int,
    max_chunks: int,
    interactive_only: bool,
    after_interactive: bool,
    without: Collection[str] | None,
) -> Choice:
    """Choose the chunks to claim. Their rows are locked on PostgreSQL; SQLite has locked everything."""
    choice = Choice()
    if without is None:
        candidates = _candidates(tx, worker, max_chunks, interactive_only, after_interactive, choice)
    else:
        candidates = _of_others(tx, worker, without, choice)
    choice.fill(candidates, budget_tokens, max_chunks, all_within_budget=without is not None)
    return choice


def _candidates(
    tx: Transaction,
    worker: Parameters,
    count: int,
    interactive_only: bool,
    after_interactive: bool,
    choice: Choice,
) -> Iterator[Group]:
    """Yield waiting chunks, flow by flow and group by group, and note in ``choice`` what is learned about flows.

    This is a generator, so that nothing is read after the budget is spent. count: how many chunks are read at most, of
    one group or of all other groups of a flow.
    """
    urgent = _waiting(tx, worker, FEW_CHUNKS, interactive=True if interactive_only else None)
    if not urgent:
        return
    choice.seen = len(urgent)
    if len(urgent) < FEW_CHUNKS:
        yield from _of_all(tx, worker, urgent, after_interactive, choice)
        return
    head = urgent[0]
    if head.interactive and after_interactive:
        head = _head_of_a_tenant_without_interactive_work(tx, worker) or head
    choice.interactive = head.interactive
    turns = next_flows(tx, str(worker["for_model"]), interactive=head.interactive, limit=MAX_FLOWS)
    if head.tenant not in turns:
        # Its flow is closed, because an older version accepted the work, or more than MAX_FLOWS flows come before it.
        choice.maybe_closed = True
        turns.append(head.tenant)
    for tenant in turns:
        empty = True
        of_flow = (row for row in urgent if (row.tenant, row.interactive) == (tenant, head.interactive))
        for group in _of_flow(tx, worker, count, tenant, head.interactive, next(of_flow, None)):
            empty = False
            yield group
        if empty:
            choice.empty.append(tenant)


def _of_all(
    tx: Transaction, worker: Parameters, waiting: list[Row[Any]], after_interactive: bool, choice: Choice
) -> Iterator[Group]:
    """Do what :func:`_candidates` does, when all waiting chunks have been read."""
    head = waiting[0]
    if head.interactive and after_interactive:
        busy = {row.tenant for row in waiting if row.interactive}
        others = (row for row in waiting if not row.interactive and row.tenant not in busy)
        head = min(others, key=_turn, default=head)
    choice.interactive = head.interactive
    of_flow = by_flow(row for row in waiting if row.interactive == head.interactive)
    found_open = sum(rows[0].turn is not None for rows in of_flow.values())
    choice.maybe_closed = found_open < len(of_flow)
    for rows in of_flow.values():
        groups = groups_of(rows)
        yield from groups if choice.interactive else _alike_together(tx, groups)
    if found_open < head.open_flows:
        choice.empty += flows_without(tx, worker, of_flow, interactive=head.interactive)


def flows_without(tx: Transaction, worker: Parameters, work: Collection[str], *, interactive: bool) -> list[str]:
    """Return the tenants of open flows that are not among those with work."""
    turns = next_flows(tx, str(worker["for_model"]), interactive=interactive, limit=MAX_FLOWS)
    return [tenant for tenant in turns if tenant not in work]


def _of_others(tx: Transaction, worker: Parameters, without: Collection[str], choice: Choice) -> Iterator[Group]:
    """Yield the most urgent interactive groups of the open flows, but for those of these tenants."""
    choice.interactive = True
    for tenant in next_flows(tx, str(worker["for_model"]), interactive=True, limit=MAX_FLOWS):
        if tenant not in without:
            yield from groups_of(_waiting(tx, worker, FEW_CHUNKS, interactive=True, tenant=tenant))


def _turn(row: Row[Any]) -> tuple[float, str]:
    """Return what orders flows: closed ones come last."""
    return (math.inf if row.turn is None else row.turn, row.tenant)


def _head_of_a_tenant_without_interactive_work(tx: Transaction, worker: Parameters) -> Row[Any] | None:
    """Return the most urgent chunk of such a tenant, that of the flow whose turn is first; None if there is none."""
    interactive = next_flows(tx, str(worker["for_model"]), interactive=True, limit=MAX_FLOWS)
    for tenant in next_flows(tx, str(worker["for_model"]), interactive=False, limit=MAX_FLOWS):
        if tenant not in interactive and (found := _waiting(tx, worker, 1, interactive=False, tenant=tenant)):
            return found[0]
    return None


def _of_flow(
    tx: Transaction, worker: Parameters, count: int, tenant: str, interactive: bool, head: Row[Any] | None
) -> Iterator[Group]:
    """Yield the groups of one flow. head: its most urgent chunk, if that is known."""

    def waiting(limit: int, *, of_group: int | None = None, of_others: int | None = None) -> list[Row[Any]]:
        return _waiting(
            tx, worker, limit, interactive=interactive, tenant=tenant, of_group=of_group, of_others=of_others
        )

    if interactive:
        # Groups are not completed from the backlog: no index leads to the interactive chunks of a group alone.
        yield from groups_of(waiting(count))
        return
    if head is None:
        few = waiting(FEW_CHUNKS)
        if len(few) < FEW_CHUNKS:
            yield from _alike_together(tx, groups_of(few))
            return
        head = few[0]
    of_head = groups_of(waiting(count, of_group=head.prefix_id))
    yield from of_head
    urgent = waiting(count, of_others=head.prefix_id)
    backlog_goes_on = len(urgent) == count
    behind = _alike_together(tx, of_head + groups_of(urgent))[len(of_head) :]
    for place, (rows, prefix_tokens) in enumerate(behind):
        whole = backlog_goes_on and place < WHOLE_GROUPS
        yield waiting(count, of_group=rows[0].prefix_id) if whole else rows, prefix_tokens


def _waiting(
    tx: Transaction, worker: Parameters, limit: int, *, interactive: bool | None, **which: str | int | None
) -> list[Row[Any]]:
    """Lock and return waiting chunks that a worker can score, the most urgent first, without those locked by others.

    interactive: None for both classes; which: values for the conditions of :func:`_select_waiting`. A value that is
    None stands for no condition.
    """
    values = {name: value for name, value in which.items() if value is not None}
    statement = _select_waiting(interactive, frozenset(values))
    return list(tx.execute(statement, {"limit": limit, **worker, **values}))


@cache
def _select_waiting(interactive: bool | None, which: frozenset[str]) -> Select[Any]:
    conditions = {
        "tenant": chunks.c.tenant == bindparam("tenant"),
        "of_group": chunks.c.prefix_id == bindparam("of_group"),
        "of_others": chunks.c.prefix_id != bindparam("of_others"),
    }
    wanted = select_waiting(interactive).where(*(conditions[name] for name in sorted(which)))
    return wanted.add_columns(count_of_open_flows().label("open_flows")).limit(bindparam("limit", type_=Integer))


def select_waiting(interactive: bool | None) -> Select[Any]:
    """Return a query that locks and returns waiting chunks, the most urgent first. It has no limit yet."""
    return (
        select(
            *chunks.c["id", "tenant", "prefix_id", "interactive", "token_count", "batch_limit", "due_at"],
            prefix_work(chunks.c.prefix_id).label("prefix_work"),
            turn_of_flow().label("turn"),
        )
        .where(CLAIMABLE, FREE, *(() if interactive is None else (is_of_class(interactive),)))
        .order_by(chunks.c.due_at, chunks.c.id)
        .with_for_update(skip_locked=True)
    )


def by_flow(rows: Iterable[Row[Any]]) -> dict[str, list[Row[Any]]]:
    """Return chunks of one class by their tenants, in the order in which claims serve their flows."""
    flows: dict[str, list[Row[Any]]] = {}
    for row in sorted(rows, key=_turn):
        flows.setdefault(row.tenant, []).append(row)
    return flows


def _alike_together(tx: Transaction, groups: list[Group]) -> list[Group]:
    """Return groups whose queries begin alike one after another, at the place of the most urgent of them.

    So their common beginning is computed once, even if a worker can't keep all beginnings that wait in memory. A group
    that is due much later than the most urgent one keeps its own place. This order decides nothing about scores.
    """
    long = [rows[0].prefix_id for rows, prefix_tokens in groups if prefix_tokens >= ALIKE_TOKENS.stop]
    if len(groups) < 3 or len(long) < 2:
        return groups
    found = tx.execute(_SAMPLES, {"prefix_ids": long})
    samples = {row.id: row.sample for row in found}
    alike: list[list[Group]] = []
    latest: dict[bytes, list[Group]] = {}  # by sample
    for group in groups:
        head = group[0][0]
        sample = samples.get(head.prefix_id)
        others = None if sample is None else latest.get(sample)
        if others is None or head.due_at > others[0][0][0].due_at + ALIKE_SECONDS:
            others = []
            alike.append(others)
            if sample is not None:
                latest[sample] = others
        others.append(group)
    return [group for together in alike for group in together]


_SAMPLE = func.substr(
    prefixes.c.tokens, 1 + ALIKE_TOKENS.start * TOKEN_BYTES, (ALIKE_TOKENS.stop - ALIKE_TOKENS.start) * TOKEN_BYTES
)
_SAMPLES = select(prefixes.c.id, _SAMPLE.label("sample")).where(is_one_of(prefixes.c.id, "prefix_ids"))


def groups_of(rows: Iterable[Row[Any]]) -> list[Group]:
    """Group chunks by prefix, in the order of each group's first chunk."""
    groups: dict[int, list[Row[Any]]] = {}
    for row in rows:
        groups.setdefault(row.prefix_id, []).append(row)
    return [(rows, rows[0].prefix_work) for rows in groups.values()]
