"""The page of a report, opened from its file in a browser that has no network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.judgement.made_up import WORLDS
from scoreline.judging.page import report_page
from tests.api.page.browser.watching import violations
from tests.scoreline.judging.files import judge, labelled_file

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

REPORTS = {
    "two labels": ("two labels", "yes,no"),
    "five labels": ("five labels", "a,b,c,d,e"),
    "five labels in several orders": ("five labels", "a,b,c,d,e"),
}


@contextmanager
def opened(chromium: Browser, file: Path, width: int = 1280) -> Iterator[Page]:
    """Open a file in a tab without network. The page may ask for nothing but itself, and complain of nothing."""
    context = chromium.new_context(offline=True, viewport={"width": width, "height": 800})
    page, asked, complaints = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(file.as_uri())
    yield page
    assert asked == [file.as_uri()]
    assert complaints == []
    context.close()


@pytest.fixture(params=REPORTS)
def report(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    world, scores = REPORTS[request.param]
    source, page = labelled_file(tmp_path / "in.csv", world=WORLDS[world]), tmp_path / "report.html"
    written = ("--html", page, "--json", tmp_path / "report.json")
    outcome = judge("evaluate", source, "--truth", "truth", "--scores", scores, *written)
    assert outcome.returncode == 0, outcome.stderr
    if request.param.endswith("orders"):
        found = json.loads((tmp_path / "report.json").read_text())
        found["systems"][0]["order_flips"] = {"rows": 0.7, "orders": 0.3}  # as of questions that a service was asked
        page.write_text(report_page(found), encoding="utf-8")
        assert "In 70.0% of the rows, an order of the options" in page.read_text()
    return page


def test_a_report_breaks_no_rule_of_accessibility_and_loads_nothing(chromium: Browser, report: Path) -> None:
    with opened(chromium, report) as page:
        assert violations(page) == []
        page.locator("summary").first.focus()
        page.keyboard.press("Enter")
        page.get_by_role("table", name="Reliability").wait_for()
        assert violations(page) == []


def test_nothing_of_a_report_is_cut_off_on_a_narrow_screen(chromium: Browser, report: Path) -> None:
    with opened(chromium, report, width=360) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
