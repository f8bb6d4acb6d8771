"""Tables show what a user has given as it is."""

from __future__ import annotations

import io

from rich.console import Console

from scoreline.terminal.tables import likelihood_table, score_table


def shown(table: object) -> str:
    said = io.StringIO()
    Console(file=said, width=100).print(table)
    return said.getvalue()


def test_labels_and_items_are_no_markup() -> None:
    said = shown(score_table(["[b]item[/b]"], ["[yes]", "[/INST]"], [[0.25, 0.75]]))
    assert all(text in said for text in ("“[yes]”", "“[/INST]”", "[b]item[/b]", "0.7500"))
    assert "[/item]" in shown(likelihood_table(["[/item]"], [-1.0], [1], [True], None))
