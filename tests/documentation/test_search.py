"""The site that ``make docs`` has built is searched in a browser that opened it from a disk, without internet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from docs.site.pages import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOME = ROOT / ".site" / "html" / "index.html"


@pytest.mark.browser
def test_a_search_finds_a_setting_and_asks_nobody(chromium: Browser) -> None:
    assert HOME.is_file(), "make docs builds the site"
    asked: list[str] = []
    page = chromium.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(HOME.as_uri())
    page.keyboard.press("Control+k")
    page.get_by_placeholder("Search").fill("SCORELINE_MODEL_REVISION")
    page.locator("a[href*='settings.html']", has_text="API and worker must agree on").first.click()
    page.wait_for_url("**/settings.html*")
    assert page.get_by_role("heading", name="Settings").first.is_visible()
    assert {url.partition(":")[0] for url in asked} <= {"file", "data", "about"}
    page.close()
