"""The page of a server that requires keys: it asks for one, and keeps it to itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from jobs.tenancy.keys import Scope, create_key
from jobs.tenancy.tenants import create_tenant
from tests.api.callers.conftest import guarded
from tests.api.callers.guarded import Guarded
from tests.api.every_route import BATCH, made, upload
from tests.api.page.browser.watching import REFUSED, Tab, tab
from tests.api.serving import UNKNOWN_KEY

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["guarded"]

pytestmark = pytest.mark.browser

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is"], "label_token_ids": [70]}


@pytest.fixture
def shown(chromium: Browser, guarded: Guarded) -> Iterator[Tab]:
    """A tab with the page of the server that requires keys."""
    with tab(chromium, guarded.api.url, REFUSED) as opened:
        yield opened


def enter(shown: Tab, key: str) -> None:
    """Enter a key."""
    shown.page.locator("#key-button").click()
    shown.page.get_by_label("Key", exact=True).fill(key)
    shown.page.get_by_role("button", name="Use this key").click()
    shown.page.locator("#key-dialog").wait_for(state="hidden")


def test_nothing_is_shown_without_a_key_and_everything_with_one(shown: Tab, guarded: Guarded) -> None:
    with guarded.api.client_with(guarded.keys["good"]) as client:
        job = client.post("/v1/jobs", json=BODY | {"metadata": {"name": "mine"}}).json()["id"]
    page = shown.open("jobs")
    page.get_by_text("This server wants an API key").wait_for()
    assert page.get_by_text(job).count() == 0
    enter(shown, UNKNOWN_KEY)
    page.get_by_text("This server wants an API key").wait_for()
    enter(shown, guarded.keys["good"])
    shown.row(job).get_by_text("name: mine").wait_for()
    assert page.get_by_text("This server wants an API key").count() == 0
    page.get_by_role("link", name=job).click()
    page.get_by_text("Rows 1 to 1 of 1").wait_for()


def test_a_key_shows_only_what_its_tenant_may_see(shown: Tab, guarded: Guarded) -> None:
    other = guarded.api.submit(**BODY)["id"]  # of the default tenant
    shown.open("jobs")
    enter(shown, guarded.keys["read"])
    shown.page.get_by_role("region", name="Jobs, newest first").or_(shown.page.get_by_text("There are none")).wait_for()
    assert shown.page.get_by_text(other).count() == 0
    shown.open(f"jobs/{other}").get_by_role("alert").get_by_text("there is no such job").wait_for()


def test_batches_are_shown_to_keys_of_their_tenant_alone(shown: Tab, guarded: Guarded) -> None:
    line = json.dumps({"custom_id": "one", "method": "POST", "url": "/v1/score", "body": BODY}).encode()
    with guarded.api.client_with(guarded.keys["good"]) as client:
        batch = made(client.post("/v1/batches", json=BATCH | {"input_file_id": made(upload(client, line))}))
    other = made(
        guarded.api.client.post("/v1/batches", json=BATCH | {"input_file_id": made(upload(guarded.api.client, line))})
    )
    page = shown.open("batches")
    page.get_by_text("This server wants an API key").wait_for()
    enter(shown, guarded.keys["good"])
    page.get_by_role("link", name=batch).wait_for()
    assert page.get_by_text(other).count() == 0
    with page.expect_request(lambda request: request.url.endswith(f"/v1/batches/{batch}")) as looked:
        page.get_by_role("link", name=batch).click()
    assert looked.value.headers["authorization"] == f"Bearer {guarded.keys['good']}"
    page.get_by_text("completed", exact=True).wait_for()
    page.get_by_role("region", name="Jobs of the batch").wait_for()
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save").first.click()
    assert json.loads(saving.value.path().read_text())["custom_id"] == "one"
    shown.open(f"batches/{other}").get_by_role("alert").get_by_text("batch_not_found").wait_for()


def test_a_key_that_may_only_read_is_told_so_where_it_would_score(shown: Tab, guarded: Guarded) -> None:
    page = shown.open("rank")
    enter(shown, guarded.keys["read"])
    page.get_by_role("button", name="Rank").click()
    page.get_by_role("alert").get_by_text("insufficient_scope").wait_for()


def test_a_prompt_is_tried_within_the_rate_of_its_tenant(shown: Tab, guarded: Guarded) -> None:
    create_tenant(guarded.store, "slow", requests_per_second=8)
    page = shown.open("try")
    enter(shown, create_key(guarded.store, "slow", "try", [Scope.SCORE])[0])
    page.get_by_label("Items").fill("\n".join("abcdefgh"))
    page.get_by_role("button", name="Score").click()
    page.get_by_role("heading", name="Scores").wait_for()
    assert page.locator(".sequences > li").count() == 8


def test_the_key_stays_in_the_session_of_its_tab(shown: Tab, guarded: Guarded) -> None:
    key = guarded.keys["good"]
    page = shown.open("jobs")
    enter(shown, key)
    page.get_by_role("button", name="Key ✓").wait_for()
    for view in ("", "jobs", "batches", "rank", "try"):
        shown.open(view)
    assert page.evaluate("Object.values(sessionStorage)") == [key]
    assert page.evaluate("localStorage.length") == 0
    assert page.context.cookies() == []
    assert page.get_by_label("Key", exact=True).input_value() == ""
    assert key not in page.content()
    assert not [url for url in shown.requests if key in url or key[-20:] in url]
    page.reload()
    page.get_by_role("button", name="Key ✓").wait_for()
    another = page.context.new_page()
    another.goto(f"{shown.url}/#/jobs")
    another.get_by_text("This server wants an API key").wait_for()
    shown.open("jobs")
    page.locator("#key-button").click()
    page.get_by_role("button", name="Forget the key").click()
    page.get_by_text("This server wants an API key").wait_for()
    assert page.evaluate("sessionStorage.length") == 0


def test_progress_is_followed_with_the_key_and_ends_with_it(shown: Tab, guarded: Guarded) -> None:
    key = guarded.keys["good"]
    page = shown.open("jobs")
    enter(shown, key)
    with guarded.api.client_with(key) as client:
        job = client.post("/v1/jobs", json=BODY).json()["id"]
    shown.row(job).get_by_text("succeeded").wait_for()
    with page.expect_request(lambda request: "/events" in request.url) as sent:
        shown.open(f"jobs/{job}")
    assert sent.value.headers["authorization"] == f"Bearer {key}"
