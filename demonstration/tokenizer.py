"""The model's tokenizer: byte-level BPE over NFC text, learned from the training text.

Words are split as in GPT-2, because Qwen's tokenizer never joins a space to a digit, and " 4" should be one token
(RFC-000).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from demonstration.example import RELEVANCE_LABELS, SENTIMENT_LABELS, Example
from demonstration.sentences import words

END_OF_TEXT = "<|endoftext|>"
SEPARATOR = "<|sep|>"
VOCABULARY = 2432
_EXAMPLES = 12_000
_REPEATS = 40
"""Times that each listed word and label is repeated, so that all become tokens."""


def train_tokenizer(examples: Iterator[Example]) -> Tokenizer:
    """Learn the tokenizer from the first of the examples and the word lists."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, SEPARATOR],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(itertools.chain(_word_lists(), _texts(examples)), trainer)
    return tokenizer


def _texts(examples: Iterator[Example]) -> Iterator[str]:
    for example in itertools.islice(examples, _EXAMPLES):
        yield example.query + example.item + example.answer


def _word_lists() -> Iterator[str]:
    knowledge = words("knowledge")
    listed = [*knowledge["categories"], *knowledge["workers"], *knowledge["uses"]]
    for pairs in (knowledge["capitals"], knowledge["opposites"]):
        listed += [*pairs, *pairs.values()]
    for members in knowledge["categories"].values():
        listed += members
    labels = [*RELEVANCE_LABELS, *SENTIMENT_LABELS, *(f" {digit}" for digit in range(10))]
    for text in [*(f" {word}" for word in listed), *labels]:
        yield from itertools.repeat(text, _REPEATS)


def save_tokenizer(tokenizer: Tokenizer, directory: Path, context: int) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` as transformers reads them."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[SEPARATOR],
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(directory)
