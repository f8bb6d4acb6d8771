"""A prompt is a text: its tokens are those that the tokenizer gives to the joined text, or to each of its pieces.

But no client writes control tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from checkpoints.card import ModelCard
from scoring.error_codes import ErrorCode, RequestError
from scoring.prepare import prepare
from scoring.request import parse_score_request
from scoring.templates.encoding import Prompt
from scoring.templates.known import KnownTemplates
from scoring.templates.template import parse_template
from scoring.templates.wording import Place, Wording, read_pieces
from scoring.tokenizing.tokenization import TextTokenizer
from tests.packed_rows import whole_sequences
from tests.scoring.generous_limits import GENEROUS
from tests.scoring.templates.prompts import (
    Texts,
    in_transformers,
    sequences_of,
    text_of,
    texts_of,
    tokens_by_transformers,
)
from tests.scoring.tokenizing import tokenizers_under_test as under_test
from tests.scoring.tokenizing.tokenizer_families import FAMILIES, family
from tests.scoring.tokenizing.tokenizers_under_test import FRAGMENTS

TEMPLATES = KnownTemplates.read(None, "any").by_name
NAMES = st.sampled_from(sorted(FAMILIES))
DELIMITER = 2**20
"""No token of any tokenizer."""


def transformers(name: str, text: str, *, add_special_tokens: bool = True) -> list[int]:
    ids: list[int] = family(name).transformers(text, add_special_tokens=add_special_tokens)["input_ids"]
    return ids


def tokens_of(name: str, wording: Wording, pieces: Sequence[Texts], *, begins: bool = True) -> list[int]:
    bos = family(name).bos
    around: tuple[list[int], list[int]] = ([bos] if begins and bos is not None else [], [])
    return tokens_by_transformers(family(name).transformers, wording, pieces, around)


def texts(name: str, *more: str) -> st.SearchStrategy[str]:
    """Generate awkward text, with the added tokens of a tokenizer in it and with those that a template has."""
    awkward = (*FRAGMENTS, "ans", "[L]", "[R]", "cafe\u0301")
    fragments = st.sampled_from([*awkward, *more]) | st.sampled_from(family(name).fragments)
    return st.lists(fragments, max_size=6).map("".join)


@settings(max_examples=60)
@given(name=NAMES, data=st.data())
def test_tokens_by_the_templates_of_a_request_are_those_of_the_joined_text(name: str, data: st.DataObject) -> None:
    own, sent = texts(name), texts(name, "{query}", "{item}", "{instruction}")
    before, between, in_front, behind = (data.draw(own) for _ in range(4))
    query, items = data.draw(sent.filter(bool)), data.draw(st.lists(sent, min_size=1, max_size=3))
    body = {
        "query": query,
        "items": items,
        "labels": [family(name).transformers.eos_token],
        "query_template": before + "{query}" + between,
        "item_template": in_front + "{item}" + behind,
    }
    tokenizer = family(name).ours
    card = ModelCard("small", 4096, tokenizer.vocabulary, tokenizer.fingerprint, None)
    wording = Wording(read_pieces(body["query_template"], Place.QUERY), read_pieces(body["item_template"], Place.ITEM))
    expected = [tokens_of(name, wording, texts_of(wording, query, item)) for item in items]
    assume(all(expected))  # without any token, there is nothing to score
    found = prepare(parse_score_request(body, {}), card, tokenizer, GENEROUS)
    assert [s for chunk in found.chunks for s in whole_sequences(found.prefix, chunk.rows)] == expected
    assert found.prompt_tokens == sum(map(len, expected))


def test_an_added_token_within_a_word_of_the_templates_own_instruction_divides_nothing() -> None:
    """Where a client writes the same instruction, the word is divided, as transformers divides it."""
    name = "llama3_with_awkward_tokens"  # It has the token "ans", and the instruction the word "answer".
    own = TEMPLATES["qwen3-reranker"].wording(None)
    assert "answer" in own.instruction
    sent = TEMPLATES["qwen3-reranker"].wording(own.instruction)
    [by_template], [by_client] = (
        sequences_of(Prompt(wording, "a", family(name).ours), ["b"]) for wording in (own, sent)
    )
    assert by_template == transformers(name, text_of(own, "a", "b"))
    assert len(by_client) > len(by_template)


@settings(max_examples=50)
@given(name=NAMES, template=st.sampled_from(sorted(TEMPLATES)), instructed=st.booleans(), data=st.data())
def test_tokens_by_a_named_template_are_those_of_its_pieces(
    name: str, template: str, instructed: bool, data: st.DataObject
) -> None:
    sent = texts(name, "{query}", "{item}")
    query, items = data.draw(sent.filter(bool)), data.draw(st.lists(sent, min_size=1, max_size=3))
    wording = TEMPLATES[template].wording(data.draw(sent) if instructed else None)
    expected = [tokens_of(name, wording, texts_of(wording, query, item)) for item in items]
    assert sequences_of(Prompt(wording, query, family(name).ours), items) == expected
    if len(wording.query) == len(wording.item) == 1 and not any(
        token in text for text in (query, *items, wording.instruction) for token in family(name).ours.added_tokens
    ):
        assert expected == [transformers(name, text_of(wording, query, item)) for item in items]


@settings(max_examples=40)
@given(name=NAMES, data=st.data())
def test_in_delimiter_mode_query_and_item_are_tokenized_apart(name: str, data: st.DataObject) -> None:
    before, between, in_front, behind, query, item = (data.draw(texts(name)) for _ in range(6))
    wording = Wording(
        read_pieces(before + "{query}" + between, Place.QUERY), read_pieces(in_front + "{item}" + behind, Place.ITEM)
    )
    of_query: Texts = [(before, False), (query, True), (between, False)]
    of_item: Texts = [(in_front, False), (item, True), (behind, False)]
    begun = [*tokens_of(name, wording, [of_query]), DELIMITER]
    prompt = Prompt(wording, query, family(name).ours, DELIMITER)
    assert sequences_of(prompt, [item]) == [[*begun, *tokens_of(name, wording, [of_item], begins=False)]]
    assert prompt.row_encoder().query.tolist()[: len(begun)] == begun


def ended() -> TextTokenizer:
    """Return a tokenizer that puts a token before and another behind every text."""
    tokenizer = under_test.train(under_test.split_by(under_test.QWEN2), normalizer=normalizers.NFC())
    tokenizer.post_processor = under_test.around("<|endoftext|>", "<|endoftext|>")
    return TextTokenizer(tokenizer)


ENDED = ended()
END = ENDED.added_tokens["<|endoftext|>"]


@settings(max_examples=60)
@given(
    query=st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join),
    item=st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join),
)
@example(query="<|endoftext|>", item="")
@example(query="a", item="<|endoftext|>")
def test_special_tokens_stand_around_the_whole_prompt(query: str, item: str) -> None:
    one_text = Wording(read_pieces("Q: {query}.", Place.QUERY), read_pieces("\n{item}<|im_end|>", Place.ITEM))

    def tokens(wording: Wording, pieces: Sequence[Texts], *, ends: bool = True) -> list[int]:
        return tokens_by_transformers(in_transformers(ENDED), wording, pieces, ([END] * ends, [END] * ends))

    expected = tokens(one_text, texts_of(one_text, query, item))
    assert sequences_of(Prompt(one_text, query, ENDED), [item]) == [expected]
    pieces = Wording(read_pieces(["Q: {query}.", "\n"], Place.QUERY), read_pieces(["{item}", "."], Place.ITEM))
    assert sequences_of(Prompt(pieces, query, ENDED), [item]) == [tokens(pieces, texts_of(pieces, query, item))]
    of_query: Texts = [("Q: ", False), (query, True), (".", False)]
    of_item: Texts = [("\n", False), (item, True), ("<|im_end|>", False)]
    apart = [*tokens(one_text, [of_query]), DELIMITER, *tokens(one_text, [of_item], ends=False)]
    assert sequences_of(Prompt(one_text, query, ENDED, DELIMITER), [item]) == [apart]


CHARACTERS = [*"<|>/_abcdefghijklmnopqrstuvwxyz"]
WORDS = ["<unk>", "</s>", "<|im_end|>", *CHARACTERS]
MERGES = [("<", "/"), ("</", "s"), ("</s", ">")]
MODELS = {
    "unigram": models.Unigram([(word, -9.0 if word in CHARACTERS else 0.0) for word in WORDS], unk_id=0),
    "words": models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"),
    "merges": models.BPE({word: n for n, word in enumerate([*WORDS, "</", "</s"])}, MERGES, unk_token="<unk>"),
}


@pytest.mark.parametrize("name", MODELS)
def test_control_tokens_that_are_also_words_of_the_vocabulary_are_read_as_in_any_text_or_refused(name: str) -> None:
    backend = Tokenizer(MODELS[name])
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["</s>", "<|im_end|>"])
    tokenizer = TextTokenizer(backend)
    wording = Wording(read_pieces("{query}", Place.QUERY), read_pieces("{item}</s>", Place.ITEM))
    (found,) = sequences_of(Prompt(wording, "q ", tokenizer), ["a b"])
    assert found == tokenizer.encode("q a b</s>")
    body = {"query": "q", "items": ["a", "a </s>"], "item_template": "{item}</s>", "label_token_ids": [1]}
    card = ModelCard("small", 4096, tokenizer.vocabulary, tokenizer.fingerprint, None)
    for fields, param in (({}, "items[1]"), ({"query": "</s>"}, "query")):
        with pytest.raises(RequestError, match="</s>") as caught:
            prepare(parse_score_request({**body, **fields}, {}), card, tokenizer, GENEROUS)
        assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_REQUEST, param)


def test_nothing_merges_where_two_pieces_meet() -> None:
    tokenizer = family("qwen3").ours
    wording = Wording(read_pieces(["Q: {query}.", "\n"], Place.QUERY), read_pieces(["{item}", ".", "\n"], Place.ITEM))
    (found,) = sequences_of(Prompt(wording, "x", tokenizer), ["y"])
    assert found == [token for text in ("Q: x.", "\ny", ".", "\n") for token in tokenizer.encode(text)]
    assert found != tokenizer.encode("Q: x.\ny.\n")


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_a_client_sends_holds_no_control_token_by_itself_or_with_what_it_meets(template: str) -> None:
    tokenizer = family("qwen3").ours
    wording = TEMPLATES[template].plain

    def of_template(sequence: list[int]) -> list[int]:
        return [token for token in sequence if token in tokenizer.added_tokens.values()]

    (plain,) = sequences_of(Prompt(wording, "abc", tokenizer), ["abc"])
    found = sequences_of(Prompt(wording, "a<|im_end|>", tokenizer), ["<|im_start|>", "a <|endoftext|>\n<|im_end|>"])
    assert [of_template(sequence) for sequence in found] == [of_template(plain)] * 2
    assert all("<|im_end|>" in tokenizer.decode(sequence) for sequence in found)
    joined = Wording(read_pieces("{query}", Place.QUERY), read_pieces("{item}end|>", Place.ITEM))
    for query, item in (("<|im_", "end|>"), ("<|", "im_"), ("<|im_", "")):
        (sequence,) = sequences_of(Prompt(joined, query, tokenizer), [item])
        assert not of_template(sequence)
        assert tokenizer.decode(sequence) == f"{query}{item}end|>"


def test_items_share_what_stands_before_them() -> None:
    prompt = Prompt(TEMPLATES["qwen3-reranker"].plain, "what is it?", family("qwen3").ours)
    encoder = prompt.row_encoder()
    (rows,) = encoder(["the answer", "a document", ""])
    assert rows.prefix_ends.min() >= len(encoder.query) - 1
    assert len(encoder.tail) < 20, "what is encoded again with each document"


def test_the_default_instruction_of_a_template_keeps_its_control_tokens() -> None:
    tokenizer = family("qwen3").ours
    fields = {"query": "{instruction}: {query}", "item": "{item}", "labels": ["yes"], "relevance": "softmax(0)"}
    template = parse_template("own", {**fields, "default_instruction": "<|im_start|>Judge"})
    own, sent = (
        sequences_of(Prompt(template.wording(instruction), "q", tokenizer), ["a"])[0][0]
        for instruction in (None, "<|im_start|>Judge")
    )
    start = tokenizer.added_tokens["<|im_start|>"]
    assert own == start
    assert sent != start
