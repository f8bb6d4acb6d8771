"""A file that is separated or quoted in another way is refused with the reason and with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from scoreline.exit_codes import CommandError
from scoreline.runs.formats import Format, Unreadable
from scoreline.runs.reading import open_source
from tests.scoreline.runs.files import execute, plan_of

UNUSED = "http://127.0.0.1:1"
"""No service is asked before the first line of a file is checked."""


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "query;item\n", "no column 'query'; it has 'query;item': its values seem to have semicolons between"),
        ("a.csv", "query\titem\n", "have tabs between them; give --input-format tsv"),
        ("a.tsv", "query,item\n", "have commas between them; give --input-format csv"),
        ("a.tsv", "id,'query',item\n", "have commas between them"),
        ("a.csv", "query|item\n", "have vertical bars between them"),
        ("a.csv", 'query;"item, in English"\n', "have semicolons between them"),
        ("a.csv", '"query";"item"\n', "line 1: its values seem to have semicolons between them; write it with commas"),
        ("a.csv", "query, item\n", "it has 'query', ' item': write the name as it stands in the file"),
        ("a.csv", "“query”,item\n", "every blank and quote: --query-column '“query”'"),
        ("a.csv", "Query,item\n", "--query-column 'Query'"),
        ("a.csv", "text,item\n", "a.csv has no column 'query'; it has 'text', 'item'"),
    ],
)
def test_an_error_about_a_column_says_which_mistake_it_probably_is(
    tmp_path: Path, name: str, content: str, says: str
) -> None:
    assert says in refused(tmp_path / name, content)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('a,b\n"a,b\nc,d\n', "line 3: a value begins with a quote, and no quote ends it: within a value in quotes"),
        ('a,"a "good" room"\n', "line 2: a value goes on behind the quote that ends it: within a value in quotes"),
        ("a,b\rc,d\r", "line 2: it has carriage returns within a value"),
    ],
)
def test_an_error_about_quotes_names_the_line_and_what_to_write(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "in.csv").write_text("query,item\n" + content, newline="")
    source = open_source(str(tmp_path / "in.csv"), Format.CSV)
    unreadable = [f"line {n}: {row.reason}" for n, row in source if isinstance(row, Unreadable)]
    source.close()
    assert len(unreadable) == 1
    assert says in unreadable[0]


def refused(path: Path, content: str) -> str:
    """Return what a run says about a file."""
    path.write_text(content)
    with pytest.raises(CommandError) as error:
        execute(plan_of(path, path.with_name("out.csv")), UNUSED)
    return str(error.value)
