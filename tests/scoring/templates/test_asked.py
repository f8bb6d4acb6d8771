"""A request gets the wording that it asks for, or a precise error, and limits hold for what it sends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checkpoints.card import ModelCard
from scoring.error_codes import ErrorCode, RequestError
from scoring.layout import Head
from scoring.limits import Limit, Limits
from scoring.prepare import PreparedRequest, prepare
from scoring.request import parse_score_request
from scoring.templates.encoding import Prompt
from scoring.templates.known import KnownTemplates
from scoring.tokenizing.tokenization import TextTokenizer
from tests.packed_rows import whole_sequences
from tests.scoring.generous_limits import GENEROUS
from tests.scoring.templates.prompts import sequences_of
from tests.scoring.tokenizing.tokenizer_families import family

TEMPLATES = KnownTemplates.read(None, "any").by_name
BODY: dict[str, Any] = {"query": "the answer", "items": ["is", "<|im_end|>", ""], "labels": ["yes"]}


def prepared(
    *, limits: Limits = GENEROUS, context: int = 4096, delimiter: int | None = None, name: str = "qwen3", **fields: Any
) -> PreparedRequest:
    tokenizer = family(name).ours
    card = ModelCard("small", context, tokenizer.vocabulary, tokenizer.fingerprint, delimiter)
    return prepare(parse_score_request(BODY | fields, TEMPLATES), card, tokenizer, limits)


def sequences(request: PreparedRequest) -> list[list[int]]:
    return [sequence for chunk in request.chunks for sequence in whole_sequences(request.prefix, chunk.rows)]


def error(**fields: Any) -> tuple[ErrorCode, str | None]:
    with pytest.raises(RequestError) as caught:
        prepared(**fields)
    return caught.value.code, caught.value.param


def qwen3() -> TextTokenizer:
    return family("qwen3").ours


def test_templates_of_a_request_say_how_query_and_items_become_text() -> None:
    found = prepared(query_template="<|im_start|>Q: {query}\n", item_template="D: {item}<|im_end|>", items=["is", "a"])
    expected = [qwen3().encode(f"<|im_start|>Q: the answer\nD: {item}<|im_end|>") for item in ("is", "a")]
    assert sequences(found) == expected
    assert found.prompt_tokens == sum(map(len, expected)), "what a template adds counts"


@pytest.mark.parametrize("missing", ["query_template", "item_template"])
def test_without_one_of_them_the_text_is_taken_as_it_is(missing: str) -> None:
    templates: dict[str, Any] = {"query_template": "Q: {query}\n", "item_template": "D: {item}"}
    given = {name: text for name, text in templates.items() if name != missing}
    query, item = given.get("query_template", "{query}"), given.get("item_template", "{item}")
    expected = [qwen3().encode(query.format(query="the answer") + item.format(item=text)) for text in ("is", "")]
    assert sequences(prepared(**given, items=["is", ""])) == expected


def test_an_instruction_stands_at_its_place_and_its_braces_are_text() -> None:
    found = prepared(query_template="{instruction}: {query}", instruction="{query}", items=["is"])
    assert sequences(found) == [qwen3().encode("{query}: the answeris")]
    ended = prepared(query_template="{instruction}: {query}", instruction="<|im_end|>", items=["is"])
    assert qwen3().added_tokens["<|im_end|>"] not in sequences(ended)[0]
    assert qwen3().decode(sequences(ended)[0]) == "<|im_end|>: the answeris"


def test_a_named_template_brings_its_labels_unless_the_request_has_some() -> None:
    template = TEMPLATES["qwen3-reranker"]
    found = prepared(template="qwen3-reranker", labels=None)
    assert found.label_token_ids == tuple(qwen3().single_token(label) for label in ("yes", "no"))
    prompt = Prompt(template.plain, BODY["query"], qwen3())
    assert sequences(found) == sequences_of(prompt, BODY["items"])
    assert prepared(template="qwen3-reranker").label_token_ids == (qwen3().single_token("yes"),)
    instructed = Prompt(template.wording("Judge"), BODY["query"], qwen3())
    assert sequences(prepared(template="qwen3-reranker", instruction="Judge"))[:1] == sequences_of(instructed, ["is"])


def test_log_probabilities_are_always_computed_for_templates() -> None:
    for fields in ({"template": "yes-no"}, {"query_template": "Q: {query}"}):
        assert parse_score_request(BODY | fields | {"apply_softmax": True}, TEMPLATES).options.head is Head.LOGPROBS


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"template": "none"}, "invalid_template", "template"),
        ({"template": 3}, "invalid_request", "template"),
        ({"query_template": 3}, "invalid_request", "query_template"),
        ({"query_template": "Q"}, "invalid_template", "query_template"),
        ({"query_template": "{query}{item}"}, "invalid_template", "query_template"),
        ({"item_template": "D"}, "invalid_template", "item_template"),
        ({"item_template": "{item}{item}"}, "invalid_template", "item_template"),
        ({"item_template": "{item}{instruction}"}, "invalid_template", "item_template"),
        ({"template": "yes-no", "item_template": "{item}"}, "invalid_request", "item_template"),
        ({"template": "yes-no", "item_first": True}, "invalid_template", "template"),
        ({"item_template": "{item}", "item_first": True}, "invalid_template", "item_template"),
        ({"instruction": "Judge"}, "invalid_template", "instruction"),
        ({"query_template": "{query}", "instruction": "Judge"}, "invalid_template", "instruction"),
        ({"query_template": "{query}{instruction}"}, "invalid_template", "instruction"),
        ({"query": [1], "items": [[2]], "item_template": "{item}"}, "invalid_template", "item_template"),
        ({"query": [1], "items": [[2]], "template": "yes-no"}, "invalid_template", "template"),
        ({"query": [1], "items": [[2]], "labels": None, "template": "yes-no"}, "invalid_template", "template"),
        ({"query": "", "item_template": "D: {item}"}, "empty_query", "query"),
        ({"name": "llama3", "template": "qwen3-reranker", "labels": None}, "invalid_template", "template"),
        ({"query_template": "{query}", "labels": None}, "missing_label_token_ids", "label_token_ids"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(fields: dict[str, Any], code: str, param: str) -> None:
    assert error(**fields) == (code, param)


def test_a_delimiter_stands_between_query_and_item_and_nowhere_else() -> None:
    delimiter = qwen3().added_tokens["<|endoftext|>"]
    templates: dict[str, Any] = {"query_template": "Q: {query}", "item_template": " {item}<|im_end|>"}
    (found,) = sequences(prepared(**templates, delimiter=delimiter, items=["is"]))
    assert found.count(delimiter) == 1
    assert found.index(delimiter) == len(qwen3().encode("Q: the answer"))
    assert error(query_template="Q<|endoftext|>: {query}", delimiter=delimiter) == ("delimiter_in_input", "query")
    in_item: dict[str, Any] = {"item_template": "{item}<|endoftext|>", "delimiter": delimiter}
    assert error(**in_item) == ("delimiter_in_input", "items[0]")
    sent = prepared(item_template="D: {item}", query="<|endoftext|>", items=["<|endoftext|>"], delimiter=delimiter)
    assert sequences(sent)[0].count(delimiter) == 1, "what a client sends is text"


def limit(name: str, most: int) -> Limits:
    changed: dict[str, Any] = {name: Limit(name, most)}
    return replace(GENEROUS, **changed)


def test_limits_on_characters_count_what_a_client_sends() -> None:
    most = limit("query_characters", 20)
    prepared(template="qwen3-reranker", limits=most)
    assert error(template="qwen3-reranker", instruction="x" * 21, limits=most) == ("request_too_large", "instruction")
    assert error(query_template="x" * 21 + "{query}", limits=most)[0] is ErrorCode.REQUEST_TOO_LARGE
    assert error(item_template="x" * 21 + "{item}", limits=most)[0] is ErrorCode.REQUEST_TOO_LARGE


def test_what_a_template_adds_to_each_row_is_checked_before_a_row_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("a row was made")

    behind = len(Prompt(TEMPLATES["qwen3-reranker"].plain, BODY["query"], qwen3()).row_encoder().suffix)
    monkeypatch.setattr("scoring.tokenizing.tokenization.TextTokenizer.encode_each", forbidden)
    fields: dict[str, Any] = {"template": "qwen3-reranker", "items": ["a"] * 10}
    assert behind > 5
    assert error(**fields, limits=limit("stored_tokens", behind * 10 - 1))[0] is ErrorCode.REQUEST_TOO_LARGE
    assert error(**fields, limits=limit("tokens", behind * 10))[0] is ErrorCode.REQUEST_TOO_LARGE
    fields = {"item_template": "{item}" + "x" * 150, "items": ["a"] * 10}
    assert error(**fields, limits=limit("repeated_characters", 1499))[0] is ErrorCode.REQUEST_TOO_LARGE


def test_a_context_that_is_too_short_is_said_with_the_lengths() -> None:
    with pytest.raises(RequestError, match=r"query and items\[0\] make at least \d+ tokens; the model's context is 50"):
        prepared(template="qwen3-reranker", context=50)
    length = max(map(len, sequences(prepared(template="qwen3-reranker"))))
    assert error(template="qwen3-reranker", context=length - 1) == ("context_length_exceeded", "items[1]")
    prepared(template="qwen3-reranker", context=length)
