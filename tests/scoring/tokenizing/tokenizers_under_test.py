"""Small tokenizers with the real pre-tokenizers, trained on text as difficult as that of the tests."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from scoring.layout import Rows, TokenIds
from scoring.tokenizing.tokenization import TextTokenizer

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
# As spelled in the checkpoints; scoring.tokenizing.query_cut must recognise exactly these.
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN3_5 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

FRAGMENTS = (
    *(
        " ",
        "  ",
        "   ",
        "\n",
        "\n\n",
        "\r\n",
        "\r",
        "\t",
        " \n ",
        "\u00a0",
        "\u3000",
        "\u2028",
        "\x85",
        "\x1c",
        "\u180e",
    ),
    *("the", "The", "answer", " is", " a", "A", "query", "item", " document", "Document:", "x", "ſ", "İ", "ß", "ﬁ"),
    *("'", "''", "'s", "'S", "'t", "'re", "'ll", "'LL", "'ſ", "don't", "’s"),
    *("0", "1", "12", "1234", "3.14", "½", "٣", "²", "Ⅷ"),
    *(
        ".",
        ",",
        "?",
        "!",
        ":",
        ";",
        "...",
        "?!",
        ".\n",
        "?\n\n",
        "!\r\n",
        "-",
        "--",
        "(",
        ")",
        "=",
        "<",
        ">",
        "/",
        "\\",
    ),
    *(
        "é",
        "e\u0301",
        "\u0301",
        "\u0338",
        "=\u0338",
        " \u0308",
        "\u0345",
        "क\u093c",
        "\u0958",
        "\uf900",
        "\u1fef",
        "\u212a",
    ),
    *(
        "日本",
        "語",
        "日本語",
        "，",
        "。",
        "、",
        "：",
        "か",
        "か\u3099",
        "が",
        "カ",
        "カ\u3099",
        "ー",
        "한국",
        "\u1112\u1161\u11ab",
    ),
    *("😀", "👨\u200d👩\u200d👧", "\u200d", "\ufe0f", "🇩🇪", "\U0001f1e9", "𝒳", "\U0002f800", "ไทย", "עברית", "العربية"),
    *("<|im_end|>", "<|im_start|>", "<|im", "_end|>", "<think>", "<thi", "</think>", "|>", "\x00", "\ufffd", "\ufeff"),
)
"""Pieces of text to combine in every order, which an unsafe cut would split or merge."""


@cache
def corpus() -> tuple[str, ...]:
    """Lines of fragments to train on, so that merges across every kind of boundary are learnt."""
    chance = random.Random(0)
    return tuple("".join(chance.choices(FRAGMENTS, k=40)) for _ in range(400))


def train(
    pre_tokenizer: pre_tokenizers.PreTokenizer | None,
    *,
    normalizer: normalizers.Normalizer | None = None,
    byte_level: bool = True,
    dropout: float | None = None,
    ignore_merges: bool = False,
) -> Tokenizer:
    """Train a BPE tokenizer of about a thousand tokens, in which ``<|endoftext|>`` is 0."""
    tokenizer = Tokenizer(models.BPE(dropout=dropout, ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    if byte_level:
        tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else []
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=True), AddedToken("</think>", normalized=False)])
    return tokenizer


def split_by(pattern: str, *, prefix_space: bool = False) -> pre_tokenizers.PreTokenizer:
    """Return a pre-tokenizer that splits by a regular expression and maps to bytes, as in Llama 3 and Qwen."""
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=False)])


def around(before: str = "", after: str = "") -> processors.PostProcessor:
    """A template that puts ``<|endoftext|>`` around a text."""
    return processors.TemplateProcessing(single=f"{before} $A {after}".strip(), special_tokens=[("<|endoftext|>", 0)])


@cache
def qwen2() -> TextTokenizer:
    """Qwen2 and Qwen3: NFC, digits one by one, no special tokens around."""
    return TextTokenizer(train(split_by(QWEN2), normalizer=normalizers.NFC()))


def save_qwen2(directory: Path) -> Path:
    """Write :func:`qwen2` into a checkpoint's directory, as Qwen's repositories hold it."""
    train(split_by(QWEN2), normalizer=normalizers.NFC()).save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@cache
def qwen3_5() -> TextTokenizer:
    """Qwen3.5: marks belong to words."""
    return TextTokenizer(train(split_by(QWEN3_5), normalizer=normalizers.NFC()))


@cache
def llama3() -> TextTokenizer:
    """Llama 3: no normaliser, digits by threes, a beginning-of-text token, whole words preferred over merges."""
    tokenizer = train(split_by(LLAMA3), ignore_merges=True)
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), around("<|endoftext|>")])
    return TextTokenizer(tokenizer)


@cache
def gpt2() -> TextTokenizer:
    """GPT-2: the expression built into ByteLevel."""
    tokenizer = train(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return TextTokenizer(tokenizer)


@cache
def metaspace() -> TextTokenizer:
    """SentencePiece's way: a marker before each word, also before the first."""
    tokenizer = train(pre_tokenizers.Metaspace(), byte_level=False)
    tokenizer.decoder = decoders.Metaspace()
    return TextTokenizer(tokenizer)


@cache
def unsplit() -> TextTokenizer:
    """No pre-tokenizer: a token may span anything."""
    return TextTokenizer(train(None, byte_level=False))


CUTTABLE = {"qwen2": qwen2, "qwen3_5": qwen3_5, "llama3": llama3, "gpt2": gpt2}
UNCUTTABLE = {"metaspace": metaspace, "unsplit": unsplit}


def encode_rows_plainly(tokenizer: TextTokenizer, query: str, items: Sequence[str]) -> tuple[TokenIds, Rows]:
    """Do what :meth:`TextTokenizer.encode_rows` does, but encode the whole query again with every item."""
    ids = tokenizer.encode(query)
    encoded = [tokenizer.encode(query + item) for item in items]
    ends = [
        next(
            (n for n, pair in enumerate(zip(ids, whole, strict=False)) if pair[0] != pair[1]), min(len(ids), len(whole))
        )
        for whole in encoded
    ]
    rows = Rows.pack([whole[end:] for whole, end in zip(encoded, ends, strict=True)], ends)
    return np.array(ids, np.int32), rows
