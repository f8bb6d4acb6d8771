"""Cutting a query does not change the tokens, and is done only where docs/tokenization.md shows that it is safe."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers, processors

from scoring.tokenizing import query_cut
from scoring.tokenizing.query_cut import QueryCutter
from scoring.tokenizing.tokenization import TextTokenizer
from tests.packed_rows import whole_sequences
from tests.scoring.tokenizing import tokenizers_under_test as under_test

ANY_TOKENIZER = st.sampled_from([*under_test.CUTTABLE.values(), *under_test.UNCUTTABLE.values()])
TEXT = st.one_of(
    st.lists(st.sampled_from(under_test.FRAGMENTS), max_size=12).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.text(" \n'.s日，1é\u0301", max_size=16),
)

QUERY = "Judge the answer. It's 42!\n\nQuestion: what is it? Document:"


def assert_same_rows(tokenizer: TextTokenizer, query: str, items: list[str]) -> None:
    quick_ids, quick = tokenizer.encode_rows(query, items)
    plain_ids, plain = under_test.encode_rows_plainly(tokenizer, query, items)
    assert quick_ids.tolist() == plain_ids.tolist() == tokenizer.encode(query)
    assert quick.prefix_ends.tolist() == plain.prefix_ends.tolist()
    assert quick.lengths.tolist() == plain.lengths.tolist()
    assert quick.tokens.tolist() == plain.tokens.tolist()
    assert quick.tokens.dtype == quick.lengths.dtype == quick.prefix_ends.dtype == np.int32


def assert_same_everywhere(query: str, item: str) -> None:
    for build in under_test.CUTTABLE.values():
        assert_same_rows(build(), query, [item])


@settings(max_examples=150)
@given(build=ANY_TOKENIZER, query=TEXT, items=st.lists(TEXT, max_size=4))
@example(build=under_test.qwen2, query="answer ", items=["", " ", "\n", "item", " item", "\u0308"])
@example(build=under_test.qwen2, query="日本，", items=["\n", "日本", "\u0338"])
@example(build=under_test.qwen2, query="a<|im_end|> ", items=["<|im_end|>", " <|im_end|>"])
@example(build=under_test.llama3, query="", items=["", "item"])
@example(build=under_test.gpt2, query="a \n", items=["", "\n", "item"])
def test_encoding_with_a_cut_query_gives_the_same_rows_as_without(
    build: Callable[[], TextTokenizer], query: str, items: list[str]
) -> None:
    assert_same_rows(build(), query, items)


@settings(max_examples=100)
@given(build=ANY_TOKENIZER, text=TEXT, data=st.data())
def test_rows_with_and_without_a_cut_agree_wherever_a_text_is_split_into_query_and_item(
    build: Callable[[], TextTokenizer], text: str, data: st.DataObject
) -> None:
    boundary = data.draw(st.integers(0, len(text)))
    assert_same_rows(build(), text[:boundary], [text[boundary:]])


@settings(max_examples=60)
@given(build=ANY_TOKENIZER, query=TEXT, items=st.lists(TEXT, max_size=4))
def test_prefix_and_row_are_the_tokens_of_query_and_item_with_the_longest_possible_prefix(
    build: Callable[[], TextTokenizer], query: str, items: list[str]
) -> None:
    tokenizer = build()
    ids, rows = tokenizer.encode_rows(query, items)
    assert whole_sequences(ids, rows) == [tokenizer.encode(query + item) for item in items]
    for whole, end in zip(whole_sequences(ids, rows), rows.prefix_ends, strict=True):
        assert end in (len(ids), len(whole)) or ids[end] != whole[end]


@pytest.mark.parametrize("build", under_test.CUTTABLE.values(), ids=under_test.CUTTABLE)
@pytest.mark.parametrize(
    ("query", "tail"),
    [
        (QUERY, ":"),
        ("Is it? ", " "),
        ("Answer\n", "\n"),
        ("东京是日本的首都。", "。"),
        ("これはペンです。\n次", "。\n次"),
        ("a  b", "  b"),
    ],
)
def test_ordinary_queries_are_cut_near_their_end(build: Callable[[], TextTokenizer], query: str, tail: str) -> None:
    cut = build()._cutter.cut(query)
    assert cut is not None
    assert query[cut:] == tail


@pytest.mark.parametrize("query", ["", "word", "  ", "\n\n", " word", "?\n", "12\n", "é,", "ー。"])
def test_a_query_without_a_safe_place_is_not_cut(query: str) -> None:
    assert under_test.qwen2()._cutter.cut(query) is None


@pytest.mark.parametrize(
    ("unsafe", "query", "item"),
    [
        (r"(?<=\?)\n", "why?\n\n", "because"),  # punctuation takes the newlines behind it
        (r"(?<=\d)\d", "12", "3"),  # not for Qwen's digits, but for Llama's
        (r"(?<=\S)\u0301", "e\u0301", "x"),  # NFC composes
        (r"(?<=im)_", "<|im_", "end|>"),  # through an added token
        (r"(?<= ) ", "a  ", "b"),  # through a run of whitespace
    ],
)
def test_a_cut_in_an_unsafe_place_changes_the_tokens(
    unsafe: str, query: str, item: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unsafe cut is planted to show that the comparison above would notice it."""
    monkeypatch.setattr(query_cut, "_LAST_CUT", re.compile(rf"(?s).*(?:{unsafe})"))
    with pytest.raises(AssertionError):
        assert_same_everywhere(query, item)


def altered(change: Callable[[Tokenizer], None]) -> TextTokenizer:
    tokenizer = under_test.train(under_test.split_by(under_test.QWEN2), normalizer=normalizers.NFC())
    change(tokenizer)
    return TextTokenizer(tokenizer)


def set_part(name: str, value: object) -> Callable[[Tokenizer], None]:
    return lambda tokenizer: setattr(tokenizer, name, value)


def add(token: AddedToken) -> Callable[[Tokenizer], None]:
    def change(tokenizer: Tokenizer) -> None:
        tokenizer.add_tokens([token])

    return change


def set_dropout(tokenizer: Tokenizer) -> None:
    tokenizer.model.dropout = 0.5


BEYOND_THE_PROOF = {
    "text is lowercased": set_part("normalizer", normalizers.Lowercase()),
    "one normaliser of several is unknown": set_part(
        "normalizer", normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    ),
    "a token follows the text": set_part("post_processor", under_test.around(after="<|endoftext|>")),
    "two templates": set_part(
        "post_processor",
        processors.Sequence([under_test.around("<|endoftext|>"), under_test.around("<|endoftext|>")]),
    ),
    "post-processor of another kind": set_part(
        "post_processor", processors.BertProcessing(("<|im_start|>", 1), ("<|im_end|>", 2))
    ),
    "a space is put before the text": set_part(
        "pre_tokenizer", under_test.split_by(under_test.QWEN2, prefix_space=True)
    ),
    "an expression nobody has looked at": set_part("pre_tokenizer", under_test.split_by(r"\w+|\W+")),
    "an inverted split": set_part(
        "pre_tokenizer",
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split("x", "removed", invert=True), pre_tokenizers.ByteLevel(False, use_regex=False)]
        ),
    ),
    "merges dropped by chance": set_dropout,
    "an added token with a space": add(AddedToken("answer is")),
    "an added token with a cut of the second kind": add(AddedToken("Answer:x")),
    "an added token that normalises to one with a cut": add(AddedToken("\u8c48\uff0cx".replace("\u8c48", "\uf900"))),
    "an added token that absorbs whitespace before it": add(AddedToken("[M]", lstrip=True)),
    "an added token that absorbs whitespace behind it": add(AddedToken("[M]", rstrip=True)),
    "an added token that must be a word": add(AddedToken("ans", single_word=True)),
}


@pytest.mark.parametrize("change", BEYOND_THE_PROOF.values(), ids=BEYOND_THE_PROOF)
def test_a_tokenizer_with_unknown_steps_never_has_its_queries_cut(change: Callable[[Tokenizer], None]) -> None:
    assert altered(lambda _: None)._cutter.cut(QUERY) is not None
    assert altered(change)._cutter.cut(QUERY) is None


@pytest.mark.parametrize("build", under_test.UNCUTTABLE.values(), ids=under_test.UNCUTTABLE)
def test_queries_of_sentence_piece_tokenizers_are_never_cut(build: Callable[[], TextTokenizer]) -> None:
    assert build()._cutter == QueryCutter(None)


@pytest.mark.parametrize(
    ("token", "query", "item"),
    [
        (AddedToken("answer is"), "the answer", " is"),
        (AddedToken("answer", rstrip=True), "the answer ", " is"),
        (AddedToken("is", lstrip=True), "the answer ", " is"),
        (AddedToken("Answer:x", normalized=False), "Answer:", "x"),
    ],
)
def test_added_tokens_across_the_boundary_of_query_and_item_are_found(token: AddedToken, query: str, item: str) -> None:
    assert_same_rows(altered(add(token)), query, [item, "", item + item])
