"""What a text costs is bounded before the work is done, and no long step holds the interpreter's lock."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Encoding, Tokenizer

from checkpoints.card import ModelCard
from scoring import encoded_query as preparing
from scoring.error_codes import RequestError
from scoring.layout import Rows
from scoring.limits import Limit, Limits
from scoring.prepare import Preparation, prepare
from scoring.quoting import quote, quote_name, quote_pieces
from scoring.request import parse_score_request
from scoring.tokenizing import query_cut, row_encoder, tokenization
from scoring.tokenizing.packed_tokens import common_prefixes
from scoring.tokenizing.tokenization import TextTokenizer
from tests.scoring.counting import CountingBackend, counted
from tests.scoring.generous_limits import GENEROUS
from tests.scoring.tokenizing.test_query_cut import ANY_TOKENIZER, TEXT
from tests.scoring.tokenizing.tokenizers_under_test import llama3, metaspace, qwen2, unsplit

CARD = ModelCard("small", 4_096, qwen2().vocabulary, qwen2().fingerprint)
LABELS: dict[str, Any] = {"label_token_ids": [5]}
WORDS = "the answer is a document. "


def refused(
    body: dict[str, Any],
    limits: Limits = GENEROUS,
    tokenizer: Callable[[], TextTokenizer] = qwen2,
    context_length: int = 4_096,
) -> tuple[RequestError, CountingBackend]:
    """Return the error for a request, and what its tokenizer had to do before."""
    copy, counter = counted(tokenizer())
    card = ModelCard("small", context_length, copy.vocabulary, copy.fingerprint)
    with pytest.raises(RequestError) as raised:
        prepare(parse_score_request(LABELS | body), card, copy, limits)
    return raised.value, counter


@settings(max_examples=80)
@given(build=ANY_TOKENIZER, text=TEXT, special=st.booleans())
def test_a_text_has_the_ids_that_the_tokenizers_own_way_to_encode_one_text_gives(
    build: Callable[[], TextTokenizer], text: str, special: bool
) -> None:
    assert build().encode(text, special) == build()._backend.encode(text, add_special_tokens=special).ids


def test_other_threads_go_on_while_a_long_text_is_encoded() -> None:
    """No thread gives up the interpreter's lock here by itself, so another one can only run if the encoder lets it."""
    assert any(runs_meanwhile(lambda: qwen2().encode(WORDS * 10_000)) for _ in range(20))


def runs_meanwhile(work: Callable[[], object]) -> bool:
    """Whether another thread gets to run between the start and the end of some work."""
    began, ended = threading.Event(), threading.Event()
    seen: list[bool] = []

    def look() -> None:
        began.wait()
        seen.append(not ended.is_set())

    usual = sys.getswitchinterval()
    other = threading.Thread(target=look)
    other.start()
    sys.setswitchinterval(600)
    try:
        began.set()
        work()
        ended.set()
    finally:
        sys.setswitchinterval(usual)
    other.join()
    return seen[0]


@pytest.mark.parametrize(
    ("body", "param", "most"),
    [
        ({"query": "x" * 51, "items": ["a"]}, "query", 50),
        ({"query": "x", "items": ["a", "é" * 61, "b"]}, "items[1]", 60),
        ({"query": "x", "items": "é" * 61}, "items[0]", 60),
        ({"query": "x", "items": ["a"], "labels": ["a", "b" * 8], "label_token_ids": None}, "labels[1]", 7),
    ],
    ids=["query", "item", "only item", "label"],
)
def test_a_text_with_too_many_characters_is_refused_before_anything_is_encoded(
    body: dict[str, Any], param: str, most: int
) -> None:
    limits = replace(
        GENEROUS,
        query_characters=Limit("max_query_characters", 50),
        item_characters=Limit("max_item_characters", 60),
        label_characters=Limit("max_label_characters", 7),
    )
    error, counter = refused(body, limits)
    assert (error.code, error.param) == ("request_too_large", param)
    assert error.message == f"{param} has {most + 1} characters, more than the {most} allowed here"
    assert str(error.limit).startswith("max_")
    assert counter.characters == 0


@pytest.mark.parametrize("item_first", [False, True])
def test_a_query_is_encoded_only_until_it_has_more_tokens_than_the_context(item_first: bool) -> None:
    body = {"query": WORDS * 30_000, "items": ["a"], "item_first": item_first}
    error, counter = refused(body)
    assert (error.code, error.param) == ("context_length_exceeded", "items[0]")
    assert "4096" in error.message
    assert counter.characters <= 2 * query_cut.PIECE_CHARACTERS < len(WORDS * 30_000) / 10


@pytest.mark.parametrize("query", ["x" * 100_000, [1] * 5_000], ids=["one word", "ids"])
@pytest.mark.parametrize("item_first", [False, True])
def test_no_row_is_made_behind_a_query_that_is_too_long_for_the_context(query: Any, item_first: bool) -> None:
    items = ["a" if isinstance(query, str) else [1]] * 1_000
    error, counter = refused({"query": query, "items": items, "item_first": item_first})
    assert (error.code, error.param) == ("context_length_exceeded", "items[0]")
    assert counter.characters <= len(query)


@settings(max_examples=60)
@given(build=ANY_TOKENIZER, query=st.lists(TEXT, max_size=8).map("".join), size=st.integers(1, 9))
def test_a_query_that_is_encoded_in_pieces_has_the_same_ids(
    build: Callable[[], TextTokenizer], query: str, size: int
) -> None:
    tokenizer = build()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_cut, "PIECE_CHARACTERS", size)
        patch.setattr(query_cut, "_SEARCHED", 3)
        assert tokenizer.row_encoder(query).query.tolist() == tokenizer.encode(query)


def test_a_query_is_encoded_in_pieces_of_bounded_size() -> None:
    tokenizer, counter = counted(qwen2())
    tokenizer.row_encoder(WORDS * 30_000)
    assert sum(counter.batches) == len(WORDS * 30_000)
    assert max(counter.batches) <= query_cut.PIECE_CHARACTERS


def test_long_texts_are_encoded_one_at_a_time() -> None:
    """Each takes more than a hundred times its size in memory, so several at once would take too much."""
    tokenizer, counter = counted(metaspace())
    held: list[bool] = []

    class Watched(CountingBackend):
        def encode_batch_fast(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[Encoding]:
            held.append(tokenization._LONG_TEXT.locked())
            return super().encode_batch_fast(texts, add_special_tokens=add_special_tokens)

    tokenizer._backend = cast("Tokenizer", Watched(tokenizer._backend))
    tokenizer.encode("a" * tokenization._LONG_CHARACTERS)
    tokenizer.encode("a" * (tokenization._LONG_CHARACTERS + 1))
    tokenizer.encode_rows("the answer", ["a", "b", "a" * tokenization._LONG_CHARACTERS])
    assert held == [False, True, True]  # the query and the short items are not encoded as a batch
    assert not tokenization._LONG_TEXT.locked()
    assert len(counter.batches) == 6


def test_the_search_for_a_cut_takes_short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of a regular expression holds the interpreter's lock until it ends."""

    class Recorder:
        steps: ClassVar[list[int]] = []

        @classmethod
        def match(cls, text: str, start: int, end: int) -> re.Match[str] | None:
            cls.steps.append(end - start)
            return last_cut.match(text, start, end)

    last_cut = query_cut._LAST_CUT
    monkeypatch.setattr(query_cut, "_LAST_CUT", Recorder)
    assert qwen2()._cutter.cut("a " + "x" * 100_000) == 1
    assert max(Recorder.steps) <= query_cut._SEARCHED
    assert sum(Recorder.steps) <= 100_002


def test_the_query_is_charged_for_every_item_before_a_row_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = replace(GENEROUS, tokens=Limit("max_tokens_per_call", 10_000, "submit it to /v1/jobs"))
    query = WORDS * 20
    for item_first in (False, True):
        error, counter = refused({"query": query, "items": ["a"] * 1_000, "item_first": item_first}, limits)
        assert (error.code, error.param, error.limit) == ("request_too_large", "items", "max_tokens_per_call")
        assert "10000 tokens" in error.message
        assert error.message.endswith("; submit it to /v1/jobs")
        assert counter.characters == len(query)
    monkeypatch.setattr(preparing, "_pack", never_called)
    error, _ = refused({"query": [1] * 100, "items": [[1]] * 1_000}, limits)
    assert error.limit == "max_tokens_per_call"


def never_called(*_: Any, **__: Any) -> Any:
    raise AssertionError


def test_with_item_first_the_query_is_charged_to_the_store_for_every_item_before_a_row_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = replace(GENEROUS, stored_tokens=Limit("max_stored_tokens_per_job", 10_000, "send JSON lines"))
    query = WORDS * 20
    error, counter = refused({"query": query, "items": ["a"] * 1_000, "item_first": True}, limits)
    assert (error.code, error.param, error.limit) == ("request_too_large", "items", "max_stored_tokens_per_job")
    assert "10000 tokens" in error.message
    assert error.message.endswith("; send JSON lines")
    assert counter.characters == len(query)
    body = {"query": [1] * 100, "items": [[1]] * 1_000, "item_first": True}
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "_pack", never_called)
        assert refused(body, limits)[0].limit == "max_stored_tokens_per_job"
    shared = prepare(parse_score_request(LABELS | body | {"item_first": False}), CARD, qwen2(), limits)
    assert shared.total_items == 1_000  # a query that the items share is stored once


def test_the_tokens_of_items_are_charged_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_encoder, "BATCH_CHARACTERS", 100)
    limits = replace(GENEROUS, stored_tokens=Limit("max_stored_tokens_per_job", 1_000))
    error, counter = refused({"query": "the", "items": ["x y z!"] * 10_000}, limits)
    assert error.limit == "max_stored_tokens_per_job"
    assert counter.characters < 10_000


def test_what_is_charged_adds_up_over_the_batches_of_an_upload() -> None:
    limits = replace(GENEROUS, stored_tokens=Limit("max_stored_tokens_per_upload", 1_000))
    request = parse_score_request(LABELS | {"query": [1] * 100, "items": [], "item_first": True})
    preparation = Preparation(request, CARD, qwen2(), limits)
    empty: list[int] = []
    preparation.add([empty] * 6)
    preparation.add([empty] * 4)
    with pytest.raises(RequestError) as raised:
        preparation.add([empty])
    assert raised.value.limit == "max_stored_tokens_per_upload"


@pytest.mark.parametrize(
    ("tokenizer", "query"),
    [(qwen2, "x" * 2_000), (metaspace, WORDS * 80), (unsplit, WORDS * 80)],
    ids=["one word", "metaspace", "unsplit"],
)
def test_items_behind_a_query_that_is_encoded_again_with_each_of_them_are_limited_before_that_work(
    tokenizer: Callable[[], TextTokenizer], query: str
) -> None:
    limits = replace(GENEROUS, repeated_characters=Limit("max_repeated_characters_per_job", 10 * len(query)))
    error, counter = refused({"query": query, "items": ["a"] * 11}, limits, tokenizer)
    assert (error.code, error.param) == ("request_too_large", "items")
    assert error.limit == "max_repeated_characters_per_job"
    assert f"{len(query)} characters of the query and the template" in error.message
    assert "10 items" in error.message
    assert counter.characters == len(query)
    copy, counter = counted(tokenizer())
    card = ModelCard("small", 4_096, copy.vocabulary, copy.fingerprint)
    accepted = prepare(parse_score_request(LABELS | {"query": query, "items": ["a"] * 10}), card, copy, limits)
    assert accepted.total_items == 10
    assert counter.characters == len(query) + 10 * (len(query) + 1)


def test_what_a_template_puts_behind_each_item_is_encoded_once() -> None:
    body = LABELS | {"query": "q", "items": ["a"] * 500, "item_template": "D: {item}" + WORDS * 80}
    copy, counter = counted(qwen2())
    limits = replace(GENEROUS, repeated_characters=Limit("max_repeated_characters_per_job", 500 * 20))
    prepared = prepare(parse_score_request(body), CARD, copy, limits)
    assert prepared.prompt_tokens > 500 * 400
    assert counter.characters < len(WORDS) * 80 + 500 * 30
    error, counter = refused(body, replace(GENEROUS, tokens=Limit("max_tokens_per_job", prepared.prompt_tokens - 1000)))
    assert (error.code, error.limit) == ("request_too_large", "max_tokens_per_job")
    assert counter.characters < len(WORDS) * 100, "no item was encoded"


def test_a_text_without_a_cut_behind_each_item_is_limited_before_that_work() -> None:
    limits = replace(GENEROUS, repeated_characters=Limit("max_repeated_characters_per_job", 10 * 2_010))
    body = {"query": "q", "items": ["a"] * 11, "item_template": "{item}" + "x" * 2_008}
    error, counter = refused(body, limits)
    assert (error.code, error.limit) == ("request_too_large", "max_repeated_characters_per_job")
    assert counter.characters < 100


def test_what_a_template_puts_behind_each_item_may_not_be_longer_than_the_context() -> None:
    error, counter = refused({"query": "q", "items": ["a"], "item_template": "{item}" + WORDS * 20_000})
    assert (error.code, error.param) == ("context_length_exceeded", "items[0]")
    assert counter.characters < 4 * query_cut.PIECE_CHARACTERS


def test_behind_a_query_that_is_cut_only_its_end_is_charged() -> None:
    limits = replace(GENEROUS, repeated_characters=Limit("max_repeated_characters_per_job", 1_000))
    body = LABELS | {"query": WORDS * 80, "items": ["a"] * 500}
    assert prepare(parse_score_request(body), CARD, qwen2(), limits).total_items == 500


@pytest.mark.parametrize("item_first", [False, True])
def test_query_and_items_are_joined_in_batches_of_bounded_size(
    item_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_encoder, "BATCH_CHARACTERS", 10_000)
    copy, counter = counted(metaspace())
    card = ModelCard("small", 4_096, copy.vocabulary, copy.fingerprint)
    body = LABELS | {"query": WORDS * 20, "items": ["a"] * 200, "item_first": item_first}
    assert prepare(parse_score_request(body), card, copy, GENEROUS).total_items == 200
    assert max(counter.batches) <= 10_000


@pytest.mark.parametrize("build", [metaspace, unsplit, qwen2], ids=["metaspace", "unsplit", "qwen2"])
def test_the_work_stops_soon_after_nobody_wants_its_result(
    build: Callable[[], TextTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_encoder, "BATCH_ROWS", 5)
    copy, counter = counted(build())
    card = ModelCard("small", 4_096, copy.vocabulary, copy.fingerprint)
    body = LABELS | {"query": WORDS, "items": ["a"] * 100}

    class UnwantedError(Exception):
        pass

    def stop_if_unwanted() -> None:
        if len(counter.batches) >= 6:
            raise UnwantedError

    with pytest.raises(UnwantedError):
        prepare(parse_score_request(body), card, copy, GENEROUS, stop_if_unwanted=stop_if_unwanted)
    stopped = len(counter.batches)
    assert 6 <= stopped < 6 + 5  # a step encodes five short items one by one
    with pytest.raises(UnwantedError):
        prepare(parse_score_request(body | {"query": WORDS * 30}), card, copy, GENEROUS, "auto", stop_if_unwanted)
    assert len(counter.batches) <= stopped + 1


@given(
    rows=st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=6),
    reference=st.lists(st.integers(0, 2), max_size=8),
)
def test_common_prefixes_are_those_of_each_row(rows: list[list[int]], reference: list[int]) -> None:
    packed = Rows.pack(rows, [0] * len(rows))
    found = common_prefixes(packed.tokens, packed.lengths, np.array(reference, np.int32))
    for row, length in zip(rows, found.tolist(), strict=True):
        assert row[:length] == reference[:length]
        assert length in (len(row), len(reference)) or row[length] != reference[length]


@pytest.mark.parametrize("build", [qwen2, metaspace, llama3], ids=["qwen2", "metaspace", "llama3"])
def test_a_message_about_a_label_quotes_little_of_it(build: Callable[[], TextTokenizer]) -> None:
    label = "\U0001f9ffx " * 300
    body = {"query": "a", "items": [], "labels": [label], "label_token_ids": None}
    error, _ = refused(body, tokenizer=build)
    assert error.code == "label_not_single_token"
    assert "900 characters" in error.message
    assert len(error.message) < 200 + 200 + 150
    assert label[:200] in error.message
    assert label[:201] not in error.message


def test_a_quotation_has_ten_pieces_of_bounded_size() -> None:
    assert quote_pieces(["a", "b"]) == "['a', 'b']"
    assert quote_pieces(["a"] * 10) == str(["a"] * 10)
    assert quote_pieces(["a"] * 10, 11) == f"[{', '.join(map(repr, ['a'] * 10))}, …]"
    assert len(quote_pieces(["x" * 500] * 500)) < 300
    assert quote("x" * 200) == repr("x" * 200)
    assert quote("x" * 201) == f"'{'x' * 200}'… (201 characters)"
    assert quote_name("webhook.secret") == '"webhook.secret"'
    assert len(quote_name("x" * 500)) < 80
