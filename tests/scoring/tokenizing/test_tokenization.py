"""Tokenizing text: nothing is truncated, labels are single tokens, and equal fingerprints mean equal tokens."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers
from tokenizers.models import WordLevel
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from checkpoints.files import CheckpointError
from scoring.error_codes import ErrorCode, RequestError
from scoring.tokenizing import row_encoder, tokenization, tokenizer_files
from scoring.tokenizing.tokenization import TextTokenizer
from tests.scoring.tokenizing import tokenizers_under_test as under_test

TEXTS = ["", "The answer is", "日本語 😀", "a\x00b", "<|im_start|>user", " don't\n\n"]


def small() -> Tokenizer:
    return under_test.train(under_test.split_by(under_test.QWEN2), normalizer=normalizers.NFC())


def saved(tokenizer: Tokenizer, directory: Path, **options: object) -> Path:
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", **options)  # type: ignore[no-untyped-call]
    wrapped.save_pretrained(directory)
    return directory


def test_a_saved_tokenizer_encodes_as_transformers_does(tmp_path: Path) -> None:
    tokenizer = small()
    tokenizer.post_processor = under_test.around("<|endoftext|>")
    saved(tokenizer, tmp_path)
    reference = AutoTokenizer.from_pretrained(str(tmp_path))
    loaded = TextTokenizer.load(tmp_path)
    assert loaded.vocabulary == len(reference)
    for text in TEXTS:
        assert loaded.encode(text) == reference.encode(text)
        assert loaded.encode(text, add_special_tokens=False) == reference.encode(text, add_special_tokens=False)


def test_a_tokenizer_can_be_sent_to_another_process() -> None:
    tokenizer = TextTokenizer(small())
    copy: TextTokenizer = pickle.loads(pickle.dumps(tokenizer))
    assert copy.fingerprint == tokenizer.fingerprint
    for text in TEXTS:
        assert copy.row_encoder(text).query.tolist() == tokenizer.encode(text)


def test_a_qwen_checkpoint_is_recognised_as_one_that_can_be_cut(tmp_path: Path) -> None:
    saved(small(), tmp_path)
    config_path = tmp_path / "tokenizer_config.json"
    config_path.write_text(json.dumps(json.loads(config_path.read_text()) | {"tokenizer_class": "Qwen2Tokenizer"}))
    loaded = TextTokenizer.load(tmp_path)
    assert loaded._cutter.cut("The answer") is not None
    assert loaded.encode("The answer") == TextTokenizer(small()).encode("The answer")


def test_nothing_is_truncated_or_padded_whatever_the_files_say(tmp_path: Path) -> None:
    limited = small()
    limited.enable_truncation(4)
    limited.enable_padding(length=64)
    loaded = TextTokenizer.load(saved(limited, tmp_path, model_max_length=4))
    text = "The answer is a document. " * 20
    plain = TextTokenizer(small())
    assert loaded.encode(text) == plain.encode(text)
    assert len(loaded.encode(text)) > 64
    assert loaded.encode_rows(text, [text])[1].tokens.tolist() == plain.encode_rows(text, [text])[1].tokens.tolist()


def test_with_split_special_tokens_special_tokens_in_text_are_ordinary_text(tmp_path: Path) -> None:
    whole = TextTokenizer.load(saved(small(), tmp_path / "whole"))
    split = TextTokenizer.load(saved(small(), tmp_path / "split", split_special_tokens=True))
    assert len(whole.encode("<|im_end|>")) == 1
    assert len(split.encode("<|im_end|>")) > 1
    assert whole.fingerprint != split.fingerprint


WITHOUT_UNKNOWN = Tokenizer(WordLevel({"one": 0}, unk_token="<unk>")).to_str()
"""A tokenizer that raises for any other word: its vocabulary has no token for what is unknown."""


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (None, "does not exist"),
        ({}, "no tokenizer"),
        ({"tokenizer.json": "{"}, "no tokenizer"),
        ({"tokenizer.json": "{}"}, "no tokenizer"),
        ({"tokenizer.json": WITHOUT_UNKNOWN, "tokenizer_config.json": "{}"}, "can't encode every text"),
    ],
)
def test_a_directory_without_a_usable_tokenizer_is_one_clear_line(
    tmp_path: Path, files: dict[str, str] | None, reason: str
) -> None:
    directory = tmp_path / "model"
    if files is not None:
        directory.mkdir()
        for name, content in files.items():
            (directory / name).write_text(content)
    with pytest.raises(CheckpointError, match=reason) as raised:
        TextTokenizer.load(directory)
    assert "\n" not in str(raised.value)


def test_the_vocabulary_includes_the_highest_id_of_the_added_tokens() -> None:
    backend = small()
    size = TextTokenizer(backend).vocabulary
    assert size == backend.get_vocab_size(with_added_tokens=True)
    backend.add_tokens(["<extra>"])
    grown = TextTokenizer(backend)
    assert grown.vocabulary == size + 1
    assert grown.encode("<extra>") == [size]


def test_fingerprints_are_equal_exactly_if_tokenizers_behave_equally() -> None:
    reference = TextTokenizer(small()).fingerprint
    truncating, added, bos, unnormalised = (
        small(),
        small(),
        small(),
        under_test.train(under_test.split_by(under_test.QWEN2)),
    )
    truncating.enable_truncation(3)
    truncating.enable_padding()
    added.add_tokens(["<extra>"])
    bos.post_processor = under_test.around("<|endoftext|>")
    assert len(reference) == 64
    assert TextTokenizer(small()).fingerprint == TextTokenizer(truncating).fingerprint == reference
    others = {TextTokenizer(other).fingerprint for other in (added, bos, unnormalised)}
    assert len(others | {reference}) == 4


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner, max_size=5)
        | st.dictionaries(st.text(max_size=4), st.integers(), max_size=5)
    ),
)


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=5), st.integers(1, 3))
def test_a_fingerprint_is_that_of_the_definition_written_at_once(definition: dict[str, Any], at_once: int) -> None:
    whole = json.dumps(definition, sort_keys=True, separators=(",", ":")).encode()
    with patch.object(tokenizer_files, "_AT_ONCE", at_once):
        assert tokenizer_files.fingerprint_of(definition) == hashlib.sha256(whole).hexdigest()


def test_a_label_of_one_token_becomes_its_id() -> None:
    tokenizer = under_test.llama3()
    label = tokenizer.single_token(" is")
    assert tokenizer.pieces([label]) == [" is"]


@pytest.mark.parametrize(("label", "pieces"), [("", "0 tokens"), ("xx", "['x', 'x']"), ("\x00\x00", "['Ā', 'Ā']")])
def test_the_error_for_a_label_of_several_tokens_lists_them(label: str, pieces: str) -> None:
    tokenizer = under_test.qwen2()
    with pytest.raises(RequestError) as raised:
        tokenizer.single_token(label)
    assert raised.value.code is ErrorCode.LABEL_NOT_SINGLE_TOKEN
    assert pieces.replace("Ā", "\\x00") in raised.value.message


def test_the_error_for_a_label_names_the_blank_that_makes_it_one_token() -> None:
    tokenizer = under_test.qwen2()
    found = []
    for label in ("is", "", "is is"):
        with pytest.raises(RequestError) as raised:
            tokenizer.single_token(label)
        found.append("' is' is one; or give label_scoring" in raised.value.message)
    assert found == [True, False, False]


def test_pieces_are_text_if_they_are_whole_characters_and_vocabulary_spellings_if_not() -> None:
    tokenizer = under_test.qwen2()
    assert "".join(tokenizer.pieces(tokenizer.encode("The answer <|im_end|>"))) == "The answer <|im_end|>"
    broken = tokenizer.pieces(tokenizer.encode("\U0001f9ff"))
    assert len(broken) > 1
    assert "\ufffd" not in "".join(broken)


def test_pieces_of_a_sentence_piece_tokenizer_keep_the_word_marker() -> None:
    tokenizer = under_test.metaspace()
    assert tokenizer.pieces(tokenizer.encode("the"))[0].startswith("▁")


def test_an_item_that_removes_a_token_of_the_query_has_a_shorter_prefix_and_an_empty_row() -> None:
    tokenizer = TextTokenizer(
        under_test.train(under_test.split_by(under_test.QWEN2), normalizer=normalizers.Replace("zz", ""))
    )
    ids, rows = tokenizer.encode_rows("!z", ["", "z"])
    assert ids.tolist() == tokenizer.encode("!") + tokenizer.encode("z")
    assert rows.prefix_ends.tolist() == [2, 1]
    assert rows.lengths.tolist() == [0, 0]


def test_an_empty_list_of_items_has_no_rows() -> None:
    ids, rows = under_test.qwen2().encode_rows("The answer", [])
    assert ids.tolist() == under_test.qwen2().encode("The answer")
    assert len(rows) == 0


def test_batch_sizes_do_not_change_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [f" item {n}" * (n % 7) for n in range(200)]
    whole = under_test.gpt2().encode_rows("The answer", items)[1]
    monkeypatch.setattr(row_encoder, "BATCH_ROWS", 7)
    monkeypatch.setattr(row_encoder, "BATCH_CHARACTERS", 50)
    pieces = under_test.gpt2().encode_rows("The answer", items)[1]
    assert pieces.to_bytes() == whole.to_bytes()


def test_rows_are_encoded_in_batches_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_encoder, "BATCH_CHARACTERS", 3400)
    for build, sizes in ((under_test.unsplit, [2, 2, 2]), (under_test.qwen2, [6])):
        encode_rows = build().row_encoder("word " * 300)
        assert [len(batch) for batch in encode_rows(["x"] * 6)] == sizes


def test_an_added_token_matched_after_normalisation_is_found_in_both_unicode_spellings() -> None:
    backend = small()
    backend.add_tokens([AddedToken("caf\u00e9", normalized=True)])
    tokenizer = TextTokenizer(backend)
    assert tokenizer.encode("cafe\u0301") == tokenizer.encode("caf\u00e9")
    assert len(tokenizer.encode("cafe\u0301")) == 1


class _WithoutThreads:
    """A tokenizer whose own threads can't be used."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> object:
        assert name != "encode_batch_fast", "the tokenizer's own threads are busy"
        return getattr(self._backend, name)


def test_few_short_texts_do_not_wait_for_the_threads_of_the_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = small()
    backend.post_processor = under_test.around("<|endoftext|>")
    expected = [encoding.ids for encoding in backend.encode_batch_fast(TEXTS)]
    tokenizer = TextTokenizer(backend)
    monkeypatch.setattr(tokenizer, "_backend", _WithoutThreads(backend))
    assert [tokenizer.encode(text) for text in TEXTS] == expected
    tokens, lengths = tokenizer.encode_batch(TEXTS, add_special_tokens=True)
    assert tokens.tolist() == [token for ids in expected for token in ids]
    assert lengths.tolist() == [len(ids) for ids in expected]
    with pytest.raises(AssertionError, match="busy"):
        tokenizer.encode("a " * tokenization._SHORT_CHARACTERS)
