"""The validation table: for each invalid body, the error code and the place, as far as no HTTP is needed.

Each case goes the whole way a body goes: strict JSON, shapes and types, then tokens against the model.
"""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import normalizers

from api.answers.error_responses import STATUS
from api.requests.bodies.json_body import parse_json
from checkpoints.card import ModelCard
from scoring.error_codes import RequestError
from scoring.limits import Limit, Limits
from scoring.prepare import Preparation, PreparedRequest, prepare
from scoring.request import parse_score_request
from scoring.tokenizing.tokenization import TextTokenizer
from tests.scoring.generous_limits import GENEROUS
from tests.scoring.tokenizing.tokenizers_under_test import QWEN2, llama3, qwen2, split_by, train

CARD = ModelCard("small", 32, qwen2().vocabulary, qwen2().fingerprint)
LIMITS = replace(
    GENEROUS,
    max_labels=4,
    items=Limit("max_items", 8, "submit it to /v1/jobs"),
    tokens=Limit("max_tokens_per_job", 60, "send it as several jobs"),
    chunk_tokens=16,
    chunk_items=4,
    item_characters=Limit("max_item_characters", 100),
)
TEXT: dict[str, Any] = {"query": "the answer", "items": [" is", " a"], "label_token_ids": [5, 6]}
IDS: dict[str, Any] = {"query": [1, 2], "items": [[3], [4, 5]], "label_token_ids": [5, 6]}
SOFTMAX = TEXT | {"apply_softmax": True}
V = CARD.vocabulary
HUGE = 10**400
MISSING = object()


def submit(body: dict[str, Any], card: ModelCard = CARD, limits: Limits = LIMITS) -> PreparedRequest:
    written = {field: value for field, value in body.items() if value is not MISSING}
    parsed = parse_json(json.dumps(written).encode())
    assert isinstance(parsed, dict)
    tokenizer = qwen2() if card.tokenizer_fingerprint == qwen2().fingerprint else llama3()
    return prepare(parse_score_request(parsed), card, tokenizer, limits)


def refusal(body: dict[str, Any], card: ModelCard = CARD, limits: Limits = LIMITS) -> RequestError:
    with pytest.raises(RequestError) as raised:
        submit(body, card, limits)
    return raised.value


def own(*labels: object, field: str = "label_token_ids") -> dict[str, Any]:
    """Return a body with these labels for each item."""
    return TEXT | {"label_token_ids": None, field: list(labels)}


OWN_TEXTS = functools.partial(own, field="labels")


ROWS: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("query missing", TEXT | {"query": MISSING}, "missing_query", "query"),
    ("query null", TEXT | {"query": None}, "missing_query", "query"),
    ("items missing", TEXT | {"items": MISSING}, "missing_items", "items"),
    ("items null", TEXT | {"items": None}, "missing_items", "items"),
    ("labels missing", TEXT | {"label_token_ids": MISSING}, "missing_label_token_ids", "label_token_ids"),
    ("labels null", TEXT | {"label_token_ids": None, "labels": None}, "missing_label_token_ids", "label_token_ids"),
    ("query without characters", TEXT | {"query": ""}, "empty_query", "query"),
    ("query without ids", IDS | {"query": []}, "empty_query", "query"),
    ("empty query, items first", TEXT | {"query": "", "item_first": True}, "empty_query", "query"),
    ("empty query, no items", TEXT | {"query": "", "items": []}, "empty_query", "query"),
    ("no label ids", TEXT | {"label_token_ids": []}, "empty_label_token_ids", "label_token_ids"),
    ("no text labels", TEXT | {"label_token_ids": None, "labels": []}, "empty_label_token_ids", "labels"),
    ("label is text", TEXT | {"label_token_ids": [5, "6"]}, "invalid_label_token_ids", "label_token_ids[1]"),
    ("label is nested", TEXT | {"label_token_ids": [5, [6]]}, "invalid_label_token_ids", "label_token_ids[1]"),
    ("labels for one item of two", own([5, 6]), "invalid_label_token_ids", "label_token_ids"),
    ("labels for no item", own([5], [5], [5]), "invalid_label_token_ids", "label_token_ids"),
    ("labels for an item", own([5], 6), "invalid_label_token_ids", "label_token_ids[1]"),
    ("no labels of an item", own([5], []), "empty_label_token_ids", "label_token_ids[1]"),
    ("an item's label", own([5], [6, "a"]), "invalid_label_token_ids", "label_token_ids[1][1]"),
    ("an item's label is nested", own([[5]], [6]), "invalid_label_token_ids", "label_token_ids[0][0]"),
    ("an item's negative label", own([5], [6, -1]), "negative_token_id", "label_token_ids[1][1]"),
    ("an item's high label", own([5], [10**9]), "token_id_exceeds_vocab", "label_token_ids[1][0]"),
    ("too many labels of an item", own([5], [6] * 257), "too_many_labels", "label_token_ids[1]"),
    ("too many labels of all items", own([1, 2, 3], [4, 5]), "too_many_labels", "label_token_ids"),
    ("texts for one item of two", OWN_TEXTS(["a"]), "invalid_label_token_ids", "labels"),
    ("texts for an item", OWN_TEXTS(["a"], "b"), "invalid_label_token_ids", "labels[1]"),
    ("no texts of an item", OWN_TEXTS(["a"], []), "empty_label_token_ids", "labels[1]"),
    ("an item's text is an id", OWN_TEXTS(["a"], ["b", 5]), "invalid_label_token_ids", "labels[1][1]"),
    ("an item's text is nested", OWN_TEXTS([["a"]], ["b"]), "invalid_label_token_ids", "labels[0][0]"),
    ("an item's text of two tokens", OWN_TEXTS(["a"], ["b", "xx"]), "label_not_single_token", "labels[1][1]"),
    ("an item's text is not Unicode", OWN_TEXTS(["a"], ["\ud800"]), "invalid_request", "labels[1][0]"),
    ("too many texts of an item", OWN_TEXTS(["a"], ["b"] * 257), "too_many_labels", "labels[1]"),
    ("too many texts of all items", OWN_TEXTS([*"abc"], [*"de"]), "too_many_labels", "labels"),
    (
        "texts of several tokens for each item",
        OWN_TEXTS(["a"], ["b"]) | {"label_scoring": "sequence"},
        "invalid_label_token_ids",
        "labels",
    ),
    ("labels of items and texts", own([5], [6]) | {"labels": ["a"]}, "invalid_request", "labels"),
    *(
        (f"temperature {value!r}"[:40], SOFTMAX | {"temperature": value}, "invalid_request", "temperature")
        for value in (0, -1.0, True, "1", [1], HUGE)
    ),
    ("a temperature of probabilities", TEXT | {"temperature": 0.5}, "unsupported_parameter", "temperature"),
    ("label is true", TEXT | {"label_token_ids": [True]}, "invalid_label_token_ids", "label_token_ids[0]"),
    ("label is 5.0", TEXT | {"label_token_ids": [5.0]}, "invalid_label_token_ids", "label_token_ids[0]"),
    ("label is null", TEXT | {"label_token_ids": [None]}, "invalid_label_token_ids", "label_token_ids[0]"),
    ("labels are one number", TEXT | {"label_token_ids": 5}, "invalid_label_token_ids", "label_token_ids"),
    ("labels are an object", TEXT | {"label_token_ids": {}}, "invalid_label_token_ids", "label_token_ids"),
    ("too many label ids", TEXT | {"label_token_ids": [5] * 5}, "too_many_labels", "label_token_ids"),
    ("too many text labels", TEXT | {"label_token_ids": None, "labels": ["a"] * 5}, "too_many_labels", "labels"),
    ("label below zero", TEXT | {"label_token_ids": [5, -1]}, "negative_token_id", "label_token_ids[1]"),
    ("label far below zero", TEXT | {"label_token_ids": [-HUGE]}, "negative_token_id", "label_token_ids[0]"),
    ("label at the vocabulary", TEXT | {"label_token_ids": [5, V]}, "token_id_exceeds_vocab", "label_token_ids[1]"),
    ("label past int32", TEXT | {"label_token_ids": [2**31]}, "token_id_exceeds_vocab", "label_token_ids[0]"),
    ("label past int64", TEXT | {"label_token_ids": [2**64]}, "token_id_exceeds_vocab", "label_token_ids[0]"),
    ("label of 400 digits", TEXT | {"label_token_ids": [HUGE]}, "token_id_exceeds_vocab", "label_token_ids[0]"),
    ("query id below zero", IDS | {"query": [1, -1]}, "negative_token_id", "query[1]"),
    ("query id at the vocabulary", IDS | {"query": [1, V]}, "token_id_exceeds_vocab", "query[1]"),
    ("query id past int32", IDS | {"query": [2**31]}, "token_id_exceeds_vocab", "query[0]"),
    ("query id of 400 digits", IDS | {"query": [HUGE]}, "token_id_exceeds_vocab", "query[0]"),
    ("item id below zero", IDS | {"items": [[1], [2, -3]]}, "negative_token_id", "items[1][1]"),
    ("item id at the vocabulary", IDS | {"items": [[], [V]]}, "token_id_exceeds_vocab", "items[1][0]"),
    ("item id past int32", IDS | {"items": [[1], [2, 2**31]]}, "token_id_exceeds_vocab", "items[1][1]"),
    ("item id past int64, below zero", IDS | {"items": [[-(2**70)]]}, "negative_token_id", "items[0][0]"),
    ("item id of 400 digits", IDS | {"items": [[1, HUGE]]}, "token_id_exceeds_vocab", "items[0][1]"),
    ("flat items, id of 400 digits", IDS | {"items": [1, HUGE]}, "token_id_exceeds_vocab", "items[0][1]"),
    (
        "text label of two tokens",
        TEXT | {"label_token_ids": None, "labels": ["a", "xx"]},
        "label_not_single_token",
        "labels[1]",
    ),
    ("text label of none", TEXT | {"label_token_ids": None, "labels": [""]}, "label_not_single_token", "labels[0]"),
    ("text query, token items", TEXT | {"items": [[1]]}, "mixed_input_types", "items[0]"),
    ("text query, one flat item", TEXT | {"items": [1, 2]}, "mixed_input_types", "items"),
    ("token query, text items", IDS | {"items": ["a"]}, "mixed_input_types", "items[0]"),
    ("token query, one text", IDS | {"items": "a"}, "mixed_input_types", "items"),
    ("text query, items of both kinds", TEXT | {"items": ["a", [1]]}, "mixed_input_types", "items[1]"),
    ("token query, items of both kinds", IDS | {"items": [[1], "a"]}, "mixed_input_types", "items[1]"),
    ("empty token query, text items", IDS | {"query": [], "items": ["a"]}, "mixed_input_types", "items[0]"),
    ("text item too long", TEXT | {"items": ["a", "x" * 40]}, "context_length_exceeded", "items[1]"),
    ("token item too long", IDS | {"items": [[1], [1] * 31]}, "context_length_exceeded", "items[1]"),
    ("query too long", IDS | {"query": [1] * 33, "items": [[]]}, "context_length_exceeded", "items[0]"),
    ("query too long for no items", IDS | {"query": [1] * 33, "items": []}, "context_length_exceeded", "query"),
    ("too long, items first", IDS | {"items": [[1] * 31], "item_first": True}, "context_length_exceeded", "items[0]"),
    ("too many items", TEXT | {"items": ["a"] * 9}, "request_too_large", "items"),
    ("too many tokens", IDS | {"items": [[1] * 20] * 3}, "request_too_large", "items"),
    ("query is a number", TEXT | {"query": 5}, "invalid_request", "query"),
    ("query is true", TEXT | {"query": True}, "invalid_request", "query"),
    ("query is an object", TEXT | {"query": {}}, "invalid_request", "query"),
    ("query is nested", IDS | {"query": [[1]]}, "invalid_request", "query[0]"),
    ("query holds true", IDS | {"query": [1, True]}, "invalid_request", "query[1]"),
    ("query holds 2.0", IDS | {"query": [1, 2.0]}, "invalid_request", "query[1]"),
    ("query holds text", IDS | {"query": [1, "2"]}, "invalid_request", "query[1]"),
    ("query holds null", IDS | {"query": [None]}, "invalid_request", "query[0]"),
    ("items is a number", TEXT | {"items": 5}, "invalid_request", "items"),
    ("items is an object", TEXT | {"items": {"0": "a"}}, "invalid_request", "items"),
    ("items is false", TEXT | {"items": False}, "invalid_request", "items"),
    ("item is null", TEXT | {"items": ["a", None]}, "invalid_request", "items[1]"),
    ("first item is null", TEXT | {"items": [None, "a"]}, "invalid_request", "items[0]"),
    ("item is a number among texts", TEXT | {"items": ["a", 5]}, "invalid_request", "items[1]"),
    ("item is an object", TEXT | {"items": [{}]}, "invalid_request", "items[0]"),
    ("item is a text among ids", IDS | {"items": [1, "a"]}, "invalid_request", "items[1]"),
    ("item is a list among ids", IDS | {"items": [1, [2]]}, "invalid_request", "items[1]"),
    ("flat items hold true", IDS | {"items": [True]}, "invalid_request", "items[0]"),
    ("flat items hold 2.5", IDS | {"items": [2.5, 1]}, "invalid_request", "items[0]"),
    ("item holds true", IDS | {"items": [[1], [1, False]]}, "invalid_request", "items[1][1]"),
    ("item holds 2.0", IDS | {"items": [[2.0]]}, "invalid_request", "items[0][0]"),
    ("item holds null", IDS | {"items": [[None]]}, "invalid_request", "items[0][0]"),
    ("item is nested too deep", IDS | {"items": [[[1]]]}, "invalid_request", "items[0][0]"),
    ("item is a list of texts", TEXT | {"items": [["a"]]}, "invalid_request", "items[0][0]"),
    ("lone surrogate in the query", TEXT | {"query": "a\ud800"}, "invalid_request", "query"),
    ("lone surrogate in an item", TEXT | {"items": ["a", "\udc00"]}, "invalid_request", "items[1]"),
    (
        "lone surrogate in a label",
        TEXT | {"label_token_ids": None, "labels": ["\ud800"]},
        "invalid_request",
        "labels[0]",
    ),
    ("both kinds of labels", TEXT | {"labels": ["a"]}, "invalid_request", "labels"),
    ("text labels are one text", TEXT | {"label_token_ids": None, "labels": "a"}, "invalid_request", "labels"),
    ("text label is a number", TEXT | {"label_token_ids": None, "labels": ["a", 5]}, "invalid_request", "labels[1]"),
    ("softmax is text", TEXT | {"apply_softmax": "true"}, "invalid_request", "apply_softmax"),
    ("softmax is one", TEXT | {"apply_softmax": 1}, "invalid_request", "apply_softmax"),
    ("item_first is a list", TEXT | {"item_first": []}, "invalid_request", "item_first"),
    ("return_logprobs is an object", TEXT | {"return_logprobs": {}}, "invalid_request", "return_logprobs"),
    ("return_logits is zero", TEXT | {"return_logits": 0}, "invalid_request", "return_logits"),
    ("NaN", TEXT | {"label_token_ids": [float("nan")]}, "invalid_request", None),
    ("infinity", TEXT | {"query": float("inf")}, "invalid_request", None),
]


@pytest.mark.parametrize(("body", "code", "param"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_request_that_breaks_a_rule_gets_its_code_and_place(
    body: dict[str, Any], code: str, param: str | None
) -> None:
    error = refusal(body)
    assert (error.code, error.param) == (code, param)
    assert STATUS[error.code] == (413 if code == "request_too_large" else 400)
    assert error.message == str(error) != ""
    assert len(error.message) < 300


DELIMITED = replace(CARD, delimiter=0)
DELIMITER_ROWS: list[tuple[str, dict[str, Any], str, str]] = [
    ("in the query's ids", IDS | {"query": [1, 0]}, "delimiter_in_input", "query"),
    ("in an item's ids", IDS | {"items": [[], [1], [1, 0, 2]]}, "delimiter_in_input", "items[2]"),
    ("in the query's text", TEXT | {"query": "a<|endoftext|>"}, "delimiter_in_input", "query"),
    ("in an item's text", TEXT | {"items": ["", "a<|endoftext|>b"]}, "delimiter_in_input", "items[1]"),
    ("empty query", TEXT | {"query": ""}, "empty_query", "query"),
    ("empty query ids", IDS | {"query": []}, "empty_query", "query"),
    (
        "too long with the delimiter",
        IDS | {"query": [1] * 28, "items": [[1], [1] * 4]},
        "context_length_exceeded",
        "items[1]",
    ),
]


@pytest.mark.parametrize(
    ("body", "code", "param"), [row[1:] for row in DELIMITER_ROWS], ids=[row[0] for row in DELIMITER_ROWS]
)
def test_delimiter_mode_refuses_the_delimiters_id_in_the_input(body: dict[str, Any], code: str, param: str) -> None:
    error = refusal(body, DELIMITED)
    assert (error.code, error.param) == (code, param)


def test_without_delimiter_mode_the_delimiters_id_is_ordinary_input() -> None:
    assert submit(IDS | {"query": [0], "items": [[0]]}).prefix.tolist() == [0]


def test_the_delimiters_text_divided_between_query_and_item_is_not_the_delimiter() -> None:
    """The delimiter is recognised by its id alone. Here the query ends with half of its text."""
    assert submit(TEXT | {"query": "a<|endof", "items": ["text|>"]}, DELIMITED).total_items == 1


PRECEDENCE: list[tuple[str, dict[str, Any], str]] = [
    ("query before items", {"query": None, "items": None}, "missing_query"),
    ("query's type before missing items", {"query": 5}, "invalid_request"),
    ("items before labels", {"query": "a", "items": None}, "missing_items"),
    ("shape of items before their kind", {"query": "a", "items": [[1], None]}, "invalid_request"),
    ("kind of items before labels", {"query": "a", "items": [[1]]}, "mixed_input_types"),
    ("labels before options", {"query": "a", "items": [], "apply_softmax": 5}, "missing_label_token_ids"),
    ("options before tokens", IDS | {"query": [-1], "apply_softmax": 5}, "invalid_request"),
    ("items' number before label range", IDS | {"items": [[]] * 9, "label_token_ids": [-1]}, "request_too_large"),
    ("labels' number before label range", IDS | {"label_token_ids": [-1] * 5}, "too_many_labels"),
    ("label range before query", IDS | {"query": [], "label_token_ids": [-1]}, "negative_token_id"),
    ("query before items' ids", IDS | {"query": [], "items": [[-1]]}, "empty_query"),
    ("first of two bad ids", IDS | {"query": [V, -1]}, "token_id_exceeds_vocab"),
    (
        "length of a text before label range",
        TEXT | {"items": ["x" * 101], "label_token_ids": [-1]},
        "request_too_large",
    ),
    (
        "query's tokens with all items before items' ids",
        IDS | {"query": [1] * 11, "items": [[-1]] * 6},
        "request_too_large",
    ),
    ("items' ids before context", IDS | {"items": [[1] * 40, [-1]]}, "negative_token_id"),
    ("context before tokens in all", IDS | {"items": [[1] * 70]}, "context_length_exceeded"),
]


@pytest.mark.parametrize(("body", "code"), [row[1:] for row in PRECEDENCE], ids=[row[0] for row in PRECEDENCE])
def test_of_several_errors_the_first_in_the_fixed_order_is_reported(body: dict[str, Any], code: str) -> None:
    assert refusal(body).code == code


@pytest.mark.parametrize(
    ("body", "card", "code", "param"),
    [
        (IDS | {"items": [[1]] * 5 + [[0]]}, DELIMITED, "delimiter_in_input", "items[5]"),
        (TEXT | {"items": ["a"] * 5 + ["<|endoftext|>"]}, DELIMITED, "delimiter_in_input", "items[5]"),
        (IDS | {"items": [[1]] * 5 + [[1] * 31]}, CARD, "context_length_exceeded", "items[5]"),
        (TEXT | {"items": ["a"] * 5 + ["x" * 40]}, CARD, "context_length_exceeded", "items[5]"),
        (TEXT | {"items": ["a"] * 5 + ["x" * 40], "item_first": True}, CARD, "context_length_exceeded", "items[5]"),
        (
            TEXT | {"items": [""] * 5 + ["<think>"]},
            replace(CARD, vocabulary=V - 2),
            "token_id_exceeds_vocab",
            "items[5]",
        ),
    ],
)
def test_indexes_in_errors_count_from_the_first_item_of_the_request_in_every_batch(
    body: dict[str, Any], card: ModelCard, code: str, param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scoring.tokenizing.row_encoder.BATCH_ROWS", 2)
    monkeypatch.setattr("scoring.encoded_query._BATCH_TOKENS", 2)
    limits = replace(LIMITS, tokens=Limit("max_tokens_per_job", 10**6))
    error = refusal(body, card, limits)
    assert (error.code, error.param) == (code, param)
    request = parse_score_request(body)
    preparation = Preparation(replace(request, items=[]), card, qwen2(), limits)
    preparation.add(request.items[:3])
    with pytest.raises(RequestError) as raised:
        preparation.add(request.items[3:])
    assert (raised.value.code, raised.value.param, raised.value.message) == (code, param, error.message)


def test_a_sequence_without_tokens_after_normalisation_is_refused() -> None:
    backend = train(split_by(QWEN2), normalizer=normalizers.Replace("ab", ""))
    tokenizer = TextTokenizer(backend)
    card = replace(CARD, tokenizer_fingerprint=tokenizer.fingerprint)
    with pytest.raises(RequestError) as raised:
        prepare(parse_score_request(TEXT | {"query": "a", "items": ["c", "b"]}), card, tokenizer, LIMITS)
    assert (raised.value.code, raised.value.param) == ("empty_query", "items[1]")


def test_the_error_for_a_request_that_is_too_large_says_what_to_do_instead() -> None:
    assert refusal(TEXT | {"items": ["a"] * 9}).message.endswith("; submit it to /v1/jobs")
    assert refusal(IDS | {"items": [[1] * 20] * 3}).message.endswith("; send it as several jobs")
    unadvised = replace(LIMITS, items=Limit("max_items", 8))
    assert ";" not in refusal(TEXT | {"items": ["a"] * 9}, limits=unadvised).message


def test_the_error_for_a_sequence_that_is_too_long_names_item_length_and_limit() -> None:
    message = refusal(IDS | {"items": [[1], [1] * 31]}).message
    assert "items[1]" in message
    assert "33 tokens" in message
    assert "32" in message


def test_the_error_for_a_label_of_several_tokens_shows_them() -> None:
    error = refusal(TEXT | {"label_token_ids": None, "labels": ["xx"]})
    assert "['x', 'x']" in error.message


def test_requests_exactly_at_the_limits_are_accepted() -> None:
    assert submit(IDS | {"items": [[1] * 30]}).prompt_tokens == CARD.context_length
    assert submit(IDS | {"items": [[1]] * 8}).total_items == LIMITS.items.most
    assert submit(IDS | {"items": [[1] * 18] * 3}).prompt_tokens == LIMITS.tokens.most
    assert submit(IDS | {"label_token_ids": [0, 0, V - 1, 1]}).label_token_ids == (0, 0, V - 1, 1)


def test_text_whose_tokens_are_outside_the_models_vocabulary_is_refused() -> None:
    narrow = replace(CARD, vocabulary=qwen2().single_token("a"))
    error = refusal(TEXT | {"query": "!", "items": ["", "a"], "label_token_ids": [1]}, narrow)
    assert (error.code, error.param) == ("token_id_exceeds_vocab", "items[1]")
    error = refusal(TEXT | {"query": "a", "items": [], "label_token_ids": [1]}, narrow)
    assert (error.code, error.param) == ("token_id_exceeds_vocab", "query")


def test_a_query_of_special_tokens_alone_is_not_empty() -> None:
    """RFC-008: the beginning-of-text token is added to text inputs."""
    card = ModelCard("llama", 32, llama3().vocabulary, llama3().fingerprint)
    prepared = submit(TEXT | {"query": "", "items": ["", "a"]}, card)
    assert prepared.prefix.tolist() == [0]
    assert prepared.prompt_tokens == 3
