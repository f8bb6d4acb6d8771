"""What the README, docs/http.md and docs/decisions.md show is what a reader gets who pastes their examples."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2
import pytest

from tests.scoreline.running import ROOT, Up

TOLERANCE = 0.01
"""How far a number may be off: formats of numbers differ between machines, and the pages round."""


def examples(page: str) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return the path and the body of each request on a page whose answer is shown, and what is shown of it."""
    found: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    asked: tuple[str, dict[str, Any]] | None = None
    text = (ROOT / page).read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if language:
            continue
        request = re.match(r"curl -s http://127\.0\.0\.1:8000(\S+) .*? -d '(\{.*?\})'\n", block, re.DOTALL)
        if request is not None:
            asked = (request[1], json.loads(request[2]))
        shown = re.match(r'("(?:scores|results|answers)".*?)\s+# rounded', block, re.DOTALL)
        if shown is not None:
            assert asked is not None
            found.append((*asked, json.loads("{" + shown[1].replace(", ...", "") + "}")))
    return found


README, HTTP, DECISIONS = "README.md", "docs/http.md", "docs/decisions.md"
EXAMPLES = [(page, *example) for page in (README, HTTP, DECISIONS) for example in examples(page)]


def close(found: Any, shown: Any) -> bool:
    """Return whether an answer has everything that is shown, with about the same numbers."""
    if isinstance(shown, dict):
        return all(name in found and close(found[name], value) for name, value in shown.items())
    if isinstance(shown, list):
        return len(found) == len(shown) and all(close(one, other) for one, other in zip(found, shown, strict=True))
    return abs(found - shown) <= TOLERANCE if isinstance(shown, float) else bool(found == shown)


def test_the_pages_show_answers_of_a_job_calls_and_a_ranking() -> None:
    shown = [(page, path) for page, path, _, _ in EXAMPLES]
    assert shown == [
        (README, "/v1/score"),
        (HTTP, "/v1/jobs"),
        (HTTP, "/v1/score"),
        (HTTP, "/v1/rerank"),
        (DECISIONS, "/v1/systemone"),
    ]


@pytest.mark.slow
def test_the_python_of_the_readme_ranks_and_decides_as_it_says(
    demonstration: Up, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / README).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    monkeypatch.setenv("SCORELINE_URL", demonstration.url)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, README, "exec"), names)
    assert names["ranking"].results[0].index == 1
    assert capsys.readouterr().out.endswith("delivery True\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "path", "body", "shown"), EXAMPLES, ids=[f"{page} {path}" for page, path, _, _ in EXAMPLES]
)
def test_an_example_gives_what_its_page_shows(
    demonstration: Up, page: str, path: str, body: dict[str, Any], shown: dict[str, Any]
) -> None:
    with httpx2.Client(base_url=demonstration.url, timeout=60.0) as client:
        answer = client.post(path, json=body).json()
        if path == "/v1/jobs":
            answer = client.get(answer["urls"]["self"], headers={"Prefer": "wait=30"}).json()["result"]
    assert close(answer, shown), json.dumps(answer)
    assert not answer.get("warnings")
