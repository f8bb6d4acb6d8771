"""What the README shows is what a reader gets who pastes its examples."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2
import pytest

from tests.scoreline.running import ROOT, Up

TOLERANCE = 0.01
"""How far a number may be off: formats of numbers differ between machines, and the README rounds."""


def examples() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return the path and the body of each request in the README whose answer is shown, and what is shown of it."""
    found: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    asked: tuple[str, dict[str, Any]] | None = None
    for block in re.findall(
        r"^```\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    ):
        request = re.match(r"curl -s http://127\.0\.0\.1:8000(\S+) .*? -d '(\{.*?\})'\n", block, re.DOTALL)
        if request is not None:
            asked = (request[1], json.loads(request[2]))
        shown = re.match(r'("(?:scores|results)".*?)\s+# rounded', block)
        if shown is not None:
            assert asked is not None
            found.append((*asked, json.loads("{" + shown[1].replace(", ...", "") + "}")))
    return found


EXAMPLES = examples()


def close(found: Any, shown: Any) -> bool:
    """Return whether an answer has everything that is shown, with about the same numbers."""
    if isinstance(shown, dict):
        return all(name in found and close(found[name], value) for name, value in shown.items())
    if isinstance(shown, list):
        return len(found) == len(shown) and all(close(one, other) for one, other in zip(found, shown, strict=True))
    return abs(found - shown) <= TOLERANCE if isinstance(shown, float) else bool(found == shown)


def test_the_readme_shows_answers_of_a_job_a_call_and_a_ranking() -> None:
    assert [path for path, _, _ in EXAMPLES] == ["/v1/jobs", "/v1/score", "/v1/rerank"]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "body", "shown"), EXAMPLES, ids=[path for path, _, _ in EXAMPLES])
def test_an_example_of_the_readme_gives_what_it_shows(
    demonstration: Up, path: str, body: dict[str, Any], shown: dict[str, Any]
) -> None:
    with httpx2.Client(base_url=demonstration.url, timeout=60.0) as client:
        answer = client.post(path, json=body).json()
        if path == "/v1/jobs":
            answer = client.get(answer["urls"]["self"], headers={"Prefer": "wait=30"}).json()["result"]
    assert close(answer, shown), json.dumps(answer)
    assert not answer["warnings"]
