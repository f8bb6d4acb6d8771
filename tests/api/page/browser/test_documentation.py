"""``/docs`` in a browser that reaches nothing but this server."""

from __future__ import annotations

import pytest

from tests.api.page.browser.watching import Tab

pytestmark = pytest.mark.browser


def test_the_documentation_is_shown_and_tried_without_internet(shown: Tab) -> None:
    page = shown.page
    page.goto(f"{shown.url}/docs")
    page.get_by_role("heading", name="Scoreline").wait_for()
    for path in ("/v1/score", "/v1/jobs", "/v1/overview", "/livez"):
        page.locator(f'.opblock-summary-path[data-path="{path}"]').first.wait_for()
    page.locator('.opblock-summary-path[data-path="/livez"]').click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    page.locator(".live-responses-table .response-col_status", has_text="200").first.wait_for()


def test_no_other_script_runs_in_the_documentation(shown: Tab) -> None:
    shown.allowed = ("Executing inline", "Refused")
    shown.page.goto(f"{shown.url}/docs")
    shown.page.get_by_role("heading", name="Scoreline").wait_for()
    shown.page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.taken = 1";
          document.body.append(script);
        }"""
    )
    assert shown.page.evaluate("window.taken") is None
