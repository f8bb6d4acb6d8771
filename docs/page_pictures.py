"""Make the pictures of page.md: ``make page-pictures``.

It starts ``scoreline up`` with the model of the demonstration, gives it work, and takes pictures with headless
Chromium.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2
from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(__file__).parent / "pictures"
SIZE = {"width": 1160, "height": 720}
QUERY = "how do I care for indoor plants?"
SUBJECTS = (
    "The fern",
    "The train",
    "An orchid",
    "The tea",
    "A cactus",
    "The bus",
    "The bridge",
    "Basil",
    "The library",
)
NEWS = (
    "needs water once a week and no direct sun.",
    "leaves at nine and stops twice.",
    "likes moist soil and warm rooms.",
    "was closed for repairs in spring.",
)


def jobs() -> list[dict[str, Any]]:
    """Return the bodies of jobs for the pictures."""
    items = [
        f"Document: {subject} {news} This is note {n}.\nRelevant:"
        for n in range(140)
        for subject in SUBJECTS
        for news in NEWS
    ]
    body = {"query": f"Query: {QUERY}\n", "labels": [" yes", " no"], "apply_softmax": True}
    wanted = (("plants", 5_000, "bulk"), ("orchids", 36, "normal"), ("winter", 180, "normal"), ("all", 1_000, "bulk"))
    return [
        body | {"items": items[:count], "metadata": {"run": name}, "priority": priority}
        for name, count, priority in wanted
    ]


def wait(what: str, condition: Any) -> Any:
    """Return what a condition gives, once it gives something."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if found := condition():
                return found
        except httpx2.HTTPError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"never: {what}")


def take(browser: Browser, url: str, job: str) -> None:
    """Take all pictures."""
    pages = {name: browser.new_page(color_scheme=name, viewport=SIZE) for name in ("light", "dark")}
    overview = pages["light"]
    overview.goto(f"{url}/#/")
    overview.locator("tbody tr").nth(4).wait_for()
    overview.wait_for_timeout(7_000)  # so that the lines of the last minutes are to be seen
    overview.screenshot(path=FOLDER / "page-overview.png")
    for scheme, page in pages.items():
        page.goto(f"{url}/#/jobs/{job}")
        page.get_by_text("of 5,000").wait_for(timeout=120_000)
        page.get_by_role("button", name="·yes").click()
        page.get_by_role("button", name="Next").click()
        page.get_by_text("Rows 101").wait_for()
        page.wait_for_function("document.querySelectorAll('th .text').length === 100")
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=FOLDER / f"page-scores-{scheme}.png")
    prompt = pages["dark"]
    prompt.goto(f"{url}/#/try")
    prompt.get_by_role("button", name="Score").click()
    prompt.get_by_role("heading", name="Tokens").wait_for()
    prompt.get_by_role("heading", name="Scores").wait_for()
    prompt.screenshot(path=FOLDER / "page-prompt-dark.png", full_page=True)


def main() -> None:
    """Start a service, and take the pictures."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as data, httpx2.Client(base_url=url, timeout=60) as client:
        command = [Path(sys.executable).with_name("scoreline"), "up", "--port", str(port), "--data", data]
        service = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait("a live worker", lambda: client.get("/v1/overview").json().get("workers"))
            ids = [client.post("/v1/jobs", json=body).json()["id"] for body in jobs()]
            with sync_playwright() as driver:
                arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
                browser = driver.chromium.launch(executable_path=program, args=arguments)
                take(browser, url, ids[0])
                browser.close()
        finally:
            service.terminate()
            service.wait()


if __name__ == "__main__":
    main()
