"""The verdict on an assault: each mark that is missed is named."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from tests.hostile.assault import Tally
from tests.hostile.attacks.attack import Attack, Plan
from tests.hostile.contract import complaints
from tests.hostile.document import Document, Operation
from tests.hostile.processes import Usage
from tests.hostile.sending import Answer, Ended, Outcome
from tests.hostile.verdict import MEBIBYTE, Report
from tests.hostile.watching import Phase

OPERATION = Operation("get", "/v1/jobs", (), "", b"", (), {200: frozenset({"application/json"}), 503: frozenset()})
DOCUMENT = Document(
    (OPERATION,), {"overloaded": 503, "storage_unavailable": 503, "internal_error": 500, "not_found": 404}
)
ATTACK = Attack("too long", "get /v1/jobs", "a test", lambda _, __: Plan([]), OPERATION)


def answer(status: int, code: str, size: int = 0, request_id: str = "a") -> Answer:
    body = json.dumps({"error": {"message": "m", "type": "t", "param": None, "code": code}}).encode()
    return Answer(status, {"x-request-id": request_id}, body, size or len(body), complete=True)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (answer(503, "overloaded"), None),
        (answer(503, "storage_unavailable"), "server error 503 storage_unavailable"),
        (answer(500, "internal_error"), "server error 500 internal_error"),
        (answer(404, "not_found"), "undocumented status 404"),
        (answer(503, "unheard_of"), "undocumented error 503 unheard_of"),
        (answer(503, "overloaded", size=9_000), "an error of 9000 bytes"),
        (answer(503, "overloaded", request_id=""), "no x-request-id"),
        (Answer(503, {"x-request-id": "a"}, b"busy", 4, complete=True), "503 without the error envelope"),
        (Answer(200, {"content-type": "text/plain"}, b"", 0, complete=True), "undocumented media type 'text/plain'"),
        (Answer(200, {"content-type": "application/json"}, b"", 0, complete=True), None),
    ],
)
def test_an_answer_that_is_not_documented_is_complained_about(given: Answer, complaint: str | None) -> None:
    found = complaints(DOCUMENT, ATTACK, given)
    assert complaint in found if complaint else not found


def report() -> Report:
    """Return the report of an assault that reached all marks."""
    quiet = Phase(calls=[0.05] * 100, looks=[0.001] * 2_000, peak=Usage(200 * MEBIBYTE, 50, 20), last=Usage(1, 50, 20))
    tally = Tally()
    tally.count(DOCUMENT, 0, ATTACK, 10, Outcome([answer(503, "overloaded")], Ended.ANSWERED, 0.1))
    return Report(tally, quiet, quiet, quiet, wanted_requests=10, database_bound=MEBIBYTE, judge_times=True)


def test_a_service_that_withstands_misses_no_mark() -> None:
    assert report().missed() == []
    assert "all marks reached" in str(report())


@pytest.mark.parametrize(
    ("attacked", "word"),
    [
        (Phase(refused=Counter({"503": 1})), "quiet tenant"),
        (Phase(not_alive=Counter({"hung": 1})), "/livez was not answered"),
        (Phase(peak=Usage(2**31, 1, 1)), "MiB"),
        (Phase(database=2**31), "database"),
        (Phase(calls=[0.2] * 100), "median"),
        (Phase(calls=[0.05] * 98 + [0.2] * 2), "99th percentile"),
        (Phase(looks=[0.3] * 100), "in 0.1 %"),
        (Phase(looks=[0.001] * 5_000 + [1.1]), "once took"),
    ],
)
def test_each_mark_that_is_missed_is_named(attacked: Phase, word: str) -> None:
    missed = replace(report(), attacked=attacked).missed()
    assert any(word in line for line in missed), missed


def test_memory_that_is_kept_when_the_attackers_have_gone_is_named() -> None:
    after = Phase(last=Usage(500 * MEBIBYTE, 50, 20))
    assert any("kept 300 MiB" in line for line in replace(report(), after=after).missed())


def test_an_attack_that_hangs_and_one_that_was_never_sent_are_findings() -> None:
    one = report()
    one.tally.count(DOCUMENT, 7, ATTACK, 1, Outcome([], Ended.HUNG, 75.0))
    assert any("hung: 1 times, attack 7 " in line for line in one.missed())
    assert any("only 11 of 20" in line for line in replace(one, wanted_requests=20).missed())
