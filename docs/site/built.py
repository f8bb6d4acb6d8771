"""Check the site that was built: ``python -m docs.site.built FOLDER``.

Every link leads to a file of the site, and to a place that is there. Nothing is loaded from elsewhere. The search has
its index in a script, because a page that was opened from a disk may load nothing else.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
_ADDRESS_IN_STYLE = re.compile(r"url\(\s*['\"]?(?P<address>[^'\")]+)|@import\s+['\"](?P<imported>[^'\"]+)")
NOT_FOUND = "404.html"
"""The page of a server for addresses that it does not have: its links begin at the root of the server."""


class Page(HTMLParser):
    """What a page links to, what it loads, and which places it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        given = {name: value for name, value in attrs if value is not None}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if (attribute := _LOADED.get(tag)) in given:
            self.loaded.append(given[attribute])


def mistakes(site: Path) -> list[str]:
    """Return a line for each broken link, each thing that is loaded from elsewhere, and for a search without index."""
    pages = {
        file.relative_to(site).as_posix(): Page(file.read_text(encoding="utf-8"))
        for file in sorted(site.rglob("*.html"))
    }
    found = [line for name, page in pages.items() if name != NOT_FOUND for line in _of_page(site, name, pages)]
    found += [
        f"{style.relative_to(site)}: {address} is loaded from elsewhere"
        for style in sorted(site.rglob("*.css"))
        for address in _addresses(style.read_text(encoding="utf-8"))
        if urlsplit(address).netloc
    ]
    if not (site / "search.js").is_file():
        found.append("search.js is missing: the search would need a server")
    return found


def _of_page(site: Path, name: str, pages: dict[str, Page]) -> Iterator[str]:
    page = pages[name]
    for address in page.loaded:
        if urlsplit(address).netloc:
            yield f"{name}: {address} is loaded from elsewhere"
    for address in [*page.links, *page.loaded]:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            continue
        target = (
            posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path))) if parts.path else name
        )
        target = "index.html" if target == "." else target
        if not (site / target).is_file():
            yield f"{name}: there is no {target}"
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places:
            yield f"{name}: {target} has no place #{parts.fragment}"


def _addresses(style: str) -> Iterator[str]:
    for found in _ADDRESS_IN_STYLE.finditer(style):
        yield found["address"] or found["imported"]


def main() -> None:
    """Print what is wrong with a site, and end with 1 if anything is."""
    if found := mistakes(Path(sys.argv[1])):
        sys.exit("The site is not right:\n" + "\n".join(found))


if __name__ == "__main__":
    main()
