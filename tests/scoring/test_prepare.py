"""A prepared request holds each requested sequence exactly once, in chunks within the limits."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints.card import ModelCard
from scoring.chunk import Chunk
from scoring.limits import Limits
from scoring.planning.algorithms import AlgorithmSetting
from scoring.planning.folds import ATTENTION_TOKENS
from scoring.prepare import Preparation, PreparedRequest, prepare
from scoring.request import parse_score_request
from scoring.tokenizing.tokenization import TextTokenizer
from scoring.work import work_of_each_row
from tests.packed_rows import whole_sequences
from tests.scoring.generous_limits import GENEROUS
from tests.scoring.tokenizing.tokenizers_under_test import llama3, qwen2

LABELS = [5, 6]


def card_of(tokenizer: TextTokenizer, delimiter: int | None = None, context_length: int = 4096) -> ModelCard:
    return ModelCard("small", context_length, tokenizer.vocabulary, tokenizer.fingerprint, delimiter)


def prepared(
    query: Any,
    items: Any,
    *,
    tokenizer: TextTokenizer | None = None,
    delimiter: int | None = None,
    limits: Limits = GENEROUS,
    **fields: Any,
) -> PreparedRequest:
    body = {"query": query, "items": items, "label_token_ids": LABELS, **fields}
    tokenizer = tokenizer or qwen2()
    return prepare(parse_score_request(body), card_of(tokenizer, delimiter), tokenizer, limits)


def sequences(request: PreparedRequest) -> list[list[int]]:
    """Return the whole sequences, as the engine scores them."""
    return [sequence for chunk in request.chunks for sequence in whole_sequences(request.prefix, chunk.rows)]


@pytest.mark.parametrize("tokenizer", [qwen2(), llama3()], ids=["qwen2", "llama3"])
def test_text_is_concatenated_and_then_tokenized(tokenizer: TextTokenizer) -> None:
    items = ["", " is", "is", "\n", "<|im_end|>", "日本"]
    request = prepared("the answer", items, tokenizer=tokenizer)
    assert sequences(request) == [tokenizer.encode("the answer" + item) for item in items]
    assert request.prefix.tolist() == tokenizer.encode("the answer")


def test_token_ids_are_joined_unchanged() -> None:
    request = prepared([1, 2], [[3], [], [4, 5]])
    assert sequences(request) == [[1, 2, 3], [1, 2], [1, 2, 4, 5]]
    assert request.prefix.tolist() == [1, 2]


@pytest.mark.parametrize("tokenizer", [qwen2(), llama3()], ids=["qwen2", "llama3"])
def test_item_first_puts_the_item_before_the_query_and_shares_no_prefix(tokenizer: TextTokenizer) -> None:
    request = prepared(" a document", ["the", ""], item_first=True, tokenizer=tokenizer)
    assert sequences(request) == [tokenizer.encode("the a document"), tokenizer.encode(" a document")]
    assert len(request.prefix) == 0
    assert sequences(prepared([1, 2], [[3], []], item_first=True)) == [[3, 1, 2], [1, 2]]


def test_rfc_008_delimiter_mode_tokenizes_query_and_items_separately_with_the_delimiter_between() -> None:
    tokenizer = llama3()
    delimiter = tokenizer.encode("<|im_end|>", add_special_tokens=False)[0]
    request = prepared("the answer", [" is", ""], tokenizer=tokenizer, delimiter=delimiter)
    query = tokenizer.encode("the answer")
    assert request.prefix.tolist() == [*query, delimiter]
    assert sequences(request) == [
        [*query, delimiter, *tokenizer.encode(" is", add_special_tokens=False)],
        [*query, delimiter],
    ]
    assert sequences(prepared([1, 2], [[3], []], delimiter=0)) == [[1, 2, 0, 3], [1, 2, 0]]


@pytest.mark.parametrize("wanted", ["packed", "prefill_extend"])
def test_item_first_overrides_an_algorithm_that_is_asked_for_with_a_warning(wanted: AlgorithmSetting) -> None:
    body = {"query": [1, 2], "items": [[3]], "label_token_ids": [5]}
    for item_first, expected in ((True, 1), (False, 0)):
        request = parse_score_request(body | {"item_first": item_first})
        found = prepare(request, card_of(qwen2()), qwen2(), GENEROUS, wanted).warnings
        assert len(found) == expected
        assert all("scored serially" in warning and wanted in warning for warning in found)


def test_item_first_is_ignored_in_delimiter_mode_with_a_warning_and_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "scoring"):
        request = prepared([1, 2], [[3]], delimiter=0, item_first=True)
    assert sequences(request) == [[1, 2, 0, 3]]
    assert len(request.warnings) == 1
    assert request.warnings[0] in caplog.text
    assert prepared([1, 2], [[3]], item_first=True).warnings == ()


def test_rfc_008_empty_item_strings_accepted() -> None:
    request = prepared("the query", ["", " valid", ""])
    assert request.total_items == 3
    query = qwen2().encode("the query")
    assert sequences(request)[0] == sequences(request)[2] == query


def test_rfc_008_empty_items_list_has_no_work() -> None:
    for query in ("the query", [1, 2]):
        request = prepared(query, [])
        assert (request.chunks, request.total_items, request.prompt_tokens) == ((), 0, 0)


def test_rfc_008_single_item() -> None:
    assert prepared("the query", [" item"]).total_items == 1


def test_rfc_008_many_items() -> None:
    items = [f" item{n}" for n in range(1000)]
    request = prepared("the query", items)
    assert request.total_items == 1000
    assert [chunk.first_item for chunk in request.chunks] == [0, 256, 512, 768]


def test_rfc_008_unicode_items() -> None:
    items = [" 日本語", " emoji 🎉", " mixed é e\u0301 \u202e"]
    assert sequences(prepared("the query", items)) == [qwen2().encode("the query" + item) for item in items]


def test_an_item_does_not_change_another_items_tokens() -> None:
    alone = sequences(prepared("the answer", ["is"]))[0]
    assert sequences(prepared("the answer", ["\n\n", "is", "s" * 50]))[1] == alone


def test_prompt_tokens_sum_the_lengths_of_all_sequences() -> None:
    request = prepared([1, 2], [[3], [], [4, 5]])
    assert request.prompt_tokens == 3 + 2 + 4
    assert request.prompt_tokens == sum(map(len, sequences(request)))


def test_prompt_tokens_of_a_large_job_do_not_wrap_around() -> None:
    """The sequences have more tokens than an int32 can count, though each row is only a few bytes."""
    tokenizer = qwen2()
    body = {"query": [1] * 30_000, "items": [[]] * 100_000, "label_token_ids": LABELS}
    request = prepare(parse_score_request(body), card_of(tokenizer, context_length=32_768), tokenizer, GENEROUS)
    assert request.prompt_tokens == 3_000_000_000
    assert len(request.chunks) == -(-100_000 // GENEROUS.chunk_items)


def test_text_labels_become_token_ids() -> None:
    tokenizer = llama3()
    request = prepared("the answer", [], label_token_ids=None, labels=[" is", "<|im_end|>"], tokenizer=tokenizer)
    assert request.label_token_ids == (tokenizer.single_token(" is"), tokenizer.single_token("<|im_end|>"))


@given(
    lengths=st.lists(st.integers(0, 20), max_size=40),
    prefix=st.integers(1, 5),
    chunk_tokens=st.integers(1, 60),
    chunk_items=st.integers(1, 7),
)
def test_chunks_hold_every_row_once_in_order_within_both_limits(
    lengths: list[int], prefix: int, chunk_tokens: int, chunk_items: int
) -> None:
    items = [[n + 1] * length for n, length in enumerate(lengths)]
    limits = replace(GENEROUS, chunk_tokens=chunk_tokens, chunk_items=chunk_items)
    request = prepared([0] * prefix, items, limits=limits)
    assert sequences(request) == [[0] * prefix + item for item in items]
    first = 0
    for chunk in request.chunks:
        assert chunk.first_item == first
        assert 1 <= len(chunk.rows) <= chunk_items
        assert len(chunk.rows) == 1 or work_of_each_row(chunk.rows, None, ATTENTION_TOKENS).sum() <= chunk_tokens + 1e-6
        first += len(chunk.rows)


def test_chunks_are_as_full_as_the_limits_allow() -> None:
    request = prepared([1], [[1], [1], [1], [1] * 9, [1]], limits=replace(GENEROUS, chunk_tokens=6, chunk_items=10))
    assert [len(chunk.rows) for chunk in request.chunks] == [3, 1, 1]


def test_a_long_query_makes_chunks_smaller_only_by_the_cost_of_attending_to_it() -> None:
    short, long = (prepared([1] * length, [[1] * 20] * 500) for length in (10, 2_000))
    assert [len(chunk.rows) for chunk in short.chunks] == [256, 244]
    assert [len(chunk.rows) for chunk in long.chunks] == [256, 244]
    twice = prepared([1] * ATTENTION_TOKENS, [[1] * 20] * 500, limits=replace(GENEROUS, chunk_tokens=4_000))
    assert [len(chunk.rows) for chunk in twice.chunks] == [100] * 5


def test_arrays_are_int32_for_the_engine_and_the_store() -> None:
    for request in (prepared("the answer", ["is"]), prepared([1], [[2]]), prepared([1], [[2]], delimiter=0)):
        rows = request.chunks[0].rows
        for array in (request.prefix, rows.tokens, rows.lengths, rows.prefix_ends):
            assert array.dtype == np.int32


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "ids"])
def test_a_hundred_thousand_short_items_are_ready_in_seconds(kind: str) -> None:
    """A Python loop over tokens, or encoding the query again with each item, would take longer than this limit."""
    query = "Which document answers the question? " * 40
    items = [f" item {n} of the list" for n in range(100_000)]
    body: tuple[Any, Any] = (query, items)
    if kind == "ids":
        body = (qwen2().encode(query), [[n % 1000, *range(8)] for n in range(100_000)])
    started = time.process_time()
    assert prepared(*body).total_items == 100_000
    assert time.process_time() - started < 30


def prepared_little_by_little(
    body: dict[str, Any], sizes: list[int], delimiter: int | None, limits: Limits
) -> PreparedRequest:
    """Prepare a request whose items arrive in batches of these sizes."""
    request = parse_score_request(body)
    preparation = Preparation(replace(request, items=[]), card_of(qwen2(), delimiter), qwen2(), limits)
    chunks: list[Chunk] = []
    start = 0
    for size in (*sizes, len(request.items)):
        chunks += preparation.add(request.items[start : start + size])
        start += size
    return preparation.prepared((*chunks, *preparation.finish()))


def as_data(request: PreparedRequest) -> dict[str, Any]:
    return {
        "chunks": [(chunk.first_item, chunk.rows.to_bytes()) for chunk in request.chunks],
        "prefix": request.prefix.tolist(),
        **{name: getattr(request, name) for name in ("label_token_ids", "total_items", "prompt_tokens", "warnings")},
    }


@given(
    kind=st.sampled_from(["text", "ids"]),
    lengths=st.lists(st.integers(0, 9), max_size=60),
    sizes=st.lists(st.integers(0, 9), max_size=12),
    query=st.integers(1, 12),
    delimiter=st.sampled_from([None, 0]),
    item_first=st.booleans(),
    chunk_tokens=st.integers(1, 60),
    chunk_items=st.integers(1, 7),
)
def test_items_that_arrive_little_by_little_are_prepared_like_all_at_once(
    kind: str,
    lengths: list[int],
    sizes: list[int],
    query: int,
    delimiter: int | None,
    item_first: bool,
    chunk_tokens: int,
    chunk_items: int,
) -> None:
    ids = kind == "ids"
    body = {
        "query": [7] * query if ids else "the answer is" * query,
        "items": [[n + 1] * length if ids else f" {n}" * length for n, length in enumerate(lengths)],
        "label_token_ids": LABELS,
        "item_first": item_first,
    }
    limits = replace(GENEROUS, chunk_tokens=chunk_tokens, chunk_items=chunk_items)
    whole = prepare(parse_score_request(body), card_of(qwen2(), delimiter), qwen2(), limits)
    assert as_data(prepared_little_by_little(body, sizes, delimiter, limits)) == as_data(whole)
