"""The accuracy of a model in training on held-out examples, computed by the decoder without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from tokenizers import Tokenizer

from demonstration.corpus import held_out_examples
from demonstration.example import Example, Task
from demonstration.whole_sequences import hidden_states
from model.architecture.decoder import Decoder

TASKS = (Task.SENTIMENT, Task.RELEVANCE, Task.CHOICE, Task.OPTION, Task.MANY_OPTIONS, Task.LEVEL, Task.YES_OR_NO)
_EXAMPLES = 200
_LENGTH = 256
_ROWS = 40


@nnx.jit
def _logits(decoder: Decoder, tokens: Array, last: Array) -> Array:
    hidden = hidden_states(decoder.model, tokens)
    return jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0] @ decoder.head_kernel()


@cache
def _held_out(seed: int) -> dict[str, list[Example]]:
    return {task.value: held_out_examples(task, _EXAMPLES, seed) for task in TASKS}


def accuracies(decoder: Decoder, tokenizer: Tokenizer, seed: int) -> dict[str, float]:
    """Return the share of right answers for the held-out examples of each task."""
    return {name: accuracy(decoder, tokenizer, examples) for name, examples in _held_out(seed).items()}


def accuracy(decoder: Decoder, tokenizer: Tokenizer, examples: Sequence[Example]) -> float:
    """Return the share of right answers for some examples. Prompts longer than 256 tokens are left out."""
    encoded = [(tokenizer.encode(example.query + example.item).ids, example) for example in examples]
    fitting = [(ids, example) for ids, example in encoded if len(ids) <= _LENGTH]
    right = 0
    for first in range(0, len(fitting), _ROWS):
        part = fitting[first : first + _ROWS]
        tokens, last = np.zeros((_ROWS, _LENGTH), np.int32), np.zeros(_ROWS, np.int32)
        for row, (ids, _) in enumerate(part):
            tokens[row, : len(ids)], last[row] = ids, len(ids) - 1
        for logits, (_, example) in zip(np.asarray(_logits(decoder, tokens, last)), part, strict=False):
            labels = [tokenizer.encode(label).ids[0] for label in example.labels]
            right += example.labels[int(logits[labels].argmax())] == example.answer
    return right / len(fitting)
