"""Draw scores and likelihoods as rows of bars in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from scoreline.terminal.tables import column_name, in_one_line, logprob_text

WIDTH = 24
"""Characters of the longest bar."""

_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(share: float, width: int = WIDTH) -> str:
    """Return a bar for a share from 0 to 1, to an eighth of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def score_chart(items: Sequence[str], labels: Sequence[str | int], scores: Sequence[Sequence[float]]) -> Table:
    """Return a chart with a bar for each item and label. The longest bar is the highest of all scores."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("#", justify="right", style="dim")
    table.add_column("item", overflow="fold", max_width=40)
    table.add_column("label", no_wrap=True)
    table.add_column("bar", no_wrap=True, width=WIDTH)
    table.add_column("score", justify="right", no_wrap=True)
    highest = max((score for row in scores for score in row), default=0.0) or 1.0
    for n, (item, row) in enumerate(zip(items, scores, strict=True)):
        for m, score in enumerate(row):
            style = "bold green" if len(row) > 1 and score == max(row) else ""
            number, text = (str(n), in_one_line(item) or "(empty)") if m == 0 else ("", "")
            drawn = Text(bar(score / highest), style=style)
            table.add_row(number, Text(text), Text(column_name(labels[m])), drawn, Text(f"{score:.4f}", style=style))
    return table


def likelihood_chart(items: Sequence[str], logprobs: Sequence[float | None]) -> Table:
    """Return a chart with a bar for each item: its probability as a share of that of the most probable one."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("#", justify="right", style="dim")
    table.add_column("item", overflow="fold", max_width=40)
    table.add_column("bar", no_wrap=True, width=WIDTH)
    table.add_column("logprob", justify="right", no_wrap=True)
    best = max((logprob for logprob in logprobs if logprob is not None), default=0.0)
    for n, (item, logprob) in enumerate(zip(items, logprobs, strict=True)):
        style = "bold green" if len(items) > 1 and logprob == best else ""
        drawn = Text(bar(0.0 if logprob is None else math.exp(logprob - best)), style=style)
        table.add_row(str(n), Text(in_one_line(item) or "(empty)"), drawn, Text(logprob_text(logprob), style=style))
    return table
