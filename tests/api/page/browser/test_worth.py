"""What the scores of a job are worth, by true labels that the user of the page pastes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from judgement.metrics import reliability
from judgement.sample import Sample
from scoreline.judging.diagram import reliability_diagram
from tests.api.page.browser.watching import Tab
from tests.api.serving import RunningApi, StandInWorker
from tests.api.tiny_model import TinyModel

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

Served = tuple[RunningApi, StandInWorker]
LABELS = [" yes", " no", " 3"]
ITEMS = 180


def scored(
    api: RunningApi, model: TinyModel, labels: Sequence[str], items: int = ITEMS
) -> tuple[str, npt.NDArray[Any]]:
    """Score a job. Return its id and its scores, [N, K], which add up to less than 1."""
    job = api.submit(
        query="Is it so?",
        items=[f" item {n}" for n in range(items)],
        label_token_ids=[model.token(one) for one in labels],
    )
    api.wait(job["id"])
    lines = api.client.get(f"/v1/jobs/{job['id']}/scores?limit=1000").json()["data"]
    scores = np.array([line["scores"] for line in lines])
    assert scores.shape == (items, len(labels))
    assert scores.sum(axis=1).max() < 0.9
    return job["id"], scores


def opened(shown: Tab, job: str) -> Page:
    """Open a job and the part of its view that asks for true labels."""
    page = shown.open(f"jobs/{job}")
    page.get_by_text("What are the scores worth?").click()
    return page


def tile(page: Page, name: str) -> str:
    """Return the text of a figure, below its name."""
    figure = page.locator(".worth .tile", has=page.get_by_text(name, exact=True))
    return "\n".join(figure.locator("p:not(.name)").all_inner_texts())


def percent(share: float) -> str:
    return f"{round(100 * share, 1):g} %"


def told(count: int, rows: int, unit: str) -> str:
    """Return what a figure should say of so many of some rows."""
    interval = stats.binomtest(count, rows).proportion_ci(0.95, method="wilson")
    share = f"{percent(count / rows)}\n{count} of {rows} {unit}"
    return f"{share}, 95 % interval {percent(interval.low)} to {percent(interval.high)}"


@pytest.mark.parametrize("labels", [LABELS[:2], LABELS])
def test_the_figures_are_those_of_numpy_for_the_same_scores(
    shown: Tab, served: Served, model: TinyModel, labels: list[str]
) -> None:
    job, scores = scored(served[0], model, labels)
    generator = np.random.default_rng(len(labels))
    # Most answers are right, and every seventh item has no true label.
    truth = np.where(generator.random(ITEMS) < 0.6, scores.argmax(axis=1), generator.integers(len(labels), size=ITEMS))
    lines = [
        "" if n % 7 == 3 else labels[place] if n % 2 else f"{labels[place].strip()} " for n, place in enumerate(truth)
    ]
    page = opened(shown, job)
    page.get_by_label("True labels").fill("\n".join(lines) + "\n\n")

    known = np.array([bool(line) for line in lines])
    sample = Sample.of(scores[known], truth[known])
    page.get_by_text("Accuracy", exact=True).wait_for()
    assert tile(page, "Accuracy") == told(int(sample.correct.sum()), sample.rows, "items with a true label")

    expected = reliability(sample)
    page.get_by_text("The diagram as a table").click()
    rows = [row.split("\t") for row in shown.texts("table.bins tbody tr")]
    assert len(rows) == 15
    assert [int(row[2]) for row in rows] == expected.rows.tolist()
    assert [float(row[0]) for row in rows] == pytest.approx(expected.confidence, abs=6e-4)
    assert [float(row[1]) for row in rows] == pytest.approx(expected.observed, abs=6e-4)
    what = "the probability of ·yes" if len(labels) == 2 else "the probability of the answer"
    page.get_by_text(f"If {what} can be believed").wait_for()

    slider = page.get_by_role("slider", name="Act if the most probable label has at least")
    surest = float(np.sort(sample.confidence)[-20])
    for threshold in (0, 0.5, round(surest, 3), 0.999):
        slider.fill(str(threshold))
        acts = sample.confidence >= threshold
        acted, wrong = int(acts.sum()), int((acts & ~sample.correct).sum())
        page.locator("output", has_text=f"{threshold:.3f}").wait_for()
        assert tile(page, "Acted on") == f"{percent(acted / sample.rows)}\n{acted} of {sample.rows} items"
        assert tile(page, "Wrong of these") == (told(wrong, acted, "items") if acted else "–\nno item is acted on")


def numbers(drawing: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", drawing)]


def test_the_diagram_is_that_of_the_report_of_the_command(shown: Tab, served: Served, model: TinyModel) -> None:
    job, scores = scored(served[0], model, LABELS)
    truth = np.arange(ITEMS) % 3
    page = opened(shown, job)
    page.get_by_label("True labels").fill("\n".join(LABELS[place] for place in truth))
    diagram = page.get_by_role("img", name="Reliability of these scores")
    diagram.wait_for()
    found = reliability(Sample.of(scores, truth))
    bins = [
        {"predicted": float(predicted), "observed": float(observed), "rows": int(rows)}
        for predicted, observed, rows in zip(found.confidence, found.observed, found.rows, strict=True)
    ]
    report = reliability_diagram("reliability", "Reliability of these scores", bins)
    for part in ("title", "desc"):
        (text,) = re.findall(rf"<{part} id=\"reliability-\w+\">(.*)</{part}>", report)
        assert diagram.locator(part).text_content() == text
    for part, attributes in (("polyline", "points"), ("circle", "cx cy r"), ("text", "x y"), ("rect", "width height")):
        drawn = re.findall(rf"<{part} [^>]*>", report)
        shapes = diagram.locator(part)
        assert shapes.count() == len(drawn)
        for n, shape in enumerate(drawn):
            for attribute in attributes.split():
                (value,) = re.findall(rf" {attribute}=\"([^\"]*)\"", shape)
                assert numbers(str(shapes.nth(n).get_attribute(attribute))) == pytest.approx(numbers(value), abs=0.11)


def choose(page: Page, path: Path) -> None:
    """Choose a file as a user does, by a click."""
    with page.expect_file_chooser() as choosing:
        page.get_by_label("or a file with them").click()
    choosing.value.set_files(path)


def test_labels_come_from_a_file_that_is_chosen_again_when_it_is_mended(
    shown: Tab, served: Served, model: TinyModel, tmp_path: Path
) -> None:
    job, scores = scored(served[0], model, LABELS, items=3)
    page = opened(shown, job)
    sent = len(shown.requests)
    path = tmp_path / "labels.csv"
    path.write_bytes(b'\xef\xbb\xbfsentiment\r\n"yes"\r\n\r\nno\r\n')
    choose(page, path)
    page.get_by_role("alert").get_by_text("There are 4 lines, and the job has 3 items.").wait_for()
    path.write_bytes(b'\xef\xbb\xbf"yes"\r\n\r\nno\r\n')
    choose(page, path)
    right = int((scores[[0, 2]].argmax(axis=1) == [0, 1]).sum())
    page.get_by_text(f"{right} of 2 items with a true label").wait_for()
    assert page.get_by_label("True labels").input_value() == '"yes"\n\nno\n'
    assert shown.requests[sent:] == []


def test_what_can_not_be_judged_is_said_in_plain_words(shown: Tab, served: Served, model: TinyModel) -> None:
    api = served[0]
    job, _ = scored(api, model, LABELS, items=3)
    page = opened(shown, job)
    for text, message in {
        "yes\n\nmaybe": 'Line 3, "maybe", is none of the labels " yes", " no", " 3". A heading',
        "yes\nYES": 'Line 2, "YES", is none of the labels',
        "yes\nno\nno\nno": "There are 4 lines, and the job has 3 items.",
    }.items():
        page.get_by_label("True labels").fill(text)
        page.get_by_role("alert").get_by_text(message).wait_for()
        assert page.locator(".worth .tile").count() == 0
    page.get_by_label("True labels").fill("yes")
    page.get_by_text("of 1 item with a true label").wait_for()
    assert shown.texts(".worth [role=alert]") == [""]

    alike = api.submit(query="a", items=[" b"], label_token_ids=[model.token(one) for one in ("i", " i", " no")])
    api.wait(alike["id"])
    page = opened(shown, alike["id"])
    page.get_by_label("True labels").fill("i ")
    page.get_by_role("alert").get_by_text('Line 1, "i ", may be 2 labels that differ in blanks alone.').wait_for()
    page.get_by_label("True labels").fill(" i")
    page.get_by_text("of 1 item with a true label").wait_for()


@pytest.mark.parametrize("kind", ["likelihood", "labels of each item", "one label"])
def test_jobs_without_labels_to_choose_among_are_not_judged(
    shown: Tab, served: Served, model: TinyModel, kind: str
) -> None:
    fields: dict[str, dict[str, Any]] = {
        "likelihood": {"kind": "likelihood"},
        "labels of each item": {"label_token_ids": [[70], [71, 72]]},
        "one label": {"label_token_ids": [70]},
    }
    job = served[0].submit(query="a", items=[" b", " c"], **fields[kind])
    with shown.page.expect_response(re.compile("/items")):
        page = shown.open(f"jobs/{job['id']}")
    page.get_by_text("Rows 1 to 2 of 2").wait_for()
    page.locator("th .text").first.wait_for()
    assert page.get_by_text("What are the scores worth?").count() == 0


def test_the_threshold_is_moved_by_the_keyboard(shown: Tab, served: Served, model: TinyModel) -> None:
    job, _ = scored(served[0], model, LABELS, items=20)
    page = shown.open(f"jobs/{job}")
    page.get_by_text("What are the scores worth?").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.insert_text("yes\n" * 20)
    page.locator("output").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "truth-file"
    for _ in range(4):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "threshold":
            break
    for key, value in (("End", "1.000"), ("ArrowLeft", "0.999"), ("Home", "0.000"), ("ArrowRight", "0.001")):
        page.keyboard.press(key)
        page.locator("output", has_text=value).wait_for()
        assert page.evaluate("document.activeElement.id") == "threshold"


def answered_by(page: Page, scores: list[list[float]]) -> None:
    """Have the browser get these scores for a job, whatever the server has."""
    lines = [{"index": n, "scores": row} for n, row in enumerate(scores)]
    events = [
        f"event: scores\nid: {at}\ndata: {json.dumps({'data': lines[at : at + 1000]})}\n\n"
        for at in range(0, len(lines), 1000)
    ]
    events.append('event: end\nid: last\ndata: {"status": "succeeded"}\n\n')
    page.route(
        re.compile("/events"), lambda route: route.fulfill(content_type="text/event-stream", body="".join(events))
    )

    def enlarge(route: Any) -> None:
        answer = route.fetch()
        body = answer.json() | {"progress": {"total_items": len(scores), "scored_items": len(scores)}}
        route.fulfill(response=answer, json=body)

    page.route(re.compile(r"/v1/jobs/\w+$"), enlarge)


def test_scores_that_are_no_probabilities_are_refused(shown: Tab, served: Served, model: TinyModel) -> None:
    job, _ = scored(served[0], model, LABELS[:2], items=1)
    answered_by(shown.page, [[0.5, 0.1], [-1.5, 2.0]])
    page = opened(shown, job)
    page.get_by_label("True labels").fill("yes\nno")
    page.get_by_role("alert").get_by_text("The scores of item 1 are no probabilities").wait_for()


def test_twenty_thousand_items_are_judged_once(shown: Tab, served: Served, model: TinyModel) -> None:
    job, _ = scored(served[0], model, LABELS[:2], items=1)
    generator = np.random.default_rng(0)
    scores = generator.random((20_000, 2)) * 0.4
    truth = np.where(generator.random(20_000) < 0.8, scores.argmax(axis=1), 0)
    answered_by(shown.page, scores.tolist())
    page = opened(shown, job)
    page.get_by_text("of 20,000").wait_for()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate("text => navigator.clipboard.writeText(text)", "\n".join(LABELS[place] for place in truth))
    page.get_by_label("True labels").press("Control+V")
    sample = Sample.of(scores, truth)
    page.get_by_text(f"{sample.correct.sum():,} of 20,000 items with a true label").wait_for()
    page.evaluate(
        """() => {
          window.sorted = 0;
          for (const kind of [Array, Float64Array]) {
            const sort = kind.prototype.sort;
            kind.prototype.sort = function (...how) { window.sorted += this.length; return sort.apply(this, how); };
          }
        }"""
    )
    move(page, "#threshold", 50)
    assert page.evaluate("window.sorted") == 0  # nothing is computed again
    acts = sample.confidence >= 0.75
    page.get_by_label("Act if").fill("0.75")
    page.get_by_text(f"{(acts & ~sample.correct).sum():,} of {acts.sum():,} items").wait_for()


def move(page: Page, selector: str, moves: int) -> None:
    """Move a slider so many times, and wait until each place is drawn."""
    page.evaluate(
        """async ([selector, moves]) => {
          const slider = document.querySelector(selector);
          for (let n = 0; n < moves; n++) {
            slider.value = n / moves;
            slider.dispatchEvent(new Event("input"));
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          }
        }""",
        [selector, moves],
    )
