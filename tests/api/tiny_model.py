"""A tiny tokenizer and configuration, and a made-up model that computes scores for them without an accelerator.

The logits are a pseudorandom function of the whole sequence: a change of any token changes them. So a test that
compares scores detects any wrong boundary, order or label.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

CONTEXT = 512
VOCABULARY = 400
END = "<|end|>"
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}<|end|>{% endfor %}The answer is"

CORPUS = [
    "The capital of France is Paris. The capital of Germany is Berlin. The capital of Japan is Tokyo.",
    "London is in England. I saw London. This movie was great! Sentiment: positive. This one was bad: negative.",
    "What is 2 + 2? The answer is 3 4 5 yes no maybe. The query and the items and item after item.",
] * 30


def make_model_directory(directory: Path, corpus: Sequence[str] = CORPUS) -> Path:
    """Write a checkpoint's tokenizer and configuration (there are no weights) and return its directory.

    corpus: what the tokenizer is trained on.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    # In this vocabulary, neither "Yes" nor "No" is one token.
    (directory / "decision.json").write_text(json.dumps({"labels": {"noul": [" yes", " no"]}}))
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 512,
        "max_position_embeddings": CONTEXT,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def make_classifier_directory(directory: Path, **fields: Any) -> Path:
    """Write the same for a model with classes. fields: of its config.json, such as ``id2label``."""
    path = make_model_directory(directory) / "config.json"
    of_classifier = {"architectures": ["Qwen3ForSequenceClassification"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | of_classifier | fields))
    return directory


class TinyModel:
    """The reference for expected scores: plain tokenization and made-up logits."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)

    @property
    def vocabulary(self) -> int:
        """The number of token ids."""
        return len(self._tokenizer)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ids: list[int] = self._tokenizer.encode(text)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids; what is not a whole character is U+FFFD."""
        return str(self._tokenizer.decode(ids))

    def token(self, text: str) -> int:
        """Return the id of a text that is one token."""
        (only,) = self.encode(text)
        return only

    def scores(self, sequences: Sequence[Sequence[int]], labels: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return P(label | sequence) over the whole vocabulary, [N, M]."""
        return np.exp(np.stack([logprobs(sequence)[list(labels)] for sequence in sequences]).astype(np.float64))

    def text_scores(self, query: str, items: Sequence[str], labels: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return the scores of texts, which are concatenated and then tokenized, [N, M]."""
        return self.scores([self.encode(query + item) for item in items], labels)


def logits(sequence: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return made-up logits of the token after a sequence, [vocabulary]. They depend on the sequence alone."""
    return _computed(tuple(sequence))[0]


def target_logprobs(before: Sequence[int], targets: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return the log-probability of each target, behind what stands before it and the earlier targets."""
    found = [logprobs([*before, *targets[:place]])[target] for place, target in enumerate(targets)]
    return np.array(found, np.float32)


def is_greedy(before: Sequence[int], targets: Sequence[int]) -> bool:
    """Return whether each target is the most probable token where it stands."""
    return all(int(logits([*before, *targets[:place]]).argmax()) == target for place, target in enumerate(targets))


def logprobs(sequence: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return the log-softmax of the logits, [vocabulary]."""
    return _computed(tuple(sequence))[1]


@lru_cache(4 * CONTEXT)
def _computed(sequence: tuple[int, ...]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the logits and their log-softmax. A long text asks for both at each of its places, several times."""
    seed = [len(sequence), *(int(token) for token in sequence)]
    found = (3 * np.random.default_rng(seed).normal(size=512)).astype(np.float32)
    raw = found.astype(np.float64)
    logprobs = (raw - raw.max() - np.log(np.exp(raw - raw.max()).sum())).astype(np.float32)
    for values in (found, logprobs):
        values.flags.writeable = False
    return found, logprobs
