"""Well-formed bodies are accepted, and all others are refused with an error code."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.answers.error_responses import STATUS
from api.requests.bodies.json_body import parse_json
from checkpoints.card import ModelCard
from scoring.error_codes import RequestError
from scoring.layout import Head
from scoring.limits import Limit
from scoring.options import ScoreOptions
from scoring.prepare import PreparedRequest, prepare
from scoring.request import SCORE_FIELDS, ScoreRequest, parse_score_request
from scoring.values import check_text
from tests.scoring.generous_limits import GENEROUS
from tests.scoring.tokenizing.tokenizers_under_test import qwen2

TEXT: dict[str, Any] = {"query": "the answer", "items": [" is", " a"], "label_token_ids": [5, 6]}


def test_rfc_000_text_and_token_inputs_are_parsed_unchanged() -> None:
    assert parse_score_request(TEXT) == ScoreRequest("the answer", [" is", " a"], (5, 6), None, ScoreOptions())
    ids = {"query": [450, 1234], "items": [[4874], [694]], "label_token_ids": [1]}
    assert parse_score_request(ids) == ScoreRequest([450, 1234], [[4874], [694]], (1,), None, ScoreOptions())


@pytest.mark.parametrize(
    ("query", "items", "expected"),
    [
        ("q", "one item", ["one item"]),
        ("q", "", [""]),
        ([1], [2, 3], [[2, 3]]),
        ([1], [[]], [[]]),
        ("q", [], []),
        ([1], [], []),
        ("q", ["", ""], ["", ""]),
        ([], [[1]], [[1]]),
    ],
)
def test_a_single_text_or_flat_list_of_ids_is_one_item(query: Any, items: Any, expected: list[Any]) -> None:
    assert parse_score_request(TEXT | {"query": query, "items": items}).items == expected


def test_labels_may_be_texts_instead_of_ids() -> None:
    request = parse_score_request({"query": "q", "items": [], "labels": ["Yes", " no"]})
    assert (request.label_token_ids, request.labels) == (None, ("Yes", " no"))


def test_a_null_field_counts_as_absent() -> None:
    body = TEXT | {"labels": None, "apply_softmax": None, "item_first": None, "return_logits": None}
    assert parse_score_request(body) == parse_score_request(TEXT)


@pytest.mark.parametrize("flag", ["apply_softmax", "return_logprobs", "return_logits", "item_first"])
def test_each_option_sets_only_itself(flag: str) -> None:
    only: dict[str, Any] = {flag: True}
    assert parse_score_request(TEXT | only).options == ScoreOptions(**only)


def test_the_cheapest_sufficient_head_is_chosen() -> None:
    assert ScoreOptions().head is Head.LOGPROBS
    assert ScoreOptions(apply_softmax=True, return_logits=True).head is Head.LOGITS
    assert ScoreOptions(apply_softmax=True, return_logprobs=True).head is Head.LOGPROBS


def test_unknown_fields_are_ignored_by_the_parser() -> None:
    assert parse_score_request(TEXT | {"model": 5, "anything": object()}) == parse_score_request(TEXT)
    assert set(TEXT) | {"labels", "apply_softmax", "item_first"} < SCORE_FIELDS


@pytest.mark.parametrize("text", ["", "a\x00b", "日本語", "😀\U0010ffff", "\ufffe\uffff"])
def test_every_valid_unicode_text_is_accepted(text: str) -> None:
    check_text(text, "query")
    assert parse_score_request(TEXT | {"query": text, "items": [text, "a"]}).items == [text, "a"]


def test_two_halves_of_a_surrogate_pair_in_neighbouring_items_are_refused() -> None:
    with pytest.raises(RequestError) as raised:
        parse_score_request(TEXT | {"items": ["ok", "\ud83d", "\ude00"]})
    assert raised.value.param == "items[1]"


SCALAR = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 2**31 - 1, 2**31, 2**63, 10**30, 1.0, 2.5]),
    st.integers(),
    st.text(max_size=3),
    st.sampled_from(["\ud800", "\x00", "<|endoftext|>", "a"]),
)
VALUE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("k"), inner), max_leaves=6
)
BODY = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(sorted(SCORE_FIELDS), VALUE)
    | {
        "query": st.text(max_size=4) | st.lists(st.integers(0, 2000), max_size=4) | VALUE,
        "items": st.lists(st.text(max_size=4), max_size=4)
        | st.lists(st.lists(st.integers(-5, 2**33), max_size=3), max_size=3)
        | VALUE,
        "label_token_ids": st.lists(st.integers(-2, 2000), max_size=4) | VALUE,
    },
)


def attempt(body: dict[str, object], card: ModelCard) -> PreparedRequest | RequestError:
    limits = replace(
        GENEROUS, max_labels=3, items=Limit("items", 3), tokens=Limit("tokens", 40), chunk_tokens=8, chunk_items=2
    )
    try:
        parsed = parse_json(json.dumps(body).encode())
        assert isinstance(parsed, dict)
        return prepare(parse_score_request(parsed), card, qwen2(), limits)
    except RequestError as error:
        return error


@settings(max_examples=100)
@given(body=BODY, delimiter=st.sampled_from([None, 0]))
def test_any_json_object_is_prepared_or_refused_with_a_code(body: dict[str, object], delimiter: int | None) -> None:
    card = ModelCard("small", 16, qwen2().vocabulary, qwen2().fingerprint, delimiter)
    outcome = attempt(body, card)
    if isinstance(outcome, RequestError):
        assert STATUS[outcome.code] in (400, 413)
        return
    lengths = [length for chunk in outcome.chunks for length in chunk.rows.sequence_lengths.tolist()]
    assert len(lengths) == outcome.total_items
    assert all(1 <= length <= card.context_length for length in lengths)
