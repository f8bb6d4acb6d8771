"""The message that jobs have ended: what is read of it, and how it is split."""

from __future__ import annotations

import pytest

from bell.notices import MESSAGE_BYTES, READ_BYTES, decode_notices, write_notices

IDS = [f"job_{n:032x}" for n in range(2_000)]


def decoded(messages: list[bytes]) -> dict[str, str | None]:
    return {job_id: result for message in messages for job_id, result in decode_notices(message).items()}


def test_jobs_and_their_results_are_read_as_they_were_written() -> None:
    results = {IDS[3]: 'a "result"', IDS[7]: "é\ud800\n"}
    messages = list(write_notices(IDS[:10], results))
    assert len(messages) == 1
    assert decoded(messages) == dict.fromkeys(IDS[:10]) | results
    assert list(write_notices([])) == []


@pytest.mark.parametrize("size", [0, 100, 6_000, MESSAGE_BYTES - 100])
def test_no_message_is_too_long_and_few_are_sent(size: int) -> None:
    results = dict.fromkeys(IDS, "r" * size) if size else {}
    messages = list(write_notices(IDS, results))
    assert decoded(messages) == dict.fromkeys(IDS) | results
    assert max(map(len, messages)) <= MESSAGE_BYTES
    assert len(messages) <= len(IDS) * (size + 60) // (MESSAGE_BYTES - size - 60) + 1


def test_a_result_that_is_too_long_for_a_message_is_left_out() -> None:
    messages = list(write_notices(IDS[:3], {IDS[1]: "r" * MESSAGE_BYTES, IDS[2]: "short"}))
    assert decoded(messages) == {IDS[0]: None, IDS[1]: None, IDS[2]: "short"}


@pytest.mark.parametrize(
    ("message", "jobs"),
    [
        (b"", {}),
        (b"{", {}),
        (b"\xff", {}),
        (b"7", {}),
        (b"null", {}),
        (b'"job_1"', {}),
        (b"[" * 10_000, {}),
        (b'{"job_1": null, "job_2": "' + b"a" * READ_BYTES + b'"}', {}),
        (b'{"' + b"a" * 65 + b'": null, "job_1": null}', {"job_1": None}),
        (b'["job_1"]', {}),
        (b"9" * 10_000, {}),
        (b'{"job_1": 7, "job_2": {"version": 1}, "job_3": [], "job_4": "text"}',
         {"job_1": None, "job_2": None, "job_3": None, "job_4": "text"}),
    ],
)  # fmt: skip
def test_what_can_not_be_read_of_a_message_is_ignored(message: bytes, jobs: dict[str, str | None]) -> None:
    assert decode_notices(message) == jobs
