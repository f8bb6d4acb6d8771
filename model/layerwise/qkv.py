"""The program that begins a layer: queries, keys and values of a step's tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpy.random import Generator

from model.checks import numpy_decoder
from model.checks.cases import DISTINCT_ROWS, in_turn, normal
from model.checks.expected import Case, ExpectedOutput
from model.layers.rotation import RotaryEmbedding
from model.layerwise.decoder import LayerwiseDecoder
from model.programs.kind import ProgramKey, Source, int32


@dataclass(frozen=True, slots=True)
class QKVKey(ProgramKey[LayerwiseDecoder]):
    """Queries, keys and values of a step's tokens in one layer."""

    tokens: int
    logit_rows: int = 0  # queries of that many tokens alone; 0: of all tokens

    def source(self, decoder: LayerwiseDecoder) -> Source:
        arguments = (*decoder.layers[0], decoder.hidden(self.tokens), *decoder.rotary(self.tokens))
        if self.logit_rows:
            return Source(partial(qkv_for_logits, decoder), (*arguments, int32(self.logit_rows)))
        return Source(partial(qkv, decoder), arguments)

    def known_answer(self, decoder: LayerwiseDecoder, random: Generator) -> Case:
        turns = in_turn(self.tokens)
        hidden = normal(random, DISTINCT_ROWS, decoder.config.width)
        positions = random.integers(0, 1000, DISTINCT_ROWS, np.int32)
        rotary = numpy_decoder.rotary_angles(positions, decoder.config.rope, decoder.config.head_dim)
        layer = decoder.layer(0)
        queries = numpy_decoder.queries(layer, hidden, rotary)
        keys, values = (part[turns] for part in numpy_decoder.key_values(layer, hidden, rotary))
        cos, sin = (part[turns] for part in rotary)
        arguments: tuple[ArrayLike, ...] = (*decoder.layers[0], hidden[turns], cos, sin)
        if not self.logit_rows:
            return arguments, tuple(map(ExpectedOutput, (queries[turns], keys, values)))
        read = random.integers(0, self.tokens, self.logit_rows, np.int32)
        selected = turns[read]
        expected = map(ExpectedOutput, (queries[selected], keys, values))
        return (*arguments, read), (*expected, ExpectedOutput(hidden[selected], exact=True))


def qkv(decoder: LayerwiseDecoder, *arguments: Array) -> tuple[Array, ...]:
    """(*layer, hidden, cos, sin) -> queries [I, H, D], keys and values [I, K, D]."""
    *weights, hidden, cos, sin = arguments
    layer, rotary = decoder.layer_of(weights), RotaryEmbedding(cos, sin)
    queries, key_values = layer.attention_inputs(hidden, rotary)
    return decoder.padded(queries, *key_values)


def qkv_for_logits(decoder: LayerwiseDecoder, *arguments: Array) -> tuple[Array, ...]:
    """(*layer, hidden, cos, sin, logit positions [n]) -> the same with queries of the logit positions alone.

    The last output is the hidden states of these positions, float32 [n, width].
    """
    *weights, hidden, cos, sin, positions = arguments
    layer, rotary = decoder.layer_of(weights), RotaryEmbedding(cos, sin)
    selected = hidden[positions]
    queries = layer.queries(selected, RotaryEmbedding(cos[positions], sin[positions]))
    return *decoder.padded(queries, *layer.key_values(hidden, rotary)), selected
