"""Everybody can use the page: the rules of axe, the keyboard alone, narrow screens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.api.page.browser.watching import Tab, tab, violations
from tests.api.serving import RunningApi, StandInWorker
from tests.api.tiny_model import TinyModel

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

Served = tuple[RunningApi, StandInWorker]
VIEWS = ("", "jobs", "a job", "a judged job", "batches", "rank", "decide", "try", "two prompts")


def open_view(shown: Tab, view: str, served: Served, model: TinyModel) -> None:
    """Open a view with something to be seen on it."""
    api = served[0]
    labels = [model.token(" yes"), model.token(" no"), 70, 71]
    job = api.submit(
        query="The capital of", items=[f" item {n}" for n in range(30)], label_token_ids=labels, metadata={"a": "b"}
    )
    api.wait(job["id"])
    address = f"jobs/{job['id']}" if view in ("a job", "a judged job") else "try" if view == "two prompts" else view
    page = shown.open(address)
    ready = {
        "a job": "Rows 1 to 30 of 30",
        "a judged job": "What are the scores worth?",
        "batches": "A batch is a file",
        "rank": "the best first",
        "decide": "confidence",
        "try": "tokens are those of the query",
        "two prompts": "Tokens of the second prompt",
    }
    if view == "two prompts":
        page.get_by_role("button", name="Compare with another prompt").click()
        for templates in page.get_by_text("Templates").all():
            templates.click()
    if view in ("rank", "decide", "try", "two prompts"):
        page.locator("form button[type=submit]").first.click()
    if view in ("", "jobs"):
        shown.row(job["id"]).wait_for()
    else:
        page.get_by_text(ready[view]).first.wait_for()
    if view == "two prompts":
        page.get_by_role("heading", name="Scores").wait_for()
    if view == "a judged job":
        page.get_by_text(ready[view]).click()
        page.get_by_label("True labels").fill("yes\nno\n" * 15)
        page.get_by_text("The diagram as a table").click()
        page.get_by_label("Act if").fill("0.3")
        page.locator("table.bins").wait_for()
    if view == "a job":
        page.locator("th .text").first.wait_for()
        # The warmest and the coldest colours, with the text on them.
        page.get_by_label("Colours").select_option("column")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_no_view_breaks_a_rule_of_accessibility(
    chromium: Browser, served: Served, model: TinyModel, view: str, scheme: str
) -> None:
    with tab(chromium, served[0].url, "Failed to load resource", color_scheme=scheme) as shown:
        open_view(shown, view, served, model)
        assert violations(shown.page) == []
        shown.page.locator("#key-button").click()
        assert violations(shown.page) == []


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_cut_off_on_a_narrow_screen(chromium: Browser, served: Served, model: TinyModel, view: str) -> None:
    size = {"width": 320, "height": 640}
    with tab(chromium, served[0].url, "Failed to load resource", viewport=size) as shown:
        open_view(shown, view, served, model)
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= 320


def test_the_page_is_used_by_the_keyboard_alone(shown: Tab, served: Served, model: TinyModel) -> None:
    api = served[0]
    job = api.submit(query="a", items=[" b", " c"], label_token_ids=[70, 71])
    api.wait(job["id"])
    page = shown.open("jobs")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.get_by_role("link", name=job["id"]).focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=job["id"]).wait_for()
    shown.until("document.activeElement.tagName === 'H1'")
    page.get_by_role("button", name="label 0").or_(page.locator("th.number .sort")).first.focus()
    page.keyboard.press("Enter")
    page.locator('th[aria-sort="descending"]').wait_for()
    assert page.evaluate("document.activeElement.className") == "sort"
    page.locator("#key-button").focus()
    page.keyboard.press("Enter")
    page.locator("#key-dialog").wait_for(state="visible")
    page.keyboard.press("Escape")
    page.locator("#key-dialog").wait_for(state="hidden")
    assert page.evaluate("document.activeElement.id") == "key-button"
