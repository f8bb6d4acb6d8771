"""The program that ends a layer: the output projection of attention, and the MLP."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from jax import Array
from numpy.random import Generator

from model.attention.contract import AttentionOutput
from model.checks import numpy_decoder
from model.checks.cases import DISTINCT_ROWS, drawn_rows, in_turn, normal
from model.checks.expected import Case, ExpectedOutput
from model.checks.numpy_decoder import ReferenceAttention
from model.layerwise.decoder import LayerwiseDecoder
from model.programs.kind import ProgramKey, Source


@dataclass(frozen=True, slots=True)
class OutputMLPKey(ProgramKey[LayerwiseDecoder]):
    """The output projection of attention, and the MLP behind it."""

    tokens: int

    def source(self, decoder: LayerwiseDecoder) -> Source:
        arguments = *decoder.layers[0], decoder.hidden(self.tokens), *decoder.attended(self.tokens)
        return Source(partial(output_mlp, decoder), arguments)

    def known_answer(self, decoder: LayerwiseDecoder, random: Generator) -> Case:
        turns, config, layer = in_turn(self.tokens), decoder.config, decoder.layer(0)
        drawn = drawn_rows(config)
        hidden = normal(random, drawn, config.width)
        hidden[::2] = 0.0  # otherwise what is added would be a small part of the sum
        heads = drawn, config.query_heads
        found = ReferenceAttention(normal(random, *heads, config.head_dim), normal(random, *heads))
        clear = numpy_decoder.clearest(layer, hidden, numpy_decoder.added(layer, hidden, found), DISTINCT_ROWS)
        hidden, found = hidden[clear], ReferenceAttention(*(part[clear] for part in found))
        after = numpy_decoder.output_mlp(layer, hidden, found)
        padded = (part[in_turn(decoder.buckets.padded_rows(self.tokens))] for part in found)
        return (*decoder.layers[0], hidden[turns], *padded), (ExpectedOutput(after[turns]),)


def output_mlp(decoder: LayerwiseDecoder, *arguments: Array) -> tuple[Array]:
    """(*layer, hidden, attention output, log-sum-exp) -> hidden, float32 [T, width]."""
    *weights, hidden, out, log_sum_exp = arguments
    layer, rows = decoder.layer_of(weights), len(hidden)
    attended = layer.self_attn.attended(AttentionOutput(out[:rows], log_sum_exp[:rows]))
    return (layer.output_mlp(hidden, attended),)
