"""Labels of any number of tokens, and likelihoods, are tokenized as the whole text is, for all tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from checkpoints.card import ModelCard
from scoring.error_codes import ErrorCode, RequestError
from scoring.limits import Limits
from scoring.prepare import PreparedRequest, prepare
from scoring.request import parse_likelihood_request, parse_score_request
from scoring.templates.template import Template, parse_template
from scoring.tokenizing.tokenization import TextTokenizer
from tests.packed_rows import whole_sequences
from tests.scoring.generous_limits import GENEROUS
from tests.scoring.templates.prompts import in_transformers, texts_of, tokens_by_transformers
from tests.scoring.templates.test_encoding import ENDED
from tests.scoring.tokenizing import tokenizers_under_test as under_test
from tests.scoring.tokenizing.tokenizer_families import FAMILIES, family

TOKENIZERS: dict[str, Callable[[], TextTokenizer]] = {
    **under_test.CUTTABLE,
    **under_test.UNCUTTABLE,
    **{name: lambda name=name: family(name).ours for name in FAMILIES},  # type: ignore[misc]
    "ended": lambda: ENDED,
}
ANY_TOKENIZER = st.sampled_from(sorted(TOKENIZERS))
TEXT = st.one_of(
    st.lists(st.sampled_from(under_test.FRAGMENTS), max_size=8).map("".join), st.text(" \n'.s日，1é\u0301", max_size=10)
)
LABELS = st.lists(TEXT.filter(bool), min_size=1, max_size=4)
DELIMITER = 1


def card_of(tokenizer: TextTokenizer, delimiter: int | None = None, context_length: int = 4096) -> ModelCard:
    return ModelCard("small", context_length, tokenizer.vocabulary, tokenizer.fingerprint, delimiter)


def prepared(
    tokenizer: TextTokenizer,
    body: dict[str, Any],
    *,
    delimiter: int | None = None,
    limits: Limits = GENEROUS,
    templates: dict[str, Template] | None = None,
    context_length: int = 4096,
) -> PreparedRequest:
    request = parse_score_request({"label_scoring": "sequence", **body}, templates)
    return prepare(request, card_of(tokenizer, delimiter, context_length), tokenizer, limits)


Sequence = tuple[list[int], list[int]]
"""What stands before the targets, and the targets."""


def sequences(request: PreparedRequest) -> list[list[Sequence]]:
    """Return the continuations of each item, as the engine scores them."""
    found: list[list[Sequence]] = []
    for chunk in request.chunks:
        rows, continuations = whole_sequences(request.prefix, chunk.rows), chunk.continuations
        assert continuations is not None
        labels, start = len(continuations) // len(rows), 0
        for n, row in enumerate(rows):
            of_row = []
            for place in range(n * labels, (n + 1) * labels):
                stop = start + int(continuations.lengths[place])
                of_row.append((row[: continuations.kept[place]], continuations.tokens[start:stop].tolist()))
                start = stop
            found.append(of_row)
    return found


def split_plainly(base: list[int], whole: list[int]) -> Sequence:
    """Return a whole sequence, split where it begins to differ from that without the label."""
    shared = 0
    while shared < min(len(base), len(whole)) and base[shared] == whole[shared]:
        shared += 1
    return whole[:shared], whole[shared:]


def expected(encode: Callable[[str], list[int]], before: list[str], labels: list[str]) -> list[list[Sequence]]:
    """Return the plain definition. before: the text before the labels, of each item."""
    found = [[split_plainly(encode(text), encode(text + label)) for label in labels] for text in before]
    # What nothing stands before, and a label without a token, is refused.
    assume(all(kept and targets for of_item in found for kept, targets in of_item))
    return found


@settings(max_examples=80)
@given(name=ANY_TOKENIZER, query=TEXT.filter(bool), items=st.lists(TEXT, min_size=1, max_size=3), labels=LABELS)
@example(name="qwen2", query="answer", items=["", " is", " "], labels=[" yes", "s", " ", "\n", "\u0308", "<|im_end|>"])
@example(name="llama3", query="12", items=["3", "日本"], labels=["45", "，語", "'s", "don't"])
@example(name="ended", query="a", items=["", "b"], labels=["c", " d e"])
def test_the_targets_of_a_label_are_what_it_adds_to_the_tokens_of_the_text_before(
    name: str, query: str, items: list[str], labels: list[str]
) -> None:
    tokenizer = TOKENIZERS[name]()
    plain = expected(tokenizer.encode, [query + item for item in items], labels)
    request = prepared(tokenizer, {"query": query, "items": items, "labels": labels})
    assert sequences(request) == plain
    assert [row for chunk in request.chunks for row in whole_sequences(request.prefix, chunk.rows)] == [
        tokenizer.encode(query + item) for item in items
    ]


@settings(max_examples=40)
@given(name=ANY_TOKENIZER, query=TEXT.filter(bool), items=st.lists(TEXT, min_size=1, max_size=3), labels=LABELS)
def test_with_item_first_a_label_stands_behind_the_query(
    name: str, query: str, items: list[str], labels: list[str]
) -> None:
    tokenizer = TOKENIZERS[name]()
    assume(tokenizer.encode(query))
    plain = expected(tokenizer.encode, [item + query for item in items], labels)
    body = {"query": query, "items": items, "labels": labels, "item_first": True}
    assert sequences(prepared(tokenizer, body)) == plain


@settings(max_examples=40)
@given(name=ANY_TOKENIZER, query=TEXT.filter(bool), items=st.lists(TEXT, min_size=1, max_size=3), labels=LABELS)
def test_in_delimiter_mode_a_label_is_tokenized_with_the_item_alone(
    name: str, query: str, items: list[str], labels: list[str]
) -> None:
    tokenizer = TOKENIZERS[name]()
    before = tokenizer.encode(query)
    assume(before and DELIMITER not in before)

    def encode(text: str) -> list[int]:
        return [*before, DELIMITER, *tokenizer.encode(text, add_special_tokens=False)]

    plain = expected(encode, items, labels)
    assume(all(DELIMITER not in [*encode(item)[len(before) + 1 :]] for item in items))
    assume(all(DELIMITER not in targets for of_item in plain for _, targets in of_item))
    body = {"query": query, "items": items, "labels": labels}
    assert sequences(prepared(tokenizer, body, delimiter=DELIMITER)) == plain


@settings(max_examples=40)
@given(
    name=ANY_TOKENIZER,
    pieces=st.lists(TEXT, max_size=2),
    behind=TEXT,
    query=TEXT.filter(bool),
    items=st.lists(TEXT, min_size=1, max_size=3),
    labels=LABELS,
)
@example(
    name="qwen2", pieces=[], behind=" Answer: a long text, behind the item:", query="q", items=["i"], labels=["no"]
)
@example(name="qwen2", pieces=[], behind="<|im_end|>", query="q", items=["<|im_end|> a", "<|im_end|>"], labels=["no"])
@example(name="ended", pieces=[], behind="", query="<|im_end|>", items=["", "a", "<|im_end|>"], labels=["no", " way"])
@example(name="llama2", pieces=[], behind="", query="</s> q", items=["a</s>", "", "</s> "], labels=["no", " way"])
@example(name="ended", pieces=["<|im_end|>\n"], behind="", query="q", items=["i"], labels=["no", " way"])
def test_a_label_goes_on_with_the_last_piece_of_a_template(
    name: str, pieces: list[str], behind: str, query: str, items: list[str], labels: list[str]
) -> None:
    tokenizer = TOKENIZERS[name]()
    template = parse_template(
        "t",
        {
            "query": "Q: {query}\n",
            "item": ["{item}" + behind, *pieces],
            "labels": labels,
            "relevance": "softmax(0)",
            "label_scoring": "sequence",
        },
    )

    def encode_pieces(item: str, label: str) -> list[int]:
        *texts, end = texts_of(template.plain, query, item)
        pieces = [*texts, [*end, (label, False)]]
        return tokens_by_transformers(in_transformers(tokenizer), template.plain, pieces, tokenizer.around)

    plain = [[split_plainly(encode_pieces(item, ""), encode_pieces(item, label)) for label in labels] for item in items]
    assume(all(kept and targets for of_item in plain for kept, targets in of_item))
    body = {"query": query, "items": items, "template": "t", "label_scoring": None}
    assert sequences(prepared(tokenizer, body, templates={"t": template})) == plain


def test_ids_are_joined_unchanged() -> None:
    body = {"query": [1, 2], "items": [[3], []], "label_token_sequences": [[7], [8, 9]]}
    request = prepared(under_test.qwen2(), body)
    assert sequences(request) == [[([1, 2, 3], [7]), ([1, 2, 3], [8, 9])], [([1, 2], [7]), ([1, 2], [8, 9])]]
    assert request.prompt_tokens == 3 + 2 + 2 * 3
    of_texts = prepared(under_test.qwen2(), {"query": [1, 2], "items": [[3]], "labels": [" is", "the answer"]})
    encoded = [under_test.qwen2().encode(label) for label in (" is", "the answer")]
    assert sequences(of_texts) == [[([1, 2, 3], targets) for targets in encoded]]


def test_ids_stand_behind_the_tokens_of_a_text() -> None:
    tokenizer = under_test.qwen2()
    request = prepared(tokenizer, {"query": "the", "items": [" answer"], "label_token_sequences": [[8, 9]]})
    assert sequences(request) == [[(tokenizer.encode("the answer"), [8, 9])]]


@pytest.mark.parametrize(
    ("normalization", "divisors"), [(None, [1, 1]), ("none", [1, 1]), ("tokens", [1, 3]), ("bytes", [4, 10])]
)
def test_a_sum_is_divided_by_what_the_request_says(normalization: str | None, divisors: list[int]) -> None:
    tokenizer = under_test.qwen2()
    labels = [" the", "the answer is日"]
    labels[1] = "日本é, "
    assert len(labels[1].encode()) == 10
    request = prepared(
        tokenizer, {"query": "q", "items": ["", " a"], "labels": labels, "label_normalization": normalization}
    )
    [continuations] = [chunk.continuations for chunk in request.chunks]
    assert continuations is not None
    if normalization == "tokens":
        divisors = continuations.lengths[:2].tolist()
        assert divisors[1] > 1
    assert continuations.divisors.tolist() == divisors * 2


LIKELIHOOD_TEXT = TEXT.filter(bool)


@settings(max_examples=60)
@given(name=ANY_TOKENIZER, query=TEXT, items=st.lists(TEXT, min_size=1, max_size=4))
@example(name="llama3", query="", items=["", "the answer"])
def test_a_likelihood_is_that_of_the_tokens_that_an_item_adds(name: str, query: str, items: list[str]) -> None:
    tokenizer = TOKENIZERS[name]()
    base = tokenizer.encode(query)
    plain = [split_plainly(base, tokenizer.encode(query + item)) for item in items]
    assume(base and all(kept for kept, _ in plain))
    request = parse_likelihood_request({"query": query, "items": items})
    found = prepare(request, card_of(tokenizer), tokenizer, GENEROUS)
    assert sequences(found) == [[one] for one in plain]
    assert all(not len(chunk.rows.tokens) for chunk in found.chunks)
    assert found.prompt_tokens == sum(len(kept) + len(targets) for kept, targets in plain)


def refusal(tokenizer: TextTokenizer, body: dict[str, Any], **options: Any) -> tuple[str, str | None]:
    with pytest.raises(RequestError) as caught:
        prepared(tokenizer, body, **options)
    assert len(caught.value.message) < 400
    return caught.value.code, caught.value.param


IDS = {"query": [1], "items": [[2]]}
TEXTS = {"query": "the", "items": [" answer"]}


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (IDS, "missing_label_token_ids", "label_token_sequences"),
        (IDS | {"label_token_sequences": []}, "empty_label_token_ids", "label_token_sequences"),
        (IDS | {"label_token_sequences": [[5], []]}, "invalid_label_token_ids", "label_token_sequences[1]"),
        (IDS | {"label_token_sequences": [5]}, "invalid_label_token_ids", "label_token_sequences[0]"),
        (IDS | {"label_token_sequences": {}}, "invalid_label_token_ids", "label_token_sequences"),
        (IDS | {"label_token_sequences": [[5, True]]}, "invalid_label_token_ids", "label_token_sequences[0][1]"),
        (IDS | {"label_token_sequences": [[5], [-1]]}, "negative_token_id", "label_token_sequences[1][0]"),
        (IDS | {"label_token_sequences": [[5, 10**6]]}, "token_id_exceeds_vocab", "label_token_sequences[0][1]"),
        (IDS | {"label_token_sequences": [[5]] * 300}, "too_many_labels", "label_token_sequences"),
        (IDS | {"label_token_ids": [5]}, "invalid_label_token_ids", "label_token_ids"),
        (IDS | {"label_token_sequences": [[5]], "labels": ["a"]}, "invalid_request", "labels"),
        (TEXTS | {"labels": ["a", ""]}, "invalid_label_token_ids", "labels[1]"),
        (TEXTS | {"labels": ["a"], "return_logits": True}, "unsupported_parameter", "return_logits"),
        (TEXTS | {"labels": ["a"], "label_normalization": "letters"}, "invalid_request", "label_normalization"),
        (TEXTS | {"labels": ["a"], "label_scoring": "word"}, "invalid_request", "label_scoring"),
        (TEXTS | {"labels": ["a"], "label_scoring": 1}, "invalid_request", "label_scoring"),
        (
            IDS | {"label_token_sequences": [[5]], "label_normalization": "bytes"},
            "unsupported_parameter",
            "label_normalization",
        ),
        (
            IDS | {"label_token_sequences": [[5]], "label_scoring": None},
            "unsupported_parameter",
            "label_token_sequences",
        ),
        (
            IDS | {"label_token_ids": [5], "label_scoring": "token", "label_normalization": "tokens"},
            "unsupported_parameter",
            "label_normalization",
        ),
    ],
)
def test_wrong_labels_are_refused_where_they_stand(body: dict[str, Any], code: str, param: str) -> None:
    assert refusal(under_test.qwen2(), body) == (code, param)


def test_the_longest_label_must_fit_the_context() -> None:
    tokenizer = under_test.qwen2()
    body = {"query": [1] * 10, "items": [[2] * 5, [2] * 6], "label_token_sequences": [[3], [4] * 4]}
    assert prepared(tokenizer, body, context_length=20).total_items == 2
    assert refusal(tokenizer, body, context_length=19) == ("context_length_exceeded", "items[1]")
    likelihood = parse_likelihood_request({"query": [1] * 10, "items": [[2] * 5, [2] * 6]})
    with pytest.raises(RequestError, match=r"items\[1\] make 16 tokens") as caught:
        prepare(likelihood, card_of(tokenizer, context_length=15), tokenizer, GENEROUS)
    assert caught.value.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED


def test_a_delimiter_in_a_label_is_refused() -> None:
    body = {"query": [5], "items": [[6]], "label_token_sequences": [[7], [7, DELIMITER]]}
    assert refusal(under_test.qwen2(), body, delimiter=DELIMITER) == ("delimiter_in_input", "label_token_sequences[1]")


def test_a_label_that_merges_with_the_whole_text_is_refused() -> None:
    tokenizer = under_test.qwen2()
    assert len(tokenizer.encode("the")) == len(tokenizer.encode("th")) == 1
    assert refusal(tokenizer, {"query": "th", "items": ["", " is"], "labels": ["e"]}) == ("empty_query", "items[0]")
    likelihood = parse_likelihood_request({"query": "th", "items": [" is", "e"]})
    with pytest.raises(RequestError, match="merge to one token") as caught:
        prepare(likelihood, card_of(tokenizer), tokenizer, GENEROUS)
    assert (caught.value.code, caught.value.param) == (ErrorCode.EMPTY_QUERY, "items[1]")


def test_an_empty_query_needs_a_tokenizer_that_adds_a_beginning_token() -> None:
    request = parse_likelihood_request({"query": "", "items": ["the answer"]})
    tokenizer = under_test.llama3()
    assert sequences(prepare(request, card_of(tokenizer), tokenizer, GENEROUS)) == [
        [([0], tokenizer.encode("the answer")[1:])]
    ]
    without = under_test.qwen2()
    with pytest.raises(RequestError) as caught:
        prepare(request, card_of(without), without, GENEROUS)
    assert caught.value.code is ErrorCode.EMPTY_QUERY
