"""The page goes on by itself after answers that fail or come late, and takes no more memory the longer it is open."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.api.every_route import BATCH, made, upload
from tests.api.page.browser.watching import Tab
from tests.api.serving import RunningApi, StandInWorker
from tests.api.tiny_model import TinyModel

pytestmark = pytest.mark.browser

Served = tuple[RunningApi, StandInWorker]

COUNT_LISTENERS = """
  window.listeners = new Set();
  for (const [name, change] of [["addEventListener", "add"], ["removeEventListener", "delete"]]) {
    const original = EventTarget.prototype[name];
    EventTarget.prototype[name] = function (type, listener, ...rest) {
      if (type === "abort") window.listeners[change](listener);
      return original.call(this, type, listener, ...rest);
    };
  }
"""
"""Keeps what waits for the end of a view."""


def submit(api: RunningApi, model: TinyModel) -> dict[str, Any]:
    labels = [model.token(" yes"), model.token(" no")]
    return api.submit(query="The capital of France is", items=[" Paris", " London"], label_token_ids=labels)


def fail_once(page: Any, address: str) -> None:
    """Answer the next request for an address as a server that stops does."""
    error = {"code": "server_stopping", "message": "the server stops"}
    page.route(re.compile(address), lambda route: route.fulfill(status=503, json={"error": error}), times=1)


def test_the_page_goes_on_by_itself_after_an_outage(shown: Tab, served: Served, model: TinyModel) -> None:
    shown.allowed = ("Failed to load resource",)
    submit(served[0], model)
    page = shown.open("jobs")
    page.get_by_role("navigation", name="Pages of jobs").get_by_text("Jobs 1 to").wait_for()
    page.context.set_offline(True)
    page.get_by_role("alert").get_by_text("The server does not answer.").wait_for()
    page.context.set_offline(False)
    job = submit(served[0], model)
    shown.row(job["id"]).wait_for()
    page.get_by_role("alert").get_by_text("The server does not answer.").wait_for(state="detached")


def test_a_job_is_shown_though_its_first_requests_fail(shown: Tab, served: Served, model: TinyModel) -> None:
    shown.allowed = ("Failed to load resource",)
    job = served[0].wait(submit(served[0], model)["id"])
    fail_once(shown.page, f"{job['id']}$")
    fail_once(shown.page, r"/items\?index=0$")
    fail_once(shown.page, r"/items\?index=0&")
    page = shown.open(f"jobs/{job['id']}")
    page.get_by_role("alert").get_by_text("the server stops").wait_for()
    page.get_by_role("button", name="·yes").click()
    page.locator("th .text", has_text="London").wait_for()
    assert page.get_by_role("alert").get_by_text("the server stops").count() == 0


def test_a_batch_is_shown_though_its_first_request_fails(shown: Tab, served: Served) -> None:
    shown.allowed = ("Failed to load resource",)
    api = served[0]
    batch = made(api.client.post("/v1/batches", json=BATCH | {"input_file_id": made(upload(api.client))}))
    shown.page.clock.install()
    fail_once(shown.page, f"{batch}$")
    page = shown.open(f"batches/{batch}")
    page.get_by_role("alert").get_by_text("the server stops").wait_for()
    page.clock.fast_forward(4_000)
    page.get_by_text("Endpoint").wait_for()
    assert page.get_by_role("alert").get_by_text("the server stops").count() == 0


def test_a_late_answer_does_not_replace_the_page_that_was_opened_meanwhile(shown: Tab, served: Served) -> None:
    api = served[0]
    file_id = made(upload(api.client))
    first, *_ = [made(api.client.post("/v1/batches", json=BATCH | {"input_file_id": file_id})) for _ in range(26)]
    shown.page.clock.install()
    page = shown.open("batches")
    page.get_by_text("Batches 1 to 25").wait_for()
    late: list[Any] = []
    newest = re.compile(r"/v1/batches\?limit=25$")
    page.route(newest, lambda route: late.append(route), times=1)
    with page.expect_request(newest):
        page.clock.fast_forward(4_000)
    page.get_by_role("button", name="Older").click()
    shown.row(first).wait_for()
    with page.expect_response(newest) as answer:
        late[0].continue_()
    answer.value.finished()
    page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    assert shown.row(first).count() == 1


def test_a_view_that_stays_open_holds_nothing_of_its_earlier_waits(shown: Tab) -> None:
    shown.page.add_init_script(COUNT_LISTENERS)
    shown.page.clock.install()
    page = shown.open()
    page.get_by_role("region", name="Live workers").wait_for()
    for _ in range(10):
        with page.expect_response("**/v1/overview"):
            page.clock.fast_forward(2_000)
    assert page.evaluate("window.listeners.size") < 8
