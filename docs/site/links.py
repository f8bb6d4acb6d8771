"""Links and headings of Markdown files, as GitHub reads them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^(?P<indent> *)(?P<marks>```+)[^\n]*\n.*?^ *(?P=marks) *$", re.DOTALL | re.MULTILINE)
_CODE_OR_LINK = re.compile(
    r"(?P<code>(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))|\]\((?P<target>[^()\s]+)\)", re.DOTALL
)
_HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.MULTILINE)
_LINKED_TEXT = re.compile(r"!?\[([^\]]*)\]\([^()\s]+\)")


@dataclass(frozen=True, slots=True)
class Link:
    """Where a link leads: a path, which may be empty, and a heading, which may be empty."""

    path: str
    anchor: str

    @property
    def leaves(self) -> bool:
        """Whether it leads out of the repository."""
        return bool(re.match(r"[a-z]+:", self.path))


def read_link(target: str) -> Link:
    """Return the link that is written as ``path#anchor``."""
    path, _, anchor = target.partition("#")
    return Link(path, anchor)


def outside_fences(text: str) -> str:
    """Return a text without its blocks of code."""
    return _FENCE.sub("", text)


def links_of(text: str) -> Iterator[Link]:
    """Yield the links and pictures of a Markdown text, in their order."""
    for found in _CODE_OR_LINK.finditer(outside_fences(text)):
        if found["target"]:
            yield read_link(found["target"])


def code_spans_of(text: str) -> Iterator[str]:
    """Yield what stands between backticks in a Markdown text."""
    for found in _CODE_OR_LINK.finditer(outside_fences(text)):
        if found["code"]:
            yield found["code"].strip("`").strip()


def with_links(text: str, change: Callable[[str], str]) -> str:
    """Return a Markdown text whose links lead to what ``change`` makes of their targets."""

    def changed(found: re.Match[str]) -> str:
        return f"]({change(found['target'])})" if found["target"] else found[0]

    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_CODE_OR_LINK.sub(changed, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _CODE_OR_LINK.sub(changed, text[end:])])


def headings_of(text: str) -> list[str]:
    """Return the headings of a Markdown text, without the marks of links and code."""
    return [_LINKED_TEXT.sub(r"\1", heading).replace("`", "") for heading in _HEADING.findall(outside_fences(text))]


def anchors_of(text: str) -> set[str]:
    """Return the anchors of the headings of a Markdown text. One that is there already gets a number."""
    anchors: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in headings_of(text):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return anchors
