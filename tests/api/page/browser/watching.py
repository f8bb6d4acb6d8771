"""A tab of a headless browser that takes note of everything that a page must not do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

DEADLINE_MS = 20_000

REFUSED = "Failed to load resource: the server responded with a status of"
"""How the browser's console reports an answer that is an error."""


class Tab:
    """A tab that shows the page of a server.

    allowed: beginnings of lines in the browser's console that the test expects.
    """

    def __init__(self, context: BrowserContext, url: str, *allowed: str) -> None:
        self.url = url
        self.allowed = allowed
        self.complaints: list[str] = []  # of the browser: errors, refusals by the policy, dialogs that nobody asked for
        self.requests: list[str] = []  # the addresses of all requests
        self.page: Page = context.new_page()
        self.page.set_default_timeout(DEADLINE_MS)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def open(self, view: str = "") -> Page:
        """Open a view, and return the tab's page when its heading is there."""
        self.page.goto(f"{self.url}/#/{view}")
        self.page.locator("main h1").wait_for()
        return self.page

    def row(self, text: str) -> Any:
        """Return the row of a table that contains a text."""
        return self.page.locator("tbody tr", has_text=text)

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements that a selector finds."""
        found: list[str] = self.page.locator(selector).all_inner_texts()
        return found

    def until(self, condition: str, argument: Any = None) -> None:
        """Wait until a function of JavaScript returns something true."""
        self.page.wait_for_function(condition, arg=argument)

    def check(self) -> None:
        """Fail if the page did what it must not do."""
        assert not [line for line in self.complaints if not line.startswith(self.allowed)]
        outside = [url for url in self.requests if not url.startswith((f"{self.url}/", f"blob:{self.url}/", "data:"))]
        assert not outside, "a request to elsewhere"


@contextmanager
def tab(browser: Browser, url: str, *allowed: str, **options: Any) -> Iterator[Tab]:
    """Open a tab with a storage of its own, and check it at the end.

    options: those of a context, such as ``color_scheme``.
    """
    context = browser.new_context(**options)
    try:
        opened = Tab(context, url, *allowed)
        yield opened
        opened.check()
    finally:
        context.close()


def violations(page: Page) -> list[Any]:
    """Return what axe finds."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page).response["violations"]
    return [(one["id"], one["help"], [node["html"] for node in one["nodes"][:3]]) for one in found]
