"""The work of labels of any number of tokens is limited, and divided into the same chunks however items arrive."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from scoring.chunk import Chunk
from scoring.encoded_query import encode_query
from scoring.error_codes import RequestError
from scoring.label_sequences import targets_of
from scoring.layout import Continuations, Rows
from scoring.limits import Limit, Limits
from scoring.prepare import Preparation
from scoring.request import parse_score_request
from scoring.tokenizing.text_labels import MOST_PAIRS, TextLabels, Window
from scoring.tokenizing.tokenization import TextTokenizer
from tests.scoring.generous_limits import GENEROUS
from tests.scoring.test_label_sequences import card_of, prepared, refusal
from tests.scoring.tokenizing import tokenizers_under_test as under_test


def limited(name: str, most: int) -> Limits:
    changed: dict[str, Any] = {name: Limit(name, most)}
    return replace(GENEROUS, **changed)


@pytest.mark.parametrize(
    ("limits", "param"),
    [(limited("label_tokens", 5), "labels"), (limited("tokens", 20), "items"), (limited("stored_tokens", 20), "items")],
)
def test_labels_count_in_the_limits_on_tokens(limits: Limits, param: str) -> None:
    body = {"query": "the answer", "items": [" is"] * 3, "labels": [" the answer"] * 3}
    assert refusal(under_test.qwen2(), body, limits=limits) == ("request_too_large", param)


def test_the_price_of_all_labels_with_all_items_is_known_before_a_row_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = under_test.qwen2()
    request = parse_score_request(
        {"query": [1], "items": [], "label_scoring": "sequence", "label_token_sequences": [[1] * 50] * 100}
    )
    preparation = Preparation(request, card_of(tokenizer), tokenizer, limited("stored_tokens", 10**6))
    monkeypatch.setattr(Rows, "__post_init__", None)  # so that any row would fail
    with pytest.raises(RequestError, match="stored for one job"):
        preparation.add([[1]] * 201)


def test_characters_before_the_labels_are_limited_where_the_text_can_not_be_cut() -> None:
    tokenizer, limits = under_test.metaspace(), limited("repeated_characters", 10_000)
    body = {"query": "the answer " * 50, "items": ["a", "b"], "labels": ["yes"] * 10}
    assert refusal(tokenizer, body, limits=limits) == ("request_too_large", "labels")
    assert prepared(tokenizer, body | {"labels": ["yes"]}, limits=limits).total_items == 2
    assert prepared(under_test.qwen2(), body, limits=limits).total_items == 2


def test_labels_behind_the_same_end_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = under_test.qwen2()
    encoded: list[str] = []
    encode_all = TextTokenizer._encode_all

    def noted(self: TextTokenizer, texts: list[str], *options: bool, **others: bool) -> list[list[int]]:
        encoded.extend(texts)
        return encode_all(self, texts, *options, **others)

    monkeypatch.setattr(TextTokenizer, "_encode_all", noted)
    items = [f" item {n} Answer:" for n in range(500)]
    prepared(tokenizer, {"query": "the query", "items": items, "labels": [" yes of course", " no"]})
    assert sum(text.endswith("of course") for text in encoded) == 1


def test_long_labels_behind_many_different_ends_take_little_memory() -> None:
    tokenizer = under_test.qwen2()
    labels = TextLabels(tokenizer, [" the answer" * 200], lambda item: Window(item, False), lambda _: None)
    items = [f"query {chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n // 676)}" for n in range(3_000)]
    targets = next(labels.behind(items[:1])).tokens.tolist()
    tracemalloc.start()
    try:
        assert sum(len(behind.lengths) for behind in labels.behind(items)) == len(items)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(items) * len(targets) * 36 / 4, "a fourth of what all of them would take"


def test_long_labels_by_their_tokens_are_put_behind_few_items_at_a_time() -> None:
    tokenizer = under_test.qwen2()
    body = {"query": [1], "items": [[1]], "label_scoring": "sequence", "label_token_sequences": [[1] * 1_000]}
    request = parse_score_request(body)
    query = encode_query(request, card_of(tokenizer), tokenizer, lambda: None)
    targets = targets_of(request, card_of(tokenizer), tokenizer, GENEROUS, query)
    assert targets is not None
    assert targets.most_rows == MOST_PAIRS // 1_000


def chunks_of(tokenizer: TextTokenizer, body: dict[str, Any], limits: Limits, steps: int) -> list[Chunk]:
    """Prepare items a few at a time."""
    request = parse_score_request({"label_scoring": "sequence", **body, "items": []})
    preparation = Preparation(request, card_of(tokenizer), tokenizer, limits)
    found = []
    for start in range(0, len(body["items"]), steps):
        found += preparation.add(body["items"][start : start + steps])
    return [*found, *preparation.finish()]


@pytest.mark.parametrize("steps", [1, 3, 100])
def test_chunks_are_the_same_however_the_items_arrive(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = under_test.qwen2()
    items = [" item" * (n % 7) for n in range(30)]
    body = {"query": "the query", "items": items, "labels": [" yes", " the answer is"]}
    limits = replace(GENEROUS, chunk_tokens=60, chunk_items=9)
    whole = prepared(tokenizer, body, limits=limits)
    monkeypatch.setattr("scoring.tokenizing.text_labels.MOST_PAIRS", 60)
    found = chunks_of(tokenizer, body, limits, steps)
    assert len(found) > 3
    assert [chunk.rows.to_bytes() for chunk in found] == [chunk.rows.to_bytes() for chunk in whole.chunks]
    assert [of_chunk(chunk).to_bytes() for chunk in found] == [of_chunk(chunk).to_bytes() for chunk in whole.chunks]


def of_chunk(chunk: Chunk) -> Continuations:
    assert chunk.continuations is not None
    return chunk.continuations
