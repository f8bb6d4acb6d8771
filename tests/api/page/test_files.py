"""The files of the page: who gets them, what they may do in a browser, and what they consist of."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest

from api.routes.deployment.page import FOLDER, HEADERS, SERVED
from tests.api.serving import RunningApi

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
OWN_SCRIPTS = sorted(path for path in FOLDER.glob("*.js") if path.name != "lit-html.js")
DOCUMENT = Path(__file__).parents[3] / "docs" / "page.md"


@pytest.mark.parametrize(
    ("accept", "gets_page"),
    [
        (BROWSER, True),
        ("text/html", True),
        ("TEXT/HTML;q=0.5", True),
        ("application/json;q=0.4, text/html;q=0.5", True),
        ("application/json, text/html;q=0.9", False),
        ("application/json, text/html", False),
        ("text/html;q=0", False),
        ("text/html;q=nan", False),
        ("text/html;q=1e9", False),
        ("text/htmlx, text/*", False),
        ("*/*", False),
        ("", False),
        (";;,,;q=", False),
    ],
)
def test_who_asks_for_html_gets_the_page_and_everybody_else_json(api: RunningApi, accept: str, gets_page: bool) -> None:
    with api.client_with(None) as client:
        answer = client.get("/", headers={"accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html" if gets_page else "application/json")
    assert "Accept" in answer.headers["vary"]


def test_every_file_of_the_page_needs_no_key_and_forbids_what_it_does_not_need(api: RunningApi) -> None:
    with api.client_with(None) as client:
        answers = [client.get("/", headers={"accept": BROWSER}), *(client.get(f"/page/{name}") for name in SERVED)]
    for answer in answers:
        assert answer.status_code == 200
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
    policy = dict(part.partition(" ")[::2] for part in HEADERS["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"


def test_a_browser_that_has_a_file_gets_it_only_if_it_has_changed(api: RunningApi) -> None:
    first = api.client.get("/page/main.js")
    again = api.client.get("/page/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == first.headers["content-security-policy"]


def test_files_are_compressed_for_clients_that_take_them_so(api: RunningApi) -> None:
    sent = {}
    for coding in ("gzip", "identity"):
        answer = api.client.get("/page/page.css", headers={"accept-encoding": coding})
        assert "Accept-Encoding" in answer.headers["vary"]
        sent[coding] = int(answer.headers.get("content-length", answer.num_bytes_downloaded))
        assert answer.text == (FOLDER / "page.css").read_text(encoding="utf-8")
    assert sent["gzip"] < 0.5 * sent["identity"]


def test_only_the_files_of_the_page_are_served(api: RunningApi) -> None:
    for name in (
        "vendored.toml",
        "lit-html.LICENSE.txt",
        "..%2Fservice.py",
        "%2Fetc%2Fpasswd",
        "no.js",
        "start.html%00",
    ):
        answer = api.client.get(f"/page/{name}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), name


def test_the_page_names_only_files_that_this_server_has() -> None:
    start = (FOLDER / "start.html").read_text(encoding="utf-8")
    named = set(re.findall(r"""(?:src|href)="([^"]+)""", start))
    assert named <= {f"/page/{name}" for name in SERVED} | {"/docs"}
    for script in OWN_SCRIPTS:
        for imported in re.findall(r"""\bfrom "([^"]+)";""", script.read_text(encoding="utf-8")):
            assert imported.removeprefix("./") in SERVED, (script.name, imported)
    for name in SERVED - {"lit-html.js", "icon.svg"}:
        assert not re.search(r"(https?:)?//[a-z]", (FOLDER / name).read_text(encoding="utf-8")), name


def test_no_script_or_style_stands_in_the_html() -> None:
    start = (FOLDER / "start.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon[a-z]+=", start)


def test_the_scripts_have_no_way_to_turn_text_into_html_or_code() -> None:
    assert len(OWN_SCRIPTS) > 5
    of_html = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|unsafe|srcdoc|DOMParser"
    ways = of_html + r"|\beval\b|new Function|javascript:"
    for script in OWN_SCRIPTS:
        assert not re.search(ways, script.read_text(encoding="utf-8")), script.name


def test_the_key_is_kept_by_the_session_of_the_tab_alone() -> None:
    for script in OWN_SCRIPTS:
        assert not re.search(r"localStorage|document\.cookie|indexedDB", script.read_text(encoding="utf-8")), (
            script.name
        )


def test_the_library_is_what_its_authors_published_with_its_licence() -> None:
    (library,) = tomllib.loads((FOLDER / "vendored.toml").read_text(encoding="utf-8")).items()
    name, record = library
    content = (FOLDER / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == record["sha256"]
    assert record["version"].encode() in content
    assert "BSD 3-Clause" in (FOLDER / "lit-html.LICENSE.txt").read_text(encoding="utf-8")
    assert record["version"] in DOCUMENT.read_text(encoding="utf-8")


def test_the_page_is_small() -> None:
    assert sum((FOLDER / name).stat().st_size for name in SERVED) < 100_000
