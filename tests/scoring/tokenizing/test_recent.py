"""A text that an owner sends again and again is encoded once, and what is kept is bounded."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from scoring.error_codes import RequestError
from scoring.tokenizing.recent import MOST_CHARACTERS, MOST_ENTRIES, Recent
from scoring.tokenizing.row_encoder import QueryTooLongError
from tests.scoring.counting import counted
from tests.scoring.tokenizing.tokenizers_under_test import qwen2

QUERY = "the answer is a document. " * 20


def test_a_query_is_encoded_once_for_its_owner() -> None:
    tokenizer, counter = counted(qwen2())
    first = tokenizer.of("a").row_encoder(QUERY)
    assert counter.characters == len(QUERY)
    assert tokenizer.of("a").row_encoder(QUERY) is first
    assert tokenizer.of("a").in_one_thread().row_encoder(QUERY) is not first, "it would wait for other threads"
    before = counter.characters
    np.testing.assert_array_equal(tokenizer.of("b").row_encoder(QUERY).query, first.query)
    np.testing.assert_array_equal(tokenizer.row_encoder(QUERY).query, first.query)
    assert counter.characters == before + 2 * len(QUERY), "owners share nothing, and without an owner nothing is kept"


def test_what_the_tokens_depend_on_besides_is_told_apart() -> None:
    tokenizer = qwen2().of("a")
    assert tokenizer.row_encoder(QUERY).stable != tokenizer.row_encoder(QUERY, before=[1, 2]).stable
    assert tokenizer.row_encoder("the", before=[1]).query.tolist() != tokenizer.row_encoder("the").query.tolist()
    with pytest.raises(QueryTooLongError):
        tokenizer.row_encoder(QUERY, longest=4)


def test_a_label_is_encoded_once_and_an_error_is_not_kept() -> None:
    tokenizer, counter = counted(qwen2())
    token = tokenizer.of("a").single_token("the")
    before = counter.characters
    assert tokenizer.of("a").single_token("the") == token
    assert counter.characters == before
    for _ in range(2):
        with pytest.raises(RequestError):
            tokenizer.of("a").single_token(QUERY)
    assert counter.characters == before + 2 * len(QUERY)


def test_what_is_kept_is_bounded() -> None:
    recent = Recent()
    for n in range(MOST_ENTRIES):
        recent.result("a", str(n), None, lambda n=n: n)  # type: ignore[misc]
    recent.result("a", "0", None, lambda: -1)  # used again, so it is not the next that is forgotten
    recent.result("a", "one more", None, lambda: 1)
    assert len(recent) == MOST_ENTRIES
    assert recent.result("a", "0", None, lambda: -1) == 0
    assert recent.result("a", "1", None, lambda: -1) == -1
    recent.result("a", "x" * (MOST_CHARACTERS + 1), None, lambda: 1)
    assert recent.result("a", "x" * (MOST_CHARACTERS + 1), None, lambda: 2) == 2


def test_another_process_begins_with_nothing() -> None:
    recent = Recent()
    recent.result("a", "b", None, lambda: 1)
    assert len(pickle.loads(pickle.dumps(recent))) == 0
