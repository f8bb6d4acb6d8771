"""The programs of recurrent layers: what the recurrence takes, the recurrence within items, and what follows it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpy.random import Generator

from model.buckets import SHORTEST_LENGTH_BUCKET
from model.checks import numpy_decoder, numpy_recurrence
from model.checks.cases import DISTINCT_ROWS, drawn_rows, evenly_spaced, in_turn, normal
from model.checks.expected import Case, ExpectedOutput
from model.checks.numpy_decoder import logistic
from model.checks.numpy_recurrence import ReferenceInputs
from model.forward import Extension
from model.layers.delta_rule import CHUNK, DeltaInputs, delta_rule, read_by_items
from model.layerwise.decoder import LayerwiseDecoder
from model.layerwise.steps import Step
from model.programs.kind import ProgramKey, Source, int32


@dataclass(frozen=True, slots=True)
class RecurrentInputsKey(ProgramKey[LayerwiseDecoder]):
    """What the recurrence takes of a step's tokens in one layer."""

    tokens: int

    def source(self, decoder: LayerwiseDecoder) -> Source:
        windows = int32(self.tokens, decoder.recurrence.inputs)
        given = decoder.hidden(self.tokens), decoder.state()[0], windows, int32()
        return Source(partial(recurrent_inputs, decoder), (*decoder.recurrent_layers[0], *given))

    def known_answer(self, decoder: LayerwiseDecoder, random: Generator) -> Case:
        """Tokens with windows of any tokens, those that the prefix keeps among them."""
        layer, sizes, turns = decoder.recurrent_layer(0), decoder.recurrence, in_turn(self.tokens)
        hidden = normal(random, DISTINCT_ROWS, decoder.config.width)
        before = normal(random, *decoder.state()[0].shape)
        given = numpy_recurrence.inputs(layer, hidden)
        seen = np.concatenate([before, given.mixed[turns]])
        windows = random.integers(0, len(seen), (self.tokens, sizes.inputs), np.int32)
        last = self.tokens // 2
        convolved = numpy_recurrence.convolved(layer, seen[windows])
        expected = convolved, given.decay[turns], given.rate[turns], seen[windows[last, 1:]][None]
        arguments: tuple[ArrayLike, ...] = (*decoder.recurrent_layers[0], hidden[turns], before)
        return (*arguments, windows, np.int32(last)), tuple(map(ExpectedOutput, expected))


@dataclass(frozen=True, slots=True)
class RecurrenceKey(ProgramKey[LayerwiseDecoder]):
    """The recurrence within items, all of which begin with the same state."""

    length: int  # tokens that each item is padded to
    rows: int  # items
    keeps: bool = False  # whether the state behind the first item is wanted as well

    def source(self, decoder: LayerwiseDecoder) -> Source:
        step = decoder.buckets.step_tokens
        indices = int32(self.rows, self.length), int32(self.rows), int32(step)
        given = *decoder.recurrent_inputs(step), decoder.recurred(step), decoder.state()[1]
        return Source(partial(recur, decoder, keeps=self.keeps), (*decoder.recurrent_layers[0], *given, *indices))

    def known_answer(self, decoder: LayerwiseDecoder, random: Generator) -> Case:
        """Items of all lengths of a bucket, tightly packed, behind a state that is not empty.

        Some tokens belong to another bucket: their output must not change.
        """
        size = decoder.buckets.step_tokens
        shorter = self.length // 2 if self.length > SHORTEST_LENGTH_BUCKET else 0
        lengths = random.integers(shorter, self.length, size) + 1
        lengths[0] = self.length - 3 if self.keeps else self.length
        lengths = lengths[: min(self.rows, int((np.cumsum(lengths) <= size).sum()))]
        step = Step.of([Extension(np.zeros(length, np.int32), 0) for length in lengths], decoder.buckets)
        (batch,) = step.self_attention
        layer, given = decoder.recurrent_layer(0), _random_inputs(random, decoder, size)
        state = 0.3 * normal(random, *decoder.state()[1].shape)
        before = normal(random, *decoder.recurred(size).shape)
        slots = batch.slots.copy()
        slots[3::7] = -1
        expected, after = before.copy(), state
        begins = np.cumsum(lengths) - lengths
        for number, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
            own = slice(begin, begin + length)
            of_item = ReferenceInputs(*(part[own] for part in given))
            out, behind = numpy_recurrence.recur(numpy_recurrence.heads(layer, of_item), state)
            expected[own] = np.where((slots[own] >= 0)[:, None, None], out, before[own])
            after = behind if number == 0 else after
        checked = evenly_spaced(size)
        kept = (ExpectedOutput(after[None]),) if self.keeps else ()
        indices = batch.places[: self.rows], batch.lengths[: self.rows], slots
        arguments: tuple[ArrayLike, ...] = (*decoder.recurrent_layers[0], *given, before, state)
        return (*arguments, *indices), (ExpectedOutput(expected[checked], checked), *kept)


@dataclass(frozen=True, slots=True)
class RecurrentOutputKey(ProgramKey[LayerwiseDecoder]):
    """The gated norm and the output projection of the recurrence, and the MLP behind them."""

    tokens: int

    def source(self, decoder: LayerwiseDecoder) -> Source:
        arguments = *decoder.recurrent_layers[0], decoder.hidden(self.tokens), decoder.recurred(self.tokens)
        return Source(partial(recurrent_output, decoder), arguments)

    def known_answer(self, decoder: LayerwiseDecoder, random: Generator) -> Case:
        turns, layer, drawn = in_turn(self.tokens), decoder.recurrent_layer(0), drawn_rows(decoder.config)
        hidden = normal(random, drawn, decoder.config.width)
        hidden[::2] *= 0.1  # otherwise what is added would be a small part of the sum
        out = normal(random, drawn, *decoder.recurred(1).shape[1:])
        clear = numpy_decoder.clearest(layer, hidden, numpy_recurrence.added(layer, hidden, out), DISTINCT_ROWS)
        hidden, out = hidden[clear], out[clear]
        after = numpy_recurrence.output_mlp(layer, hidden, out)
        padded = out[in_turn(decoder.buckets.padded_rows(self.tokens))]
        arguments: tuple[ArrayLike, ...] = (*decoder.recurrent_layers[0], hidden[turns], padded)
        return arguments, (ExpectedOutput(after[turns]),)


def recurrent_inputs(decoder: LayerwiseDecoder, *arguments: Array) -> tuple[Array, ...]:
    """(*layer, hidden, kept inputs, windows [T, inputs], last []) -> convolved [I, C], decay [I, Hv], rate [I, Hv].

    windows: see :attr:`model.layerwise.steps.Step.windows`. The last inputs of the convolution up to the token ``last``
    come behind them, [1, inputs - 1, C].
    """
    *weights, hidden, before, windows, last = arguments
    layer = decoder.recurrent_layer_of(weights)
    mixed, decay, rate = layer.inputs(hidden)
    seen = jnp.concatenate([before, mixed])
    convolved = layer.linear_attn.convolved([seen[places] for places in windows.T])
    return *decoder.padded(convolved, decay, rate), seen[windows[last, 1:]][None]


def recur(decoder: LayerwiseDecoder, *arguments: Array, keeps: bool) -> tuple[Array, ...]:
    """(*layer, convolved, decay, rate, out, state, places [R, L], lengths [R], slots [I]) -> out [I, Hv, Dv].

    The tokens of these items get what they read in ``out``; tokens of other length buckets keep theirs. places and
    slots: see :class:`model.layerwise.steps.SelfAttentionBatch`. keeps: the state behind the first item follows,
    [1, Hv, Dk, Dv].
    """
    *weights, convolved, decay, rate, out, state, places, lengths, slots = arguments
    tokens = decoder.recurrent_layer_of(weights).linear_attn.heads(convolved, decay, rate)
    present = jnp.arange(places.shape[1]) < lengths[:, None]
    # A token of padding does not change the state.
    decays, rates = (jnp.where(present[..., None], gate[places], 0.0) for gate in (decay, rate))
    own, kept = jnp.maximum(slots, 0), tuple[Array, ...]()
    if keeps or places.shape[1] > CHUNK:
        queries, keys, values = (part[places] for part in (tokens.queries, tokens.keys, tokens.values))
        items, after = delta_rule(DeltaInputs(queries, keys, values, decays, rates), state)
        read = items.reshape(-1, *items.shape[2:])[own]
        kept = (after[:1],) if keeps else ()
    else:
        read = read_by_items(tokens, places, (decays, rates), own, state)
    return jnp.where((slots >= 0)[:, None, None], read, out), *kept


def recurrent_output(decoder: LayerwiseDecoder, *arguments: Array) -> tuple[Array]:
    """(*layer, hidden, out) -> hidden, float32 [T, width]."""
    *weights, hidden, out = arguments
    return (decoder.recurrent_layer_of(weights).output_mlp(hidden, out[: len(hidden)]),)


def _random_inputs(random: Generator, decoder: LayerwiseDecoder, tokens: int) -> ReferenceInputs:
    """Return what the recurrence may take of so many tokens, behind the convolution."""
    convolved, decay, rate = (normal(random, *part.shape) for part in decoder.recurrent_inputs(tokens))
    # Some tokens are forgotten at once, and others after hundreds of tokens.
    return ReferenceInputs(convolved, -np.exp(2 * decay - 2), logistic(2 * rate))
