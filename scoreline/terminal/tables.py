"""Format scores as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from rich.table import Table
from rich.text import Text

from scoreline.terminal.printable import printable


def in_one_line(text: str) -> str:
    """Return a text on one line, with a sign in place of each line break."""
    return printable(text.strip().replace("\n", " ⏎ "))


def column_name(label: str | int) -> str:
    """Return the heading of a label's column. A text is quoted, because its spaces matter."""
    return f"“{printable(label)}”" if isinstance(label, str) else str(label)


def score_table(
    items: Sequence[str],
    labels: Sequence[str | int],
    scores: Sequence[Sequence[float]],
    rank_by: int | None = None,
    label_mass: Sequence[float] | None = None,
) -> Table:
    """Return a table with a row per item and a column per label. The largest score of each row is emphasised.

    rank_by: the column to sort the rows by, highest first; None: keep the order of the request. label_mass: has a
    column of its own, if it is known.
    """
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("#", justify="right", style="dim")
    table.add_column("item", overflow="fold")
    for label in labels:
        table.add_column(Text(column_name(label)), justify="right", no_wrap=True)
    if label_mass is not None:
        table.add_column("label mass", justify="right", no_wrap=True, style="dim")
    order = list(range(len(items)))
    if rank_by is not None:
        order.sort(key=lambda n: -scores[n][rank_by])
    for n in order:
        best = max(scores[n]) if len(labels) > 1 else None
        cells = [Text(f"{score:.4f}", style="bold green" if score == best else "") for score in scores[n]]
        mass = [] if label_mass is None else [f"{label_mass[n]:.2g}"]
        table.add_row(str(n), Text(in_one_line(items[n]) or "(empty)"), *cells, *mass)
    return table


def logprob_text(logprob: float | None) -> str:
    """Return a log-probability; None stands for minus infinity."""
    return "-inf" if logprob is None else f"{logprob:.4f}"


def likelihood_table(
    items: Sequence[str],
    logprobs: Sequence[float | None],
    num_tokens: Sequence[int],
    is_greedy: Sequence[bool],
    token_logprobs: Sequence[Sequence[float | None]] | None,
) -> Table:
    """Return a table with a row per item. The most probable item is emphasised.

    token_logprobs: those of each token of each item; None: they are not shown.
    """
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("#", justify="right", style="dim")
    table.add_column("item", overflow="fold")
    for heading in ("logprob", "per token", "tokens", "greedy"):
        table.add_column(heading, justify="right", no_wrap=True)
    if token_logprobs is not None:
        table.add_column("of each token", overflow="fold")
    best = max((logprob for logprob in logprobs if logprob is not None), default=None) if len(items) > 1 else None
    rows = zip(items, logprobs, num_tokens, is_greedy, token_logprobs or repeat(()), strict=False)
    for n, (item, logprob, tokens, greedy, of_tokens) in enumerate(rows):
        style = "bold green" if best is not None and logprob == best else ""
        of_each = None if logprob is None else logprob / max(1, tokens)
        cells = [logprob_text(of_each), str(tokens), "yes" if greedy else "no"]
        cells += [" ".join(map(logprob_text, of_tokens))] if token_logprobs is not None else []
        table.add_row(str(n), Text(in_one_line(item) or "(empty)"), Text(logprob_text(logprob), style=style), *cells)
    return table
