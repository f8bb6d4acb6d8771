"""The programs of recurrent layers: what the recurrence takes, the recurrence within items, and what follows it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array
from jax.typing import ArrayLike
from numpy.random import Generator

from model.architecture.delta_net import RecurrentInputs
from model.buckets import SHORTEST_LENGTH_BUCKET
from model.checks import numpy_recurrence
from model.checks.cases import DISTINCT_ROWS, evenly_spaced, in_turn, normal
from model.checks.expected import Case, ExpectedOutput
from model.checks.numpy_decoder import logistic
from model.checks.numpy_recurrence import ReferenceInputs, ReferenceState
from model.delta_rule import delta_rule
from model.forward import Extension
from model.layerwise.decoder import LayerwiseDecoder
from model.layerwise.steps import Step
from model.programs.kind import Source, int32

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RecurrentInputsKey:
    """What the recurrence takes of a step's tokens in one layer."""

    tokens: int

    def source(self, decoder: LayerwiseDecoder) -> Source:
        """See :class:`model.programs.kind.ProgramKey`."""
        return Source(partial(recurrent_inputs, decoder), (*decoder.recurrent_layers[0], decoder.hidden(self.tokens)))

    def known_answer(self, decoder: LayerwiseDecoder, random: Generator) -> Case:
        """See :class:`model.programs.kind.ProgramKey`."""
        turns = in_turn(self.tokens)
        hidden = normal(random, DISTINCT_ROWS, decoder.config.width)
        expected = numpy_recurrence.inputs(decoder.recurrent_layer(0), hidden)
        return (*decoder.recurrent_layers[0], hidden[turns]), tuple(ExpectedOutput(part[turns]) for part in expected)


@dataclass(frozen=True, slots=True)
class RecurrenceKey:
    """The recurrence within items, all of which begin with the same state."""

    length: int  # tokens that each item is padded to
    rows: int  # items
    keeps: bool = False  # whether what is kept behind the first item is wanted as well

    def source(self, decoder: LayerwiseDecoder) -> Source:
        """See :class:`model.programs.kind.ProgramKey`."""
        step = decoder.buckets.step_tokens
        given = *decoder.recurrent_inputs(step), decoder.recurred(step)
        indices = int32(self.rows, self.length), int32(self.rows), int32(step)
        function = partial(recur, decoder, keeps=self.keeps)
        return Source(function, (*decoder.recurrent_layers[0], *given, *decoder.state(), *indices))

    def known_answer(self, decoder: LayerwiseDecoder, random: Generator) -> Case:
        """Items of all lengths of a bucket, tightly packed, behind a state that is not empty.

        Some tokens belong to another bucket: their output must not change.
        """
        layer, buckets, size = decoder.recurrent_layer(0), decoder.buckets, decoder.buckets.step_tokens
        lengths = (
            random.integers(self.length // 2 if self.length > SHORTEST_LENGTH_BUCKET else 0, self.length, size) + 1
        )
        lengths[0] = self.length - 3 if self.keeps else self.length
        lengths = lengths[: min(self.rows, int((np.cumsum(lengths) <= size).sum()))]
        step = Step.of([Extension(np.zeros(length, np.int32), 0) for length in lengths], buckets)
        (batch,) = step.self_attention
        # The rows of a step's padding are looked at, too, but not checked.
        given = random_inputs(random, decoder, size)
        state = random_state(random, decoder)
        before = normal(random, *decoder.recurred(size).shape)
        slots = batch.slots.copy()
        slots[3::7] = -1
        expected, after = before.copy(), state
        begins = np.cumsum(lengths) - lengths
        for number, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
            own = slice(begin, begin + length)
            out, behind = numpy_recurrence.recur(layer, ReferenceInputs(*(part[own] for part in given)), state)
            expected[own] = np.where((slots[own] >= 0)[:, None, None], out, before[own])
            after = behind if number == 0 else after
        checked = evenly_spaced(size)
        kept = tuple(ExpectedOutput(part[None]) for part in after) if self.keeps else ()
        indices = batch.places[: self.rows], batch.lengths[: self.rows], slots
        arguments: tuple[ArrayLike, ...] = (*decoder.recurrent_layers[0], *given, before, *state, *indices)
        return arguments, (ExpectedOutput(expected[checked], checked), *kept)


@dataclass(frozen=True, slots=True)
class RecurrentOutputKey:
    """The gated norm and the output projection of the recurrence, and the MLP behind them."""

    tokens: int

    def source(self, decoder: LayerwiseDecoder) -> Source:
        """See :class:`model.programs.kind.ProgramKey`."""
        arguments = *decoder.recurrent_layers[0], decoder.hidden(self.tokens), decoder.recurred(self.tokens)
        return Source(partial(recurrent_output, decoder), arguments)

    def known_answer(self, decoder: LayerwiseDecoder, random: Generator) -> Case:
        """See :class:`model.programs.kind.ProgramKey`."""
        turns = in_turn(self.tokens)
        hidden = normal(random, DISTINCT_ROWS, decoder.config.width)
        hidden[::2] *= 0.1  # otherwise what is added would be a small part of the sum
        out = normal(random, DISTINCT_ROWS, *decoder.recurred(1).shape[1:])
        after = numpy_recurrence.output_mlp(decoder.recurrent_layer(0), hidden, out)
        padded = out[in_turn(decoder.buckets.padded_rows(self.tokens))]
        arguments: tuple[ArrayLike, ...] = (*decoder.recurrent_layers[0], hidden[turns], padded)
        return arguments, (ExpectedOutput(after[turns]),)


def recurrent_inputs(decoder: LayerwiseDecoder, *arguments: Array) -> tuple[Array, ...]:
    """(*layer, hidden) -> inputs of the convolution [I, C], decay [I, Hv], rate [I, Hv]."""
    *weights, hidden = arguments
    return decoder.padded(*decoder.recurrent_layer_of(weights).inputs(hidden))


def recur(decoder: LayerwiseDecoder, *arguments: Array, keeps: bool) -> tuple[Array, ...]:
    """(*layer, inputs, decay, rate, out, *state, places [R, L], lengths [R], slots [I]) -> out [I, Hv, Dv], *kept.

    The tokens of these items get what they read in ``out``; tokens of other length buckets keep theirs. places and
    slots: see :class:`model.layerwise.steps.SelfAttentionBatch`. keeps: what is kept behind the first item follows.
    """
    *weights, mixed, decay, rate, out, before, memory, places, lengths, slots = arguments
    mixer = decoder.recurrent_layer_of(weights).linear_attn
    present = jnp.arange(places.shape[1]) < lengths[:, None]
    # A token of padding does not change the state.
    gates = (jnp.where(present[..., None], part[places], 0.0) for part in (decay, rate))
    given = RecurrentInputs(mixed[places], *gates)
    heads = mixer.heads(given, jnp.broadcast_to(before, (len(places), *before.shape)))
    read, after = delta_rule(heads, memory)
    own = read.reshape(-1, *read.shape[2:])[jnp.maximum(slots, 0)]
    found = jnp.where((slots >= 0)[:, None, None], own, out)
    if not keeps:
        return (found,)
    last = jnp.concatenate([before, given.mixed[0]])
    kept = last[lengths[0] + jnp.arange(len(before))]
    return found, kept[None], after[:1]


def recurrent_output(decoder: LayerwiseDecoder, *arguments: Array) -> tuple[Array]:
    """(*layer, hidden, out) -> hidden, float32 [T, width]."""
    *weights, hidden, out = arguments
    return (decoder.recurrent_layer_of(weights).output_mlp(hidden, out[: len(hidden)]),)


def random_inputs(random: Generator, decoder: LayerwiseDecoder, tokens: int) -> tuple[Rows, Rows, Rows]:
    """Return what the recurrence takes of so many tokens: see :class:`ReferenceInputs`."""
    mixed, decay, rate = (normal(random, tokens, *part.shape[1:]) for part in decoder.recurrent_inputs(tokens))
    # Some tokens are forgotten at once, and others after hundreds of tokens.
    return mixed, -np.exp(2 * decay - 2), logistic(2 * rate)


def random_state(random: Generator, decoder: LayerwiseDecoder) -> ReferenceState:
    """Return what a layer may keep of a sequence."""
    inputs, memory = decoder.state()
    return ReferenceState(normal(random, *inputs.shape), 0.3 * normal(random, *memory.shape))
