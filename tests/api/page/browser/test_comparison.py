"""Two prompts that are tried side by side, with the same items and labels."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.page.browser.watching import REFUSED, Tab
from tests.api.serving import RunningApi, StandInWorker

pytestmark = pytest.mark.browser

Served = tuple[RunningApi, StandInWorker]
COMPARE = "Compare with another prompt"
SHARED: dict[str, Any] = {"items": [" Paris", ""], "labels": [" yes", " no"]}


def compared(shown: Tab, **first: str) -> tuple[Any, Any, Any]:
    """Open the view, fill in its form, and ask for a second prompt. Return the page and the two prompts."""
    page = shown.open("try")
    prompts = [page.locator("fieldset").nth(n) for n in range(2)]
    prompts[0].get_by_text("Templates").click()
    for name, text in first.items():
        prompts[0].locator(f"[name={name}]").fill(text)
    page.get_by_label("Items").fill("\n".join(SHARED["items"]))
    page.get_by_label("Labels").fill("\n".join(SHARED["labels"]))
    page.get_by_role("button", name=COMPARE).click()
    page.get_by_role("group", name="The second prompt").wait_for()
    return page, prompts[0], prompts[1]


def cells(shown: Tab) -> list[list[str]]:
    return [row.split("\t")[1:] for row in shown.texts("table.scores tbody tr")]


def test_two_prompts_are_scored_beside_each_other(shown: Tab, served: Served) -> None:
    first = {"query": "France", "query_template": "The capital of {query} is", "item_template": "{item}?"}
    page, _, second = compared(shown, **first)
    # The second begins as a copy, of which only this is changed.
    page.wait_for_function("document.activeElement.id === 'query-1'")
    assert second.locator("[name=item_template]").input_value() == "{item}?"
    second.locator("[name=query_template]").fill("I saw {query} and")
    page.get_by_role("button", name="Score").click()
    page.get_by_role("heading", name="Scores").wait_for()

    prompts = [first, first | {"query_template": "I saw {query} and"}]
    one, other = (served[0].score(**prompt, **SHARED) for prompt in prompts)
    headings = [row.split("\t") for row in shown.texts("table.scores thead tr")]
    assert headings[0] == ["Item", "·yes", "·no", "Label mass"]
    assert headings[1] == ["first", "second", "difference"] * 2 + ["first", "second"]
    for n, row in enumerate(cells(shown)):
        for label in range(2):
            a, b = one["scores"][n][label], other["scores"][n][label]
            found = [float(cell) for cell in row[3 * label : 3 * label + 3]]
            assert found[:2] == pytest.approx([a, b], rel=0.05)
            assert found[2] == pytest.approx(b - a, rel=0.05)
            assert row[3 * label + 2].startswith("+") == (b > a)
        masses = [float(cell.split()[0]) for cell in row[6:]]
        assert masses == pytest.approx([one["label_mass"][n], other["label_mass"][n]], rel=0.05)
    for n, prompt in enumerate(prompts):
        text = "".join(page.locator("ol.sequences").nth(n).locator("> li").first.locator(".chip").all_inner_texts())
        assert text.replace("·", " ") == prompt["query_template"].replace("{query}", "France") + " Paris?"


def test_without_the_second_prompt_all_is_as_before(shown: Tab, served: Served) -> None:
    page, _, second = compared(shown, query="The capital of France is")
    second.locator("[name=query]").fill("I saw")
    page.get_by_role("button", name="Score").click()
    page.get_by_role("heading", name="Tokens of the second prompt").wait_for()
    page.get_by_role("heading", name="Scores").wait_for()
    page.get_by_role("button", name="Remove the second prompt").press("Enter")
    page.get_by_role("heading", name="Tokens", exact=True).wait_for()
    page.wait_for_function("document.activeElement.id === 'compare'")
    assert page.locator("fieldset").count() == 1
    answer = served[0].score(query="The capital of France is", **SHARED)
    for row, scores in zip(cells(shown), answer["scores"], strict=True):
        assert len(row) == 3
        assert [float(cell) for cell in row[:2]] == pytest.approx(scores, rel=0.05)
    page.get_by_role("button", name=COMPARE).press("Enter")  # the second is a copy of the first again
    assert page.locator("#query-1").input_value() == "The capital of France is"


def test_an_error_says_of_which_prompt_it_is(shown: Tab) -> None:
    shown.allowed = (REFUSED,)
    page, _, second = compared(shown, query="Paris")
    second.locator("[name=query_template]").fill("no place for the query")
    page.get_by_role("button", name="Score").click()
    page.get_by_role("alert").get_by_text("The second prompt: ").wait_for()
