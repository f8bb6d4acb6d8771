"""The pages of the site: which file becomes which page, and what is changed on the way.

Files are written for readers of the repository, who see them as GitHub shows them. On the site, a link leads to the
page of its file. A file that is no page is copied, so that the site needs nothing but itself.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.site.links import Link, anchors_of, links_of, read_link, with_links
from docs.site.reference import GENERATED

ROOT = Path(__file__).parents[2]
CONFIGURATION = Path(__file__).with_name("zensical.toml")
EXTRAS = {"iframe-worker.js": "javascripts", "site.css": "styles"}
"""Files beside this one that each page of the site loads, and their folders."""
COPIED = "files"
"""The folder of the site with the files that pages link to and that are no pages."""

_ELSEWHERE = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "demonstration/README.md": "demonstration.md",
    "examples/README.md": "examples.md",
    "docs/site/home.md": "index.md",
}
_LIST_ITEM = re.compile(r"( *)([-*]|\d+\.) +")


def sources() -> dict[str, str]:
    """Return the page of each Markdown file, by its path in the repository."""
    docs = ROOT / "docs"
    found = [file.relative_to(docs).as_posix() for file in sorted([*docs.glob("*.md"), *docs.glob("log/*.md")])]
    return _ELSEWHERE | {f"docs/{name}": name for name in found}


def pages() -> dict[str, str]:
    """Return the page of each Markdown file and of each generated part of the reference."""
    return sources() | {f"docs/reference/{name}.md": f"reference/{name}.md" for name in GENERATED}


def texts() -> dict[str, str]:
    """Return the text of each Markdown file, and of each generated page, by its path in the repository."""
    written = {path: (ROOT / path).read_text(encoding="utf-8") for path in sources()}
    return written | {f"docs/reference/{name}.md": make() for name, make in GENERATED.items()}


def navigation() -> dict[str, str]:
    """Return the heading, such as "Tutorial", under which the navigation has each page."""
    with CONFIGURATION.open("rb") as file:
        entries = tomllib.load(file)["project"]["nav"]
    return {page: heading for entry in entries for heading, below in entry.items() for page in _pages_in(below)}


def _pages_in(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for below in entry.values():
            yield from _pages_in(below)
    else:
        for one in entry:
            yield from _pages_in(one)


def target_of(path: str, link: Link) -> str:
    """Return the path in the repository to which a link in the file at ``path`` leads."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link.path)) if link.path else path


def broken_links(texts: Mapping[str, str]) -> list[str]:
    """Return a line for each link that leads to no file or to no heading. Links out of the repository are not tried."""
    anchors = {path: anchors_of(text) for path, text in texts.items()}
    broken = []
    for path, text in texts.items():
        for link in links_of(text):
            target = target_of(path, link)
            if link.leaves:
                continue
            if target not in texts and not (ROOT / target).is_file():
                broken.append(f"{path}: there is no file {target}")
            elif link.anchor and link.anchor not in anchors.get(target, ()):
                broken.append(f"{path}: {target} has no heading #{link.anchor}")
    return broken


def write_pages(folder: Path, all_texts: Mapping[str, str]) -> None:
    """Write the configuration and the pages of the site into an empty folder. Raises ValueError for broken links."""
    if broken := broken_links(all_texts):
        raise ValueError("\n".join(broken))
    shutil.copy(CONFIGURATION, folder)
    for name, place in EXTRAS.items():
        (folder / "pages" / place).mkdir(parents=True)
        shutil.copy(CONFIGURATION.with_name(name), folder / "pages" / place)
    for path, text in all_texts.items():
        page, copied = page_of(path, text)
        target = folder / "pages" / pages()[path]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page, encoding="utf-8")
        for source, copy in copied.items():
            (folder / "pages" / copy).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, folder / "pages" / copy)


def page_of(path: str, text: str) -> tuple[str, dict[str, str]]:
    """Return the page of a file, and the copies of other files that it needs: from where, and to where."""
    all_pages, copied = pages(), {}
    folder = posixpath.dirname(all_pages[path])

    def on_the_site(target: str) -> str:
        link = read_link(target)
        if link.leaves or not link.path:
            return target
        source = target_of(path, link)
        place = all_pages.get(source)
        if place is None:
            place = copied[source] = f"{COPIED}/{source}"
        return posixpath.relpath(place, folder or ".") + (f"#{link.anchor}" if link.anchor else "")

    return _with_lists_of_four(with_links(text, on_the_site)), copied


def _with_lists_of_four(text: str) -> str:
    """Return a Markdown text whose lists Python-Markdown reads as GitHub does.

    What belongs to an item is indented by four spaces. GitHub wants as many as the mark of the item is wide. An item
    that has several paragraphs ends with a blank line.
    """
    lines: list[str] = []
    wide = 0  # the indentation of the items of the present list; 0 outside of lists
    several = False  # whether the present item has a blank line
    fence = 0  # by how much the lines of the present block of code are moved; 0 outside of them
    for line in text.splitlines(keepends=True):
        spaces = len(line) - len(line.lstrip(" "))
        moved = spaces // wide * 4 + spaces % wide - spaces if wide else 0
        if line.lstrip().startswith("```"):
            fence = 0 if fence else moved
        elif fence:
            moved = fence if line.strip() else 0
        elif (item := _LIST_ITEM.match(line)) is not None and not item[1]:
            lines += ["\n"] if several and lines[-1].strip() else []
            wide, several = len(item[0]), False
        elif not line.strip():
            several = wide > 0
        elif not spaces:
            wide, several = 0, False
        lines.append(" " * moved + line)
    return "".join(lines)
