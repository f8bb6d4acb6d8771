"""The site has every page, its links lead somewhere, and what would break it is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.site.built import mistakes
from docs.site.links import anchors_of, code_spans_of, links_of
from docs.site.pages import ROOT, broken_links, navigation, page_of, pages, texts, write_pages

KINDS = {"Scoreline", "Tutorial", "How-to", "Explanation", "Reference"}


@pytest.fixture(scope="module")
def all_texts() -> dict[str, str]:
    """All pages, those that are made of the code among them."""
    return texts()


def test_every_page_is_in_the_navigation_under_a_kind() -> None:
    found = navigation()
    assert set(found) == set(pages().values())
    assert set(found.values()) == KINDS


def test_the_home_page_leads_to_every_page(all_texts: dict[str, str]) -> None:
    page, _ = page_of("docs/site/home.md", all_texts["docs/site/home.md"])
    assert {link.path for link in links_of(page)} >= set(pages().values()) - {"index.md"}


def test_no_link_is_broken(all_texts: dict[str, str]) -> None:
    assert broken_links(all_texts) == []


def test_broken_links_are_found() -> None:
    page = "# Here\n[a](#here) [b](#there) [c](gone.md) [d](../README.md#no-such-heading) [e](https://example.org/#x)\n"
    assert [line.partition(": ")[2] for line in broken_links({"docs/a.md": page, "README.md": "# Scoreline"})] == [
        "docs/a.md has no heading #there",
        "there is no file docs/gone.md",
        "README.md has no heading #no-such-heading",
    ]


def test_what_stands_in_code_is_no_link_and_no_heading() -> None:
    page = "# One `two`\n`[a](b.md)`\n```\n# no heading\n[c](d.md)\n```\n[e](f.md#g)\n## One two\n"
    assert [(link.path, link.anchor) for link in links_of(page)] == [("f.md", "g")]
    assert anchors_of(page) == {"one-two", "one-two-1"}
    assert list(code_spans_of(page)) == ["two", "[a](b.md)"]


def test_links_lead_to_pages_and_to_copies_of_files() -> None:
    page, copied = page_of(
        "README.md", "[a](docs/client.md#jobs) [b](LICENSE) `[c](docs/client.md)` [d](#here) [e](docs/site/home.md)"
    )
    assert page == "[a](client.md#jobs) [b](files/LICENSE) `[c](docs/client.md)` [d](#here) [e](index.md)"
    assert copied == {"LICENSE": "files/LICENSE"}


def test_lists_are_written_as_the_builder_reads_them() -> None:
    given = "- one\n  more\n\n  ```\n  a:\n    b\n\n  ```\n- two\n- three\n\n1. four\n   more\n\ntext\n  free\n- five\n"
    page, _ = page_of("README.md", given)
    first, *rest = page.split("\n\n1. ")
    assert first == "- one\n    more\n\n    ```\n    a:\n      b\n\n    ```\n\n- two\n- three"
    assert rest == ["four\n    more\n\ntext\n  free\n- five\n"]


def test_the_pages_are_written_with_all_that_they_need(all_texts: dict[str, str], tmp_path: Path) -> None:
    write_pages(tmp_path, all_texts)
    folder = tmp_path / "pages"
    written = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    assert set(pages().values()) <= written
    assert "files/docs/pictures/page-overview.png" in written
    assert (tmp_path / "zensical.toml").is_file()
    assert str(ROOT) not in (tmp_path / "pages" / "reference" / "command.md").read_text(encoding="utf-8")


RIGHT = '<h1 id="top">A</h1><a href="b.html#there">b</a><a href="https://example.org">c</a><script src="a.js"></script>'


def site(folder: Path, **files: str) -> Path:
    given = {"index.html": RIGHT, "b.html": '<p id="there">', "a.js": "", "search.js": ""}
    for name, text in (given | files).items():
        (folder / name).write_text(text)
    return folder


def test_a_site_whose_links_are_right_has_no_mistakes(tmp_path: Path) -> None:
    assert mistakes(site(tmp_path)) == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("b.html", "", "index.html: b.html has no place #there"),
        ("c.html", '<a href="d.html">', "c.html: there is no d.html"),
        ("c.html", '<img src="d.png">', "c.html: there is no d.png"),
        (
            "c.html",
            '<script src="https://example.org/a.js">',
            "c.html: https://example.org/a.js is loaded from elsewhere",
        ),
        ("c.css", "a {b: url(//example.org/c.woff2)}", "c.css: //example.org/c.woff2 is loaded from elsewhere"),
    ],
)
def test_mistakes_of_a_site_are_found(tmp_path: Path, name: str, text: str, said: str) -> None:
    assert mistakes(site(tmp_path, **{name: text})) == [said]


def test_a_search_that_would_need_a_server_is_found(tmp_path: Path) -> None:
    (site(tmp_path) / "search.js").unlink()
    assert mistakes(tmp_path) == ["search.js is missing: the search would need a server"]
