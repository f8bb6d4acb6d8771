"""Known-answer tests of the compiled programs: compilers of some versions and devices have been silently wrong.

Before a program may be used, it runs once on random numbers and the served weights, and its outputs are compared with
NumPy's (:class:`KnownAnswers`). Before a worker serves, the programs of all layers together are compared with NumPy on
known prompts (:mod:`model.checks.known_prompts`). Programs are pure functions, so those that are compiled during the
work are checked in the thread that compiles them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, Generic

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import structlog
from jax.typing import ArrayLike
from numpy.random import Generator

from model.buckets import (
    SHORTEST_LENGTH_BUCKET,
    Buckets,
    EmbedKey,
    HeadKey,
    Key,
    LengthBucket,
    OutputMLPKey,
    PackedAttentionKey,
    PrefixAttentionKey,
    QKVKey,
    SelfAttentionKey,
    StoreKey,
)
from model.checks import numpy_decoder
from model.checks.known_prompts import KnownPrompts, known_prompt
from model.checks.numpy_decoder import Floats, Mask, ReferenceAttention, ServedDecoder, attend
from model.executable_table import K
from model.forward import Extension
from model.layerwise.programs import Programs
from model.layerwise.steps import Step
from model.platforms import Platform
from scoring.layout import GroupWork, Head, TokenIds

PROGRAM_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
"""Largest error of a row of a program's output, relative to its norm. docs/log.md has the errors of right programs."""
MODEL_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
"""Largest error of a final state behind all layers, whose rounding errors add up, relative to its norm."""

MAX_BLOCKS = 3  # blocks of a random prefix, and blocks of a pool that are compared after one was stored
DISTINCT_ROWS = 17
"""Rows of a product that differ. They repeat in turn, so NumPy computes few, and all rows of a program are checked."""
MAX_QUERIES = 256  # queries of an attention program that are checked, evenly spaced: all of a step of the usual size
HEAD_STATES = 5  # distinct rows of heads, whose vocabulary may be large
QUERY_SCALE = 2.0
"""Scale of random queries, so that a few keys matter more than others, and a wrong set of visible keys shows."""

log = structlog.stdlib.get_logger("engine")


class KnownAnswerError(Exception):
    """A program, or the whole model, computes something else than NumPy, or other bits for copies of the same item."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedOutput:
    """Rows of an output as NumPy computes them."""

    rows: npt.NDArray[Any]  # [n, ...]
    indices: TokenIds | None = None  # which rows of the output they are, int32 [n]; None: the first
    exact: bool = False  # nothing is computed: numbers are only moved
    min_scale: float = 0.0  # errors are relative to this root mean square at least, for rows that may be all near zero

    def error_of(self, output: ArrayLike) -> float:
        """Return the largest error of a row, relative to the row; infinite where one is not a number."""
        expected = self.rows.reshape(len(self.rows), -1).astype(np.float32)
        indices = slice(len(expected)) if self.indices is None else self.indices
        given = np.asarray(output)[indices].reshape(expected.shape).astype(np.float32)
        with np.errstate(invalid="ignore"):
            difference = np.where(given == expected, np.float32(0), given - expected)
        finite = np.where(np.isfinite(expected), expected, np.float32(0))
        scale = np.maximum(_root_mean_square(finite), max(self.min_scale, float(np.finfo(np.float32).tiny)))
        worst = float((_root_mean_square(difference) / scale).max())
        return worst if np.isfinite(worst) else np.inf


Case = tuple[tuple[ArrayLike, ...], tuple[ExpectedOutput, ...]]
"""The arguments of a program, and the outputs that it must have."""


class ModelChecks(ABC, Generic[K]):
    """Checks the programs of one model. Safe to call from several threads."""

    def __init__(self, decoder: ServedDecoder, platform: Platform) -> None:
        self._decoder = decoder
        self._config = decoder.config
        self._dtype = decoder.dtype
        self._where = f"jax {jax.__version__}, jaxlib {version('jaxlib')}, {platform}"

    @abstractmethod
    def _case(self, key: K) -> Case:
        """Return what a program is run on, and what it must return."""

    def check(self, key: K, executable: jax.stages.Compiled) -> None:
        """Run a program on random numbers of a fixed seed. Raises :class:`KnownAnswerError`."""
        arguments, expected = self._case(key)
        outputs = executable(*arguments)
        if len(outputs) != len(expected):
            raise KnownAnswerError(f"{key} has {len(outputs)} outputs instead of {len(expected)} ({self._where})")
        for number, (one, output) in enumerate(zip(expected, outputs, strict=True)):
            tolerance = 0.0 if one.exact else PROGRAM_TOLERANCE[self._dtype.name]
            self._require(f"output {number} of {key}", one.error_of(output), tolerance)

    def prompts(self, context: int) -> KnownPrompts:
        """Return what is scored for :meth:`check_model`; context: tokens of the longest sequence that is served."""
        prompt = known_prompt(self._config.vocabulary)
        return KnownPrompts((prompt,), ((prompt,),))

    def check_model(self, known: KnownPrompts, found: Mapping[str, Floats], *, same_bits: bool) -> None:
        """Compare final states with NumPy's, and those of copies with one another.

        found: by algorithm, the states of all rows of all companies in order, float32 [N, width]. same_bits: whether
        copies must have the same bits; if not, a difference is only logged. Raises :class:`KnownAnswerError`.
        """
        self.compare(known, found)
        copies = known.copies()
        for algorithm, of_all in found.items():
            bits = of_all[copies.rows].view(np.int32)
            differing = int((bits != bits[copies.first]).any(axis=1).sum())
            if differing and same_bits:
                raise KnownAnswerError(
                    f"{differing} of {len(bits)} copies of known items scored by {algorithm} do not have the same bits "
                    f"({self._where}): on this device and with these versions, a score depends on its place in a step "
                    "or on other items. With SCORELINE_BATCH_INVARIANT=false, such scores are served"
                )
            if differing:
                log.warning("bits of scores depend on their company", algorithm=algorithm, copies=differing)

    def compare(self, known: KnownPrompts, found: Mapping[str, Floats]) -> None:
        """Do the same without comparing copies with one another."""
        copies = known.copies()
        states = self._final_states(known.prompts)[copies.numbers]
        expected = ExpectedOutput(numpy_decoder.final_normed(self._decoder, states))
        for algorithm, of_all in found.items():
            error = expected.error_of(numpy_decoder.final_normed(self._decoder, of_all[copies.rows]))
            self._require(f"a known prompt scored by {algorithm}", error, MODEL_TOLERANCE[self._dtype.name])

    def _require(self, what: str, error: float, tolerance: float) -> None:
        if error > tolerance:
            raise KnownAnswerError(
                f"{what} differs from NumPy's by {error:.2g} of its size, where {tolerance:g} is allowed "
                f"({self._where}): this device and these versions compute something wrong"
            )

    def _lm_head(self, random: Generator, head: Head, rows: int, labels: int) -> Case:
        ids = random.integers(0, self._config.vocabulary, labels, np.int32)
        turns = _in_turn(rows, HEAD_STATES)
        logits = numpy_decoder.label_logits(self._decoder, self._head_states, ids)
        arguments = (*self._decoder.head, self._head_states[turns], ids)
        if head is Head.LOGITS:
            return arguments, (ExpectedOutput(logits[turns]),)
        return arguments, (ExpectedOutput(logits[turns]), ExpectedOutput((logits - self._log_sum_exp)[turns]))

    @cached_property
    def _head_states(self) -> Floats:
        """The final states of all heads' cases, the same so that NumPy computes the whole vocabulary once."""
        return _normal(np.random.default_rng(0), HEAD_STATES, self._config.width)

    @cached_property
    def _log_sum_exp(self) -> Floats:
        return numpy_decoder.log_sum_exp(self._decoder, self._head_states)

    def _final_states(self, groups: Sequence[GroupWork]) -> Floats:
        """Return NumPy's final states of all rows of the groups, which have a chunk each: [N, width]."""
        tokens, positions, rows = list[TokenIds](), list[TokenIds](), list[int]()
        length = sum(len(group.prefix) + len(group.chunks[0].rows.tokens) for group in groups)
        visible, begin = np.zeros((length, length), np.bool_), 0
        for group in groups:
            (chunk,) = group.chunks
            of_group = chunk.rows
            size = len(group.prefix) + len(of_group.tokens)
            tokens += [group.prefix, of_group.tokens]
            positions.append(np.arange(size, dtype=np.int32))
            visible[begin : begin + size, begin : begin + size] = np.tri(size, dtype=np.bool_)
            stops = len(group.prefix) + np.cumsum(of_group.lengths)
            for stop, own, end in zip(
                stops.tolist(), of_group.lengths.tolist(), of_group.prefix_ends.tolist(), strict=True
            ):
                visible[begin + stop - own : begin + stop, begin + end : begin + stop - own] = False
                positions[-1][stop - own : stop] = end + np.arange(own)
                rows.append(begin + (stop - 1 if own else end - 1))
            begin += size
        found = numpy_decoder.final_states(self._decoder, np.concatenate(tokens), np.concatenate(positions), visible)
        return found[rows]


class KnownAnswers(ModelChecks[Key]):
    """Checks the programs by layer."""

    def __init__(self, programs: Programs, platform: Platform, buckets: Buckets, max_prefix_blocks: int) -> None:
        super().__init__(programs, platform)
        self._programs = programs
        self._buckets = buckets
        self._max_prefix_blocks = max_prefix_blocks

    def _case(self, key: Key) -> Case:
        random = np.random.default_rng(0)
        match key:
            case EmbedKey(tokens):
                return self._embed(random, tokens)
            case QKVKey(tokens, logit_rows):
                return self._qkv(random, tokens, logit_rows)
            case PrefixAttentionKey(tokens, blocks):
                return self._prefix_attention(random, tokens, blocks)
            case SelfAttentionKey(length, rows, last):
                return self._self_attention(random, LengthBucket(length, rows), last=last)
            case PackedAttentionKey(tokens, logit_rows, _):
                return self._packed_attention(random, tokens, logit_rows or tokens)
            case OutputMLPKey(tokens):
                return self._output_mlp(random, tokens)
            case StoreKey(blocks):
                return self._store(random, blocks)
            case HeadKey(head, rows, labels):
                return self._lm_head(random, head, rows, labels)

    def _embed(self, random: Generator, tokens: int) -> Case:
        ids = random.integers(0, self._config.vocabulary, tokens, np.int32)
        positions = random.integers(0, self._max_prefix_blocks * self._buckets.block_tokens, tokens, np.int32)
        rotary = numpy_decoder.rotary_angles(positions, self._config)
        embedded = ExpectedOutput(numpy_decoder.embed(self._programs, ids), exact=True)
        expected = (embedded, *(ExpectedOutput(part, min_scale=0.1) for part in rotary))
        return (*self._programs.embedding, ids, positions), expected

    def _qkv(self, random: Generator, tokens: int, logit_rows: int) -> Case:
        turns = _in_turn(tokens)
        hidden = _normal(random, DISTINCT_ROWS, self._config.width)
        rotary = numpy_decoder.rotary_angles(random.integers(0, 1000, DISTINCT_ROWS, np.int32), self._config)
        layer = self._programs.layer(0)
        queries = numpy_decoder.queries(layer, hidden, rotary)
        keys, values = (part[turns] for part in numpy_decoder.key_values(layer, hidden, rotary))
        cos, sin = (part[turns] for part in rotary)
        arguments: tuple[ArrayLike, ...] = (*self._programs.layers[0], hidden[turns], cos, sin)
        if not logit_rows:
            return arguments, tuple(map(ExpectedOutput, (queries[turns], keys, values)))
        positions = random.integers(0, tokens, logit_rows, np.int32)
        selected = turns[positions]
        expected = map(ExpectedOutput, (queries[selected], keys, values))
        return (*arguments, positions), (*expected, ExpectedOutput(hidden[selected], exact=True))

    def _prefix_attention(self, random: Generator, tokens: int, blocks: int) -> Case:
        """A prefix in some blocks of the pool, of which each token sees another part."""
        size, count = self._buckets.block_tokens, min(blocks, self._max_prefix_blocks, MAX_BLOCKS)
        queries = self._queries(random, tokens)
        keys, values = self._key_values(random, count * size)
        used = random.permutation(blocks)[:count]
        table = np.zeros(self._max_prefix_blocks, np.int32)
        table[:count] = used
        pool = [np.zeros(part.shape, part.dtype) for part in self._programs.pool(blocks)]
        for number, block in enumerate(used):
            of_block = slice(number * size, (number + 1) * size)
            pool[0][block] = _pool_dtype(keys[of_block].transpose(1, 2, 0), pool[0].dtype)
            pool[1][block] = _pool_dtype(values[of_block].transpose(1, 0, 2), pool[1].dtype)
        ends = random.integers(0, count * size, tokens, np.int32, endpoint=True)
        ends[:5] = (0, 1, size - 1, size, count * size)
        checked = _evenly_spaced(tokens)
        visible: Mask = np.less(np.arange(count * size), ends[checked, None])
        output = self._attend(queries[checked], keys, values, visible)
        log_sum_exp = ExpectedOutput(output.log_sum_exp, checked, min_scale=1.0)
        return (queries, *pool, table, ends), (ExpectedOutput(output.out, checked), log_sum_exp)

    def _self_attention(self, random: Generator, bucket: LengthBucket, *, last: bool) -> Case:
        """Items of all lengths of a bucket, tightly packed, some of them behind a prefix that they have attended to.

        Some tokens, or the first logit position, belong to another bucket: their output must not change.
        """
        size, others = self._buckets.step_tokens, 1
        shorter = bucket.length // 2 if bucket.length > SHORTEST_LENGTH_BUCKET else 0
        lengths = random.integers(shorter, bucket.length, size) + 1
        lengths[0] = bucket.length
        count = min(bucket.rows, self._buckets.logit_rows - others, int((np.cumsum(lengths) <= size).sum()))
        lengths = lengths[:count]
        step = Step.of([Extension(np.zeros(length, np.int32), 0) for length in lengths], self._buckets)
        (batch,) = step.self_attention
        queries = self._queries(random, size)
        keys, values = self._key_values(random, size)
        values[np.cumsum(lengths) - 1] *= 8  # so that an item's last token shows, however long the item is
        before = ReferenceAttention(_normal(random, *queries.shape), _normal(random, *queries.shape[:2]))
        before.out[1::3], before.log_sum_exp[1::3] = 0.0, -np.inf
        item_of = np.repeat(np.arange(count), lengths)
        slots, logit_indices = batch.slots.copy(), np.minimum(batch.logit_indices + others, size).astype(np.int32)
        slots[3::7] = -1
        checked = _evenly_spaced(others + count if last else len(item_of))
        # With ``last``, row ``others + n`` holds the query of item n's last token, which sees the whole item.
        item_of_query = checked - others if last else item_of[checked]
        ends = np.full_like(checked, len(item_of)) if last else checked + 1
        visible = np.equal.outer(item_of_query, item_of) & np.greater.outer(ends, np.arange(len(item_of)))
        own = self._attend(queries[checked], keys[: len(item_of)], values[: len(item_of)], visible)
        merged = numpy_decoder.merge(ReferenceAttention(before.out[checked], before.log_sum_exp[checked]), own)
        in_bucket = item_of_query >= 0 if last else slots[checked] >= 0
        expected = np.where(in_bucket[:, None, None], merged, before.out[checked])
        indices = (batch.lengths, logit_indices) if last else (slots,)
        return (queries, keys, values, *before, batch.starts, *indices), (ExpectedOutput(expected, checked),)

    def _packed_attention(self, random: Generator, tokens: int, rows: int) -> Case:
        """Queries that see two ranges of keys each, the first of which may be empty."""
        turns, some = _in_turn(rows), DISTINCT_ROWS
        queries = self._queries(random, some)[:some]
        keys, values = self._key_values(random, self._buckets.padded_rows(tokens))
        first = np.stack([np.zeros(some, np.int32), random.integers(0, tokens // 4, some, np.int32)], axis=-1)
        second = random.integers(tokens // 4, tokens, (some, 2), np.int32)
        second.sort(axis=1)
        first[0], second[:, 1] = 0, second[:, 1] + 1
        ranges = np.stack([first, second], axis=1)
        positions = np.arange(len(keys))
        within = (ranges[..., :1] <= positions) & (positions < ranges[..., 1:])
        output = self._attend(queries, keys, values, within[:, 0] | within[:, 1])
        missing = ((0, self._buckets.padded_rows(rows) - rows), (0, 0), (0, 0))
        return (np.pad(queries[turns], missing), keys, values, ranges[turns]), (ExpectedOutput(output.out[turns]),)

    def _output_mlp(self, random: Generator, tokens: int) -> Case:
        turns = _in_turn(tokens)
        hidden = _normal(random, DISTINCT_ROWS, self._config.width)
        hidden[::2] = 0.0  # otherwise what is added would be a small part of the sum
        attended = _normal(random, DISTINCT_ROWS, self._config.query_heads, self._config.head_dim)
        after = numpy_decoder.output_mlp(self._programs.layer(0), hidden, attended)
        padded = attended[_in_turn(self._buckets.padded_rows(tokens))]
        return (*self._programs.layers[0], hidden[turns], padded), (ExpectedOutput(after[turns]),)

    def _store(self, random: Generator, blocks: int) -> Case:
        """Writing the blocks of a step, as many as the pool has, which must leave their neighbours unchanged."""
        keys, values = self._key_values(random, self._buckets.step_tokens)
        count, size = self._buckets.step_blocks, self._buckets.block_tokens
        checked = min(blocks, count + MAX_BLOCKS)
        targets = np.full(count, blocks, np.int32)
        targets[:checked] = (1 + np.arange(min(count, checked))) % checked
        pool = [np.zeros(part.shape, part.dtype) for part in self._programs.pool(blocks)]
        for part in pool:
            part[:checked] = 1
        donated = [jnp.array(part) for part in pool]
        for number, block in enumerate(targets[:checked]):
            of_block = slice(number * size, (number + 1) * size)
            pool[0][block] = _pool_dtype(keys[of_block].transpose(1, 2, 0), pool[0].dtype)
            pool[1][block] = _pool_dtype(values[of_block].transpose(1, 0, 2), pool[1].dtype)
        expected = (ExpectedOutput(part[:checked], exact=True) for part in pool)
        return (*donated, keys, values, targets), tuple(expected)

    def _queries(self, random: Generator, tokens: int) -> npt.NDArray[Any]:
        """Return queries [I, H, D] in the weights' dtype."""
        shape = (self._buckets.padded_rows(tokens), self._config.query_heads, self._config.head_dim)
        return (QUERY_SCALE * _normal(random, *shape)).astype(self._dtype)

    def _key_values(self, random: Generator, tokens: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return keys and values, [tokens, K, D] each, in the weights' dtype."""
        shape = (tokens, self._config.kv_heads, self._config.head_dim)
        return _normal(random, *shape).astype(self._dtype), _normal(random, *shape).astype(self._dtype)

    def _attend(
        self, queries: npt.NDArray[Any], keys: npt.NDArray[Any], values: npt.NDArray[Any], visible: Mask
    ) -> ReferenceAttention:
        return attend(
            queries.astype(np.float32), keys.astype(np.float32), values.astype(np.float32), visible, self._dtype
        )


def _normal(random: Generator, *shape: int) -> Floats:
    return random.standard_normal(shape, np.float32)


def _in_turn(rows: int, distinct: int = DISTINCT_ROWS) -> TokenIds:
    """Return which of the distinct rows each row repeats."""
    return np.arange(rows, dtype=np.int32) % distinct


def _evenly_spaced(rows: int) -> TokenIds:
    """Return which rows are checked: the first one, the last one, and some between."""
    return np.unique(np.linspace(0, rows - 1, min(rows, MAX_QUERIES)).astype(np.int32))


def _pool_dtype(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the array as a pool holds it: see :func:`model.linear.to_pool_dtype`."""
    return array.view(dtype)


def _root_mean_square(rows: Floats) -> Floats:
    found: Floats = np.sqrt(np.mean(rows * rows, axis=1))
    return found
