"""Texts of users that try to become part of the page, and pages of others that try to use it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.api.page.browser.watching import REFUSED, Tab
from tests.api.serving import RunningApi, StandInWorker
from tests.api.tiny_model import TinyModel

pytestmark = pytest.mark.browser

Served = tuple[RunningApi, StandInWorker]

HOSTILE = [
    "<img src=x onerror=\"window.taken='img'\">",
    "<script>window.taken='script'</script>",
    "\"><svg onload=window.taken='svg'>",
    "'-alert(1)-'",
    "javascript:window.taken='link'",
    "{{constructor.constructor('window.taken=1')()}} ${window.taken=1}",
    "</td></tr></table><iframe srcdoc='<script>parent.taken=1</script>'></iframe>",
    "<!--lit-part--><?lit$1$>",
    "\u202eright to left\u0000\u001b[31m",
]


def assert_untaken(shown: Tab) -> None:
    """Fail if any of the texts has become more than text."""
    assert shown.page.evaluate("window.taken") is None
    assert shown.page.locator("main :is(iframe, script, svg[onload], img)").count() == 0


def test_hostile_metadata_items_and_queries_are_shown_as_text(shown: Tab, served: Served, model: TinyModel) -> None:
    api = served[0]
    for text in HOSTILE[:-1]:
        labels = [model.token(" yes"), model.token("<")]
        job = api.submit(query=text, items=[text, *HOSTILE], label_token_ids=labels, metadata={text[:60]: text})
        api.wait(job["id"])
        page = shown.open("jobs")
        page.locator("tbody .tag").get_by_text(text, exact=False).first.wait_for()
        page = shown.open(f"jobs/{job['id']}")
        page.locator(".query code").get_by_text(text).wait_for()
        page.locator("th .text").first.wait_for()
        assert shown.texts("th .text")[0] == text
        page.get_by_text("About the job").click()
        page.locator(".facts dd").get_by_text(text).wait_for()
        assert_untaken(shown)


def test_hostile_documents_and_prompts_are_shown_as_text(shown: Tab) -> None:
    shown.allowed = (REFUSED,)
    lines = "\n".join(HOSTILE[:-1])
    page = shown.open("rank")
    page.get_by_label("Query").fill(HOSTILE[0])
    page.get_by_label("Documents").fill(lines)
    page.get_by_role("button", name="Rank").click()
    page.locator(".ranking li").first.wait_for()
    assert sorted(shown.texts(".ranking .document")) == sorted(HOSTILE[:-1])
    assert_untaken(shown)
    page = shown.open("try")
    page.get_by_label("Query", exact=True).fill(HOSTILE[1])
    page.get_by_label("Items").fill(lines)
    page.get_by_label("Labels").fill(lines)
    page.get_by_role("button", name="Score").click()
    page.get_by_role("alert").get_by_text("label_not_single_token").wait_for()  # the error quotes a label
    assert page.locator(".sequences .chip").count() > 50
    assert_untaken(shown)


def test_hostile_addresses_are_no_view(shown: Tab) -> None:
    for text in HOSTILE:
        shown.page.goto("about:blank")
        page = shown.open(f"jobs/{text}")
        page.get_by_text("There is no such view").wait_for()
        assert_untaken(shown)


def test_the_browser_refuses_html_and_scripts_even_if_the_page_asked_for_them(shown: Tab) -> None:
    shown.allowed = (
        "Applying inline",
        "Executing inline",
        "This document requires",
        "Connecting to",
        "Refused",
        "Loading",
        "Fetch API",
    )
    page = shown.open()
    outcome = page.evaluate(
        """() => {
          try { document.body.innerHTML = "<b>x</b>"; } catch (error) { return error.name; }
        }"""
    )
    assert outcome == "TypeError"
    page.evaluate(
        """() => {
          const button = document.createElement("button");
          try { button.setAttribute("onclick", "window.taken = 1"); } catch {}
          document.body.append(button);
          button.click();
        }"""
    )
    assert page.evaluate("window.taken") is None
    refused = page.evaluate("fetch('http://127.0.0.1:9/').then(() => false, () => true)")
    assert refused
    shown.requests = [url for url in shown.requests if not url.startswith("http://127.0.0.1:9/")]


@contextmanager
def site(html: str) -> Iterator[str]:
    """Serve a page of somebody else, and yield its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://localhost:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_pages_of_others_can_neither_frame_the_page_nor_call_the_server(shown: Tab, served: Served) -> None:
    shown.allowed = ("Refused to", "Framing", "Access to fetch", "Failed to load resource")
    url = served[0].url
    script = f"fetch('{url}/v1/jobs').then(r => r.text(), e => 'refused').then(t => document.title = t)"
    with site(f"<iframe src='{url}/'></iframe><script>{script}</script>") as other:
        shown.page.goto(other)
        shown.until("document.title !== ''")
        assert shown.page.title() == "refused"
        framed = shown.page.frames[1]
        assert framed.url.startswith("chrome-error:")
        shown.requests = [request for request in shown.requests if not request.startswith(other)]
