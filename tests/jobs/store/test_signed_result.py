"""The result of a call as a text: it has the same bits afterwards, and only the key of the call opens it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from jobs.store.identifiers import new_notice_key
from jobs.store.signed_result import MAX_RESULT_BYTES, VERSION, CallResult, sign_result, verified_result
from scoring.layout import Head, LabelScores

KEY = new_notice_key()


def result_of(items: int, labels: int, *, logprobs: bool = True) -> CallResult:
    """Return a result with values that decimal digits could easily change."""
    values = np.random.default_rng(7).standard_normal((items, labels)).astype(np.float32) / np.float32(3)
    values[0, 0] = -np.inf
    values[-1, -1] = np.float32(1e-45)
    return CallResult(1_800_000_000.1 + 2**-22, 5, LabelScores(values, -np.abs(values) if logprobs else None))


def signed(result: CallResult, key: bytes = KEY) -> str:
    text = sign_result(result, key)
    assert text is not None
    return text


@pytest.mark.parametrize(
    ("head", "logprobs"), [(Head.LOGPROBS, True), (Head.LOGITS, True), (Head.LOGITS, False)], ids=str
)
def test_a_result_has_the_same_bits_afterwards(head: Head, logprobs: bool) -> None:
    """That of a softmax has no log-probabilities if a worker of the previous version has computed it."""
    result = result_of(3, 2, logprobs=logprobs)
    found = verified_result(signed(result), KEY, items=3, labels=2, head=head)
    assert found is not None
    assert (found.finished_at.hex(), found.cached_tokens) == (result.finished_at.hex(), result.cached_tokens)
    assert found.scores.logits.tobytes() == result.scores.logits.tobytes()
    if not logprobs:
        assert found.scores.logprobs is None
    else:
        assert found.scores.logprobs is not None
        assert result.scores.logprobs is not None
        assert found.scores.logprobs.tobytes() == result.scores.logprobs.tobytes()


def test_the_key_is_not_in_the_text() -> None:
    text = signed(result_of(1, 1))
    assert KEY.hex() not in text


def test_only_the_key_of_the_call_opens_its_result() -> None:
    text = signed(result_of(1, 1))
    for key in (new_notice_key(), b"", KEY[:-1], KEY + b"\1"):
        assert verified_result(text, key, items=1, labels=1, head=Head.LOGPROBS) is None


def test_a_text_that_was_changed_anywhere_is_no_result() -> None:
    text = signed(result_of(1, 1))
    for place, character in enumerate(text):
        changed = text[:place] + ("0" if character != "0" else "1") + text[place + 1 :]
        assert verified_result(changed, KEY, items=1, labels=1, head=Head.LOGPROBS) is None, changed
    for other in ("", " ", "{}", "\ud800", "é " + text, text.partition(" ")[2], text + " ", text * 2):
        assert verified_result(other, KEY, items=1, labels=1, head=Head.LOGPROBS) is None


def test_a_result_of_another_version_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr("jobs.store.signed_result.VERSION", VERSION + 1)
        text = signed(result_of(1, 1))
    assert verified_result(text, KEY, items=1, labels=1, head=Head.LOGPROBS) is None


@pytest.mark.parametrize(("items", "labels"), [(2, 1), (1, 2), (1, 3), (0, 1)])
def test_scores_that_do_not_match_the_call_are_none(items: int, labels: int) -> None:
    text = signed(result_of(1, 1))
    assert verified_result(text, KEY, items=items, labels=labels, head=Head.LOGPROBS) is None


def test_a_json_parser_copies_the_text_as_it_stands() -> None:
    """Every API process hears all results, and only one of them needs this one."""
    text = signed(result_of(3, 2))
    assert json.dumps(text) == f'"{text}"'


def test_the_size_of_a_result_is_bounded() -> None:
    items = MAX_RESULT_BYTES // 8
    assert sign_result(result_of(items, 1), KEY) is not None
    assert sign_result(result_of(items + 1, 1), KEY) is None
    assert sign_result(result_of(2 * items, 1, logprobs=False), KEY) is not None
