"""Whether what is served computes what it should: compilers have been silently wrong, on some versions and devices.

Every program is run once on made-up numbers and the served weights before anyone may use it, and held against NumPy
(:class:`KnownAnswers`). That the programs, one after another over all layers, are the model is seen on a known prompt
(:func:`known_work`), before a worker serves. Both are pure functions of arrays or run before serving begins, so
programs that are compiled beside the work are checked in whatever thread compiles them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.typing import ArrayLike
from numpy.random import Generator

from model.buckets import (
    SHORTEST_SPAN,
    BeforeKey,
    Buckets,
    EnterKey,
    HeadKey,
    Key,
    LeaveKey,
    OwnKey,
    PackedKey,
    ProjectKey,
    Span,
    StoreKey,
)
from model.checks import numpy_decoder
from model.checks.numpy_decoder import Floats, Mask, Seen, attend
from model.programs import Programs
from model.steps import Extension, Step
from scoring.layout import ChunkWork, GroupWork, Head, Rows, TokenIds

PROGRAM_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
"""How far a row of a program's output may be off, relative to its norm. See docs/log.md for how far rows are."""
MODEL_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
"""The same for final states behind all layers, whose roundings add up."""

KNOWN_PREFIX = 5
KNOWN_ITEMS = ((3, 5), (1, 5), (0, 5), (2, 4), (SHORTEST_SPAN + 1, 5))
"""Own tokens of the known prompt's items, of two spans, and how much they see of its prefix."""

MOST_BLOCKS = 3
"""Of a made-up prefix, and of those looked at in a pool that one was stored in."""
DIFFERENT_ROWS = 17
"""Of a product's rows, which take turns: NumPy then computes few, and each of the program's is checked all the same."""
MOST_QUERIES = 256
"""Of an attention program that are looked at, evenly spread: all of a step of the usual size."""
HEAD_STATES = 5
"""The same for heads, whose vocabulary may be large."""
SPREAD = 2.0
"""Of made-up queries: so that a few keys matter more than others, and one that is seen or missed by mistake shows."""


class KnownAnswerError(Exception):
    """A program, or the model that programs make up, computes something else than NumPy."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """Rows of an output, [n, ...]: the first ones, or those in some places, int32 [n].

    exact: nothing is computed, numbers are only moved; least: the root mean square that a row's error is relative to,
    at least, for numbers that may all be close to zero.
    """

    rows: npt.NDArray[Any]
    places: TokenIds | None = None
    exact: bool = False
    least: float = 0.0

    def error_of(self, found: ArrayLike) -> float:
        """The largest error of a row, relative to the row: infinite where one is not a number."""
        expected = self.rows.reshape(len(self.rows), -1).astype(np.float32)
        places = slice(len(expected)) if self.places is None else self.places
        given = np.asarray(found)[places].reshape(expected.shape).astype(np.float32)
        with np.errstate(invalid="ignore"):
            apart = np.where(given == expected, np.float32(0), given - expected)
        finite = np.where(np.isfinite(expected), expected, np.float32(0))
        scale = np.maximum(_root_mean_square(finite), max(self.least, float(np.finfo(np.float32).tiny)))
        worst = float((_root_mean_square(apart) / scale).max())
        return worst if np.isfinite(worst) else np.inf


Case = tuple[tuple[ArrayLike, ...], tuple[Answer, ...]]
"""A program's arguments and what it has to say to them."""


class KnownAnswers:
    """Checks programs of one model. Safe to call from several threads.

    longest: blocks that one prefix may have.
    """

    def __init__(self, programs: Programs, buckets: Buckets, longest: int) -> None:
        self._programs = programs
        self._config = programs.config
        self._buckets = buckets
        self._longest = longest
        self._dtype = programs.head[1].dtype

    def check(self, key: Key, executable: jax.stages.Compiled) -> None:
        """Run a program on numbers made up from a seed. Raises :class:`KnownAnswerError`."""
        arguments, answers = self._case(key)
        outputs = executable(*arguments)
        if len(outputs) != len(answers):
            raise KnownAnswerError(f"{key} has {len(outputs)} outputs instead of {len(answers)} ({_where()})")
        for number, (answer, output) in enumerate(zip(answers, outputs, strict=True)):
            tolerance = 0.0 if answer.exact else PROGRAM_TOLERANCE[self._dtype.name]
            _require(f"output {number} of {key}", answer.error_of(output), tolerance)

    def check_model(self, group: GroupWork, found: Mapping[str, Floats]) -> None:
        """Hold final states of a group's only chunk, float32 [N, width], by who computed them, against NumPy's.

        Raises :class:`KnownAnswerError`.
        """
        answer = Answer(numpy_decoder.final_normed(self._programs, self._final_states(group)))
        for algorithm, states in found.items():
            error = answer.error_of(numpy_decoder.final_normed(self._programs, states))
            _require(f"a known prompt scored by {algorithm}", error, MODEL_TOLERANCE[self._dtype.name])

    def _case(self, key: Key) -> Case:
        made_up = np.random.default_rng(0)
        match key:
            case EnterKey(tokens):
                return self._enter(made_up, tokens)
            case ProjectKey(tokens, reads):
                return self._project(made_up, tokens, reads)
            case BeforeKey(tokens, blocks):
                return self._before(made_up, tokens, blocks)
            case OwnKey(span, rows, last):
                return self._own(made_up, Span(span, rows), last=last)
            case PackedKey(tokens, reads, _):
                return self._packed(made_up, tokens, reads or tokens)
            case LeaveKey(tokens):
                return self._leave(made_up, tokens)
            case StoreKey(blocks):
                return self._store(made_up, blocks)
            case HeadKey(head, rows, labels):
                return self._head(made_up, head, rows, labels)

    def _enter(self, made_up: Generator, tokens: int) -> Case:
        ids = made_up.integers(0, self._config.vocabulary, tokens, np.int32)
        positions = made_up.integers(0, self._longest * self._buckets.step, tokens, np.int32)
        turned = numpy_decoder.rotation(positions, self._config)
        embedded = Answer(numpy_decoder.embed(self._programs, ids), exact=True)
        return (*self._programs.embedding, ids, positions), (embedded, *(Answer(part, least=0.1) for part in turned))

    def _project(self, made_up: Generator, tokens: int, reads: int) -> Case:
        turns = _in_turn(tokens)
        hidden = _normal(made_up, DIFFERENT_ROWS, self._config.width)
        turned = numpy_decoder.rotation(made_up.integers(0, 1000, DIFFERENT_ROWS, np.int32), self._config)
        layer = self._programs.layer(0)
        queries = numpy_decoder.queries(layer, hidden, turned)
        keys, values = (part[turns] for part in numpy_decoder.key_values(layer, hidden, turned))
        cos, sin = (part[turns] for part in turned)
        arguments: tuple[ArrayLike, ...] = (*self._programs.layers[0], hidden[turns], cos, sin)
        if not reads:
            return arguments, tuple(map(Answer, (queries[turns], keys, values)))
        places = made_up.integers(0, tokens, reads, np.int32)
        read = turns[places]
        return (*arguments, places), (*map(Answer, (queries[read], keys, values)), Answer(hidden[read], exact=True))

    def _before(self, made_up: Generator, tokens: int, blocks: int) -> Case:
        """A prefix of some blocks anywhere in the pool, of which each token sees another part."""
        size, count = self._buckets.step, min(blocks, self._longest, MOST_BLOCKS)
        queries = self._queries(made_up, tokens)
        keys, values = self._key_values(made_up, count * size)
        used = made_up.permutation(blocks)[:count]
        table = np.zeros(self._longest, np.int32)
        table[:count] = used
        pool = [np.zeros(part.shape, part.dtype) for part in self._programs.pool(blocks)]
        for number, block in enumerate(used):
            of_block = slice(number * size, (number + 1) * size)
            pool[0][block] = _bits(keys[of_block].transpose(1, 2, 0))
            pool[1][block] = _bits(values[of_block].transpose(1, 0, 2))
        ends = made_up.integers(0, count * size, tokens, np.int32, endpoint=True)
        ends[:5] = (0, 1, size - 1, size, count * size)
        places = _spread(tokens)
        visible: Mask = np.less(np.arange(count * size), ends[places, None])
        seen = self._attend(queries[places], keys, values, visible)
        answers = Answer(seen.out, places), Answer(seen.log_sum_exp, places, least=1.0)
        return (queries, *pool, table, ends), answers

    def _own(self, made_up: Generator, span: Span, *, last: bool) -> Case:
        """Items of all lengths of a span, tightly packed, behind something that some of them have seen already.

        Some tokens, or the first read, are said to be another span's: what they had seen must stay as it is.
        """
        size, others = self._buckets.step, 1
        shorter = span.length // 2 if span.length > SHORTEST_SPAN else 0
        lengths = made_up.integers(shorter, span.length, size) + 1
        lengths[0] = span.length
        count = min(span.rows, self._buckets.reads - others, int((np.cumsum(lengths) <= size).sum()))
        lengths = lengths[:count]
        (own,) = Step.of([Extension(np.zeros(length, np.int32), 0) for length in lengths], self._buckets).own
        queries = self._queries(made_up, size)
        keys, values = self._key_values(made_up, size)
        values[np.cumsum(lengths) - 1] *= 8  # an item's last token shows, however long the item is
        before = Seen(_normal(made_up, *queries.shape), _normal(made_up, *queries.shape[:2]))
        before.out[1::3], before.log_sum_exp[1::3] = 0.0, -np.inf
        of_item = np.repeat(np.arange(count), lengths)
        slots, reads = own.slots.copy(), np.minimum(own.reads + others, size).astype(np.int32)
        slots[3::7] = -1
        places = _spread(others + count if last else len(of_item))
        # The query of an item's last token sees all of it.
        of_query = places - others if last else of_item[places]
        reach = np.full_like(places, len(of_item)) if last else places + 1
        visible = np.equal.outer(of_query, of_item) & np.greater.outer(reach, np.arange(len(of_item)))
        seen = self._attend(queries[places], keys[: len(of_item)], values[: len(of_item)], visible)
        merged = numpy_decoder.merge(Seen(before.out[places], before.log_sum_exp[places]), seen)
        mine = of_query >= 0 if last else slots[places] >= 0
        expected = np.where(mine[:, None, None], merged, before.out[places])
        indices = (own.lengths, reads) if last else (slots,)
        return (queries, keys, values, *before, own.starts, *indices), (Answer(expected, places),)

    def _packed(self, made_up: Generator, tokens: int, looking: int) -> Case:
        """Queries that see two ranges of keys each, the first of which may be empty."""
        turns, some = _in_turn(looking), DIFFERENT_ROWS
        queries = self._queries(made_up, some)[:some]
        keys, values = self._key_values(made_up, self._buckets.interface(tokens))
        first = np.stack([np.zeros(some, np.int32), made_up.integers(0, tokens // 4, some, np.int32)], axis=-1)
        second = made_up.integers(tokens // 4, tokens, (some, 2), np.int32)
        second.sort(axis=1)
        first[0], second[:, 1] = 0, second[:, 1] + 1
        ranges = np.stack([first, second], axis=1)
        positions = np.arange(len(keys))
        within = (ranges[..., :1] <= positions) & (positions < ranges[..., 1:])
        seen = self._attend(queries, keys, values, within[:, 0] | within[:, 1])
        missing = ((0, self._buckets.interface(looking) - looking), (0, 0), (0, 0))
        return (np.pad(queries[turns], missing), keys, values, ranges[turns]), (Answer(seen.out[turns]),)

    def _leave(self, made_up: Generator, tokens: int) -> Case:
        turns = _in_turn(tokens)
        hidden = _normal(made_up, DIFFERENT_ROWS, self._config.width)
        hidden[::2] = 0.0  # or what is added would be a small part of the sum
        attended = _normal(made_up, DIFFERENT_ROWS, self._config.query_heads, self._config.head_dim)
        after = numpy_decoder.leave(self._programs.layer(0), hidden, attended)
        everywhere = attended[_in_turn(self._buckets.interface(tokens))]
        return (*self._programs.layers[0], hidden[turns], everywhere), (Answer(after[turns]),)

    def _store(self, made_up: Generator, blocks: int) -> Case:
        """One block, and that its neighbours stay as they are."""
        keys, values = self._key_values(made_up, self._buckets.step)
        block = min(1, blocks - 1)
        pool = [np.ones(part.shape, part.dtype) for part in self._programs.pool(blocks)]
        # Copies: the program takes their memory over.
        given = [jnp.array(part) for part in pool]
        pool[0][block], pool[1][block] = _bits(keys.transpose(1, 2, 0)), _bits(values.transpose(1, 0, 2))
        answers = (Answer(part[:MOST_BLOCKS], exact=True) for part in pool)
        return (*given, keys, values, np.int32(block)), tuple(answers)

    def _head(self, made_up: Generator, head: Head, rows: int, labels: int) -> Case:
        ids = made_up.integers(0, self._config.vocabulary, labels, np.int32)
        turns = _in_turn(rows, HEAD_STATES)
        logits = numpy_decoder.label_logits(self._programs, self._head_states, ids)
        arguments = (*self._programs.head, self._head_states[turns], ids)
        if head is Head.LOGITS:
            return arguments, (Answer(logits[turns]),)
        return arguments, (Answer(logits[turns]), Answer((logits - self._log_sum_exp)[turns]))

    @cached_property
    def _head_states(self) -> Floats:
        """The final states that all heads are checked with: NumPy goes through the whole vocabulary only once."""
        return _normal(np.random.default_rng(0), HEAD_STATES, self._config.width)

    @cached_property
    def _log_sum_exp(self) -> Floats:
        return numpy_decoder.log_sum_exp(self._programs, self._head_states)

    def _queries(self, made_up: Generator, tokens: int) -> npt.NDArray[Any]:
        """[I, H, D] in the weights' dtype."""
        shape = (self._buckets.interface(tokens), self._config.query_heads, self._config.head_dim)
        return (SPREAD * _normal(made_up, *shape)).astype(self._dtype)

    def _key_values(self, made_up: Generator, tokens: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """[tokens, K, D] each, in the weights' dtype."""
        shape = (tokens, self._config.kv_heads, self._config.head_dim)
        return _normal(made_up, *shape).astype(self._dtype), _normal(made_up, *shape).astype(self._dtype)

    def _attend(
        self, queries: npt.NDArray[Any], keys: npt.NDArray[Any], values: npt.NDArray[Any], visible: Mask
    ) -> Seen:
        return attend(
            queries.astype(np.float32), keys.astype(np.float32), values.astype(np.float32), visible, self._dtype
        )

    def _final_states(self, group: GroupWork) -> Floats:
        """Of every row of a group's only chunk: [N, width]."""
        (chunk,) = group.chunks
        rows, prefix = chunk.rows, group.prefix
        stops = len(prefix) + np.cumsum(rows.lengths)
        tokens = np.concatenate([prefix, rows.tokens])
        positions = np.arange(len(tokens), dtype=np.int32)
        visible = np.tri(len(tokens), dtype=np.bool_)
        places = []
        for stop, length, end in zip(stops.tolist(), rows.lengths.tolist(), rows.prefix_ends.tolist(), strict=True):
            own = slice(stop - length, stop)
            visible[own, end : own.start] = False
            positions[own] = end + np.arange(length)
            places.append(stop - 1 if length else end - 1)
        return numpy_decoder.final_states(self._programs, tokens, positions, visible)[places]


def known_work(vocabulary: int) -> GroupWork:
    """A prompt of a handful of tokens, the same for every model with such a vocabulary."""
    made_up = np.random.default_rng(0)
    prefix = made_up.integers(0, vocabulary, KNOWN_PREFIX, np.int32)
    items = [made_up.integers(0, vocabulary, length, np.int32) for length, _ in KNOWN_ITEMS]
    rows = Rows.pack(items, [end for _, end in KNOWN_ITEMS])
    return GroupWork("known answer", prefix, (ChunkWork(0, rows, (0,), Head.LOGITS),))


def _require(what: str, error: float, tolerance: float) -> None:
    if error > tolerance:
        raise KnownAnswerError(
            f"{what} differs from NumPy's by {error:.2g} of its size, where {tolerance:g} is allowed ({_where()}): "
            "this device and these versions compute something wrong"
        )


def _where() -> str:
    device = jax.devices()[0]
    return f"jax {jax.__version__}, jaxlib {version('jaxlib')}, {device.platform}: {device.device_kind}"


def _normal(made_up: Generator, *shape: int) -> Floats:
    return made_up.standard_normal(shape, np.float32)


def _in_turn(rows: int, different: int = DIFFERENT_ROWS) -> TokenIds:
    """Which of the different rows each row is."""
    return np.arange(rows, dtype=np.int32) % different


def _spread(rows: int) -> TokenIds:
    """Which rows are looked at: the first one, the last one, and some between."""
    return np.unique(np.linspace(0, rows - 1, min(rows, MOST_QUERIES)).astype(np.int32))


def _bits(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As a pool holds it: see :func:`model.linear.as_bits`."""
    return array if array.dtype == np.float32 else array.view(np.uint16)


def _root_mean_square(rows: Floats) -> Floats:
    found: Floats = np.sqrt(np.mean(rows * rows, axis=1))
    return found
