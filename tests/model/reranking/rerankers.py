"""Small checkpoints with the architecture, the tokenizer's rules and the prompt of published rerankers, and pairs."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from demonstration.saving import config_fields
from model.architecture.config import DecoderConfig
from scoring.templates.known import KnownTemplates
from scoring.tokenizing.tokenization import TextTokenizer
from tests.model.checkpoints import CONFIGS, VARIANTS, tensors
from tests.scoring.tokenizing.tokenizer_families import plain, special, write
from tests.scoring.tokenizing.tokenizers_under_test import QWEN2, split_by

FOLDER = Path(__file__).parent
INSTRUCTION = "Find the passage that a gardener would read, please!"
QUERIES, DOCUMENTS_EACH = 20, 10
SEED = 21
_VOCABULARY = 1_200

_WORDS = re.findall(
    r"\S+",
    "the a garden water train night plants sun fern leaves coast how do I care for indoor why is not an answer to this "
    "week query it's don't river 日本語 café Straße 12 3.5 item {query} {item} yes no",
)
_ENDS = (".", "?", "!", "", " ", "\n", ".\n", "?!", " ...", "\n\n", ":", ")", "  ")


@dataclass(frozen=True)
class Reranker:
    """A published reranker in small."""

    template: str
    config: DecoderConfig  # without its vocabulary
    tokenizer_class: str = "Qwen2Tokenizer"


RERANKERS = {
    "qwen3-reranker": Reranker("qwen3-reranker", CONFIGS["tied"]),
    "mxbai-rerank-v2": Reranker("mxbai-rerank-v2", VARIANTS["qwen2 tied"]),
}


@cache
def pairs() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return queries, each with its documents. Their ends are such that tokens would merge with what follows."""
    chance = random.Random(SEED)

    def text(longest: int) -> str:
        return " ".join(chance.choices(_WORDS, k=chance.randint(1, longest))) + chance.choice(_ENDS)

    return tuple((text(9), tuple(text(30) for _ in range(DOCUMENTS_EACH))) for _ in range(QUERIES))


def write_checkpoint(directory: Path, name: str, texts: Sequence[str] = ()) -> Path:
    """Write a small checkpoint into a folder, with weights that follow from a seed.

    texts: further ones that its tokenizer learns tokens from.
    """
    reranker = RERANKERS[name]
    added = [plain("<think>"), plain("</think>")]
    config, tokenizer = reranker.config, _tokenizer(texts)
    write(directory, tokenizer, config.family, reranker.tokenizer_class, added, pad_token="<|endoftext|>")
    config = replace(config, vocabulary=TextTokenizer.load(directory).vocabulary)
    (directory / "config.json").write_text(json.dumps(config_fields(config) | {"dtype": "float32"}))
    save_file(tensors(config, SEED), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def write_as_classifier(directory: Path) -> None:
    """Turn a checkpoint whose embedding is its head into one with a single class, by the labels of its template."""
    tokenizer, path = TextTokenizer.load(directory), directory / "model.safetensors"
    yes, no = map(tokenizer.single_token, ("yes", "no"))
    weights = load_file(path)
    head = weights["model.embed_tokens.weight"]
    save_file(weights | {"score.weight": head[[yes]] - head[[no]]}, path, metadata={"format": "pt"})
    fields = json.loads((directory / "config.json").read_text())
    fields |= {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (directory / "config.json").write_text(json.dumps(fields))


def _tokenizer(texts: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split_by(QWEN2)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=_VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(chain(_texts(), texts), trainer)
    tokenizer.add_special_tokens([special(token) for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    return tokenizer


def _texts() -> Iterator[str]:
    """Yield texts to learn tokens from: the prompts' own, and the pairs with the line feeds that stand behind them."""
    for template in KnownTemplates.read(None, "any").by_name.values():
        for piece in (*template.plain.query, *template.plain.item):
            yield from ["".join(part for part in piece if isinstance(part, str))] * 20
    for query, documents in pairs():
        for text in (query, *documents):
            yield f"{text}\n"
    yield "yes no 0 1 " * 20


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What a publisher's code says of the pairs: relevance [queries, documents], without and with an instruction."""

    plain: np.ndarray
    instructed: np.ndarray


def read_reference(name: str) -> Reference:
    """Return the stored reference of a reranker."""
    with np.load(FOLDER / f"{name}.npz") as stored:
        return Reference(stored["plain"], stored["instructed"])
