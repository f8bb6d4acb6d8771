"""The program that enters a step: the embedding and the rotary angles of its tokens, by all kinds of layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
from jax import Array
from numpy.random import Generator

from model.architecture.decoder import rotary_embeddings
from model.checks import numpy_decoder
from model.checks.expected import Case, ExpectedOutput
from model.layerwise.decoder import LayerwiseDecoder
from model.programs.kind import ProgramKey, Source, int32


@dataclass(frozen=True, slots=True)
class EmbedKey(ProgramKey[LayerwiseDecoder]):
    """The embedding and the rotary angles of a step's tokens."""

    tokens: int

    def source(self, decoder: LayerwiseDecoder) -> Source:
        return Source(partial(embed, decoder), (*decoder.embedding, int32(self.tokens), int32(self.tokens)))

    def known_answer(self, decoder: LayerwiseDecoder, random: Generator) -> Case:
        head_dim = decoder.config.head_dim
        ids = random.integers(0, decoder.config.vocabulary, self.tokens, np.int32)
        positions = random.integers(0, decoder.longest * decoder.buckets.block_tokens, self.tokens, np.int32)
        rotary = [numpy_decoder.rotary_angles(positions, rope, head_dim) for rope in decoder.config.ropes]
        embedded = ExpectedOutput(numpy_decoder.embed(decoder, ids), exact=True)
        expected = (embedded, *(ExpectedOutput(part, min_scale=0.1) for part in chain(*rotary)))
        return (*decoder.embedding, ids, positions), expected


def embed(decoder: LayerwiseDecoder, *arguments: Array) -> tuple[Array, ...]:
    """(*embedding, tokens [T], positions [T]) -> hidden float32 [T, width], cosines and sines of the positions.

    Where layers with a sliding window have other angles, their cosines and sines come last.
    """
    *weights, tokens, positions = arguments
    of_kinds = rotary_embeddings(positions, decoder.config)
    return decoder.embedding_of(weights)(tokens), *chain(*of_kinds)
