"""The tokenizers of all families give the tokens that transformers gives, with and without cutting the query."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from checkpoints.files import CheckpointError, read_model_card
from scoring.error_codes import ErrorCode, RequestError
from scoring.tokenizing import query_cut
from scoring.tokenizing.tokenization import TextTokenizer
from tests.packed_rows import whole_sequences
from tests.scoring.tokenizing import tokenizer_families as families
from tests.scoring.tokenizing.tokenizer_families import CUTTABLE, FAMILIES, SENTENCE_PIECE, Family, family
from tests.scoring.tokenizing.tokenizers_under_test import FRAGMENTS, encode_rows_plainly

MARKS = ("\u0301", "\u0308", "e\u0301", "E\u0301", "\u093c")
LETTERS = ("A", "b", "C", "dé", "É", "ǅ", "ʰ", "日", "か", "ß", "İ")
PIECES = st.sampled_from(
    (*FRAGMENTS, *MARKS, *LETTERS, "/", "//", "/\n", "▁", "<0x0A>", "ans", "[L]", "[R]", "cafe\u0301")
)
NAMES = st.sampled_from(sorted(FAMILIES))


def texts(replica: Family) -> st.SearchStrategy[str]:
    """Generate text that is difficult for all tokenizers, and for the special tokens of this one."""
    own = st.sampled_from(replica.fragments)
    return st.one_of(
        st.lists(PIECES | own, max_size=10).map("".join),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
        st.lists(st.sampled_from(("A", "b", "É", "\u0301", " ", "\n", "/", ".", "日", "1", *replica.fragments))).map(
            "".join
        ),
    )


def reference(replica: Family, text: str) -> list[int]:
    ids: list[int] = replica.transformers(text)["input_ids"]
    return ids


def assert_as_transformers(replica: Family, query: str, items: list[str]) -> None:
    """Check that the tokens with a cut query, those without, and those of transformers are the same."""
    ids, rows = replica.ours.encode_rows(query, items)
    plain_ids, plain = encode_rows_plainly(replica.ours, query, items)
    assert ids.tolist() == plain_ids.tolist() == reference(replica, query)
    assert rows.to_bytes() == plain.to_bytes()
    assert whole_sequences(ids, rows) == [reference(replica, query + item) for item in items]


@settings(max_examples=100)
@given(name=NAMES, data=st.data())
def test_rows_are_the_tokens_that_transformers_gives_to_query_and_item(name: str, data: st.DataObject) -> None:
    replica = family(name)
    query = data.draw(texts(replica))
    assert_as_transformers(replica, query, data.draw(st.lists(texts(replica), max_size=3)))


@settings(max_examples=60)
@given(name=NAMES, data=st.data())
def test_rows_agree_with_transformers_wherever_a_text_is_split_into_query_and_item(
    name: str, data: st.DataObject
) -> None:
    replica = family(name)
    text = data.draw(texts(replica))
    boundary = data.draw(st.integers(0, len(text)))
    assert_as_transformers(replica, text[:boundary], [text[boundary:]])


@settings(max_examples=60)
@given(name=NAMES, data=st.data())
def test_a_text_behind_an_added_token_has_the_tokens_that_transformers_gives_it_there(
    name: str, data: st.DataObject
) -> None:
    replica = family(name)
    text = data.draw(texts(replica))
    with_mark = copy.deepcopy(replica.transformers)
    with_mark.add_tokens([families.special("<|mark|>")])
    before, *behind = with_mark("<|mark|>" + text, add_special_tokens=False)["input_ids"]
    assert before == len(with_mark) - 1
    assert replica.ours.encode_behind_token(text) == behind


@settings(max_examples=80)
@given(
    query=st.text("AbCÉéǅʰ日か\u0301 \n/.,1", max_size=14),
    item=st.text("AbCÉéǅʰ日か\u0301 \n/.,1", max_size=8),
)
@example(query="ABC", item="d")
@example(query="ABC.", item="d")
@example(query="CamelCASE", item="case")
@example(query="a//", item="\n/")
@example(query="日本。", item="\u0301")
def test_tekken_queries_with_capitals_beside_the_cut_keep_their_tokens(query: str, item: str) -> None:
    assert_as_transformers(family("nemo"), query, [item])


@pytest.mark.parametrize("name", FAMILIES)
def test_queries_are_cut_for_exactly_the_supported_families(name: str) -> None:
    cut = family(name).ours._cutter.cut("Judge the answer. Question: what is it? Document:")
    assert (cut is not None) == (name in CUTTABLE)


def test_the_patterns_of_published_tokenizers_are_known() -> None:
    assert families.TEKKEN in query_cut.KNOWN_PATTERNS


@pytest.mark.parametrize("name", FAMILIES)
def test_the_beginning_of_text_token_occurs_once_and_only_if_the_tokenizer_adds_it(name: str) -> None:
    replica = family(name)
    for text in ("", "Yes", " Yes", "\n", "日本"):
        ids = replica.ours.encode(text)
        assert list[int | None](ids).count(replica.bos) == (0 if replica.bos is None else 1)
        assert replica.bos is None or ids[0] == replica.bos
    prefix, rows = replica.ours.encode_rows("The answer is", [" Yes", ""])
    assert [*prefix.tolist(), *rows.tokens.tolist()].count(replica.bos) == (0 if replica.bos is None else 1)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("label", [" Yes", " No", " yes", " positive"])
def test_a_label_is_the_token_that_it_becomes_behind_other_text(name: str, label: str) -> None:
    replica = family(name)
    token = replica.ours.single_token(label)
    before = reference(replica, "The answer:")
    assert reference(replica, "The answer:" + label) == [*before, token]


@pytest.mark.parametrize("name", SENTENCE_PIECE)
def test_labels_with_and_without_a_leading_space_are_different_tokens(name: str) -> None:
    """SentencePiece treats ``"c"`` at the beginning of a text like ``" c"``."""
    tokenizer = family(name).ours
    bare = tokenizer.single_token("c")
    assert tokenizer.pieces([bare]) == ["c"]
    assert tokenizer.pieces([tokenizer.single_token(" Yes")]) == ["▁Yes"]
    assert tokenizer.pieces([tokenizer.single_token("\n")]) == ["<0x0A>"]
    assert reference(family(name), "The answer\nc")[-1] == bare


@pytest.mark.parametrize("name", FAMILIES)
def test_a_special_token_can_be_a_label_but_several_tokens_can_not(name: str) -> None:
    replica = family(name)
    eos = replica.transformers.eos_token
    assert replica.ours.single_token(eos) == replica.transformers.convert_tokens_to_ids(eos)
    for text in ("", "Yes No", "🧿"):
        with pytest.raises(RequestError) as raised:
            replica.ours.single_token(text)
        assert raised.value.code is ErrorCode.LABEL_NOT_SINGLE_TOKEN


@pytest.mark.parametrize("name", SENTENCE_PIECE)
def test_pieces_of_sentence_piece_show_markers_and_bytes(name: str) -> None:
    tokenizer = family(name).ours
    pieces = tokenizer.pieces(tokenizer.encode("The answer\n🧿</s>", add_special_tokens=False))
    assert pieces == ["▁The", "▁answer", "<0x0A>", "<0xF0>", "<0x9F>", "<0xA7>", "<0xBF>", "</s>"]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_model_card_is_read_from_the_files_of_each_family(name: str) -> None:
    replica = family(name)
    card = read_model_card(replica.directory, None, None, replica.ours)
    assert card.vocabulary == len(replica.transformers)
    assert card.tokenizer_fingerprint == TextTokenizer.load(replica.directory).fingerprint


@pytest.mark.slow
def test_a_mistral_vocabulary_of_real_size_is_encoded_with_the_pattern_of_its_file(tmp_path: Path) -> None:
    """If there are more than 100,000 tokens, transformers may correct a wrong pattern in Mistral's files."""
    large = families.nemo(tmp_path / "large", padding=130_000)
    assert large.ours.vocabulary > 130_000
    for text in ("The answer is 42", "CamelCase//\n", "日本 🧿"):
        ids = large.ours.encode(text)
        assert ids == reference(large, text) == family("nemo").ours.encode(text)
    assert large.ours._cutter.cut("The answer:") is not None


def broken(tmp_path: Path, name: str, **files: bytes | None) -> Path:
    """Return a copy of a replica with some files changed, or removed if the content is None."""
    directory = shutil.copytree(family(name).directory, tmp_path / "model")
    for file, content in files.items():
        path = directory / file.replace("__", ".")
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
    return directory


ONLY_SENTENCE_PIECE: dict[str, Any] = {"tokenizer__json": None, "tokenizer__model": b"\x0a\x05<unk>"}


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"tokenizer__json": None}, "holds no tokenizer.json: add the model's tokenizer files"),
        (ONLY_SENTENCE_PIECE, "holds tokenizer.model but no tokenizer.json"),
        ({"tokenizer__json": None, "tekken__json": b"{}"}, "holds tekken.json but no tokenizer.json"),
        ({"tokenizer__json": b"{"}, "tokenizer.json: "),
        ({"tokenizer__json": b""}, "tokenizer.json: "),
        ({"tokenizer__json": b'{"model": {"type": "BPE", "vocab": {}'}, "tokenizer.json: "),
        ({"tokenizer__json": b'{"version": "9", "model": {"type": "Magic"}}'}, "tokenizer.json: "),
        ({"tokenizer__json": b"\xff\xfe"}, "tokenizer.json: "),
        (
            {"tokenizer_config__json": b'{"tokenizer_class": "ByT5Tokenizer"}', "config__json": b"{}"},
            "(ByT5Tokenizer) has no fast form",
        ),
        (
            {"tokenizer_config__json": b'{"auto_map": {"AutoTokenizer": ["code.Own", null]}}', "config__json": b"{}"},
            "is code in the checkpoint (auto_map in tokenizer_config.json), which is not run here",
        ),
    ],
)
@pytest.mark.parametrize("name", ["mistral_v01", "llama3"])
def test_the_error_for_an_unusable_tokenizer_names_file_and_remedy_on_one_line(
    tmp_path: Path, name: str, files: dict[str, bytes | None], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asks whoever sits at the terminal"))
    directory = broken(tmp_path, name, **files)
    with pytest.raises(CheckpointError) as raised:
        TextTokenizer.load(directory)
    message = str(raised.value)
    assert says in message
    assert str(directory) in message
    assert "\n" not in message


def test_a_tokenizer_of_vocab_json_and_merges_txt_is_loaded(tmp_path: Path) -> None:
    """The first repositories of Qwen have these files."""
    replica = family("qwen2_5")
    model = json.loads((replica.directory / "tokenizer.json").read_text())["model"]
    merges = "\n".join(" ".join(merge) for merge in model["merges"])
    directory = broken(
        tmp_path,
        "qwen2_5",
        tokenizer__json=None,
        vocab__json=json.dumps(model["vocab"]).encode(),
        merges__txt=f"#version: 0.2\n{merges}\n".encode(),
    )
    assert TextTokenizer.load(directory).encode("The answer is Yes") == replica.ours.encode("The answer is Yes")


def test_a_family_tokenizer_with_another_normaliser_never_has_its_queries_cut(tmp_path: Path) -> None:
    tokenizer = families.byte_level(families.TEKKEN)
    tokenizer.normalizer = normalizers.Lowercase()
    families.write(tmp_path, tokenizer, "mistral", "PreTrainedTokenizerFast")
    assert TextTokenizer.load(tmp_path)._cutter.cut("The answer:") is None
