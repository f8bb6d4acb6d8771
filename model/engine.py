"""The engine: groups of rows in, label scores out, by the algorithm that suits each row.

Whoever's rows suit the same step run together. In ``serial`` and ``prefill_extend`` what a row scores depends on its
own tokens alone, bit for bit: its prefix and length pick the algorithm and the programs, and neither its place nor its
company changes its bits (``tests/model/test_row_independence.py``). In packed sequences company shows in rounding.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
import structlog
from jax import Array

from checkpoints.card import ModelCard
from model import weights
from model.attention.contract import Attention
from model.buckets import Buckets, Key, PackedKey, packed_reads
from model.checks.known_answer import KnownAnswers, known_work
from model.config import DecoderConfig
from model.decoder import Decoder
from model.executables import Executables
from model.forward import Forward
from model.head_runner import Read, Reader
from model.packed_sequence import pack
from model.platforms import attention_for, has_row_floor, serving_dtype
from model.prefix_cache import Pin, PoolShape, Prefix, Prefixes
from model.programs import Programs
from model.score_buffer import EngineError, Row, Sheet
from model.steps import Extension, steps
from scoring.layout import GroupWork, Scored, TokenIds
from scoring.planning.algorithms import Algorithm, Choice, Policy, Wanted
from scoring.planning.estimates import Estimator, Geometry, Rates
from scoring.planning.planner import Plan, Planner
from settings.engine import EngineSettings

COMPILING_THREADS = 2
"""The compiler runs outside Python's lock, mostly on one core."""

Computed = tuple[list[Read], int]
"""What a step on the device has brought: rows' final states, and the tokens it computed, padding included."""

T = TypeVar("T")

log = structlog.stdlib.get_logger("engine")


class Engine:
    """A loaded model on a device. One thread at a time scores; compiling is safe from any thread.

    algorithm: what is asked for; attention: None for the platform's own.
    scored_rows: how many rows each algorithm has scored; fallbacks: how often each reason kept a row from the algorithm
    that was asked for. computed_tokens: what steps have computed so far, padding included.
    """

    def __init__(
        self,
        decoder: Decoder,
        settings: EngineSettings,
        card: ModelCard,
        weights_fingerprint: str,
        algorithm: Wanted = "auto",
        attention: Attention | None = None,
    ) -> None:
        platform = jax.devices()[0].platform
        buckets = Buckets.of(
            settings.step_tokens,
            one_size=not has_row_floor(platform, settings.step_tokens),
            first=settings.multi_item_warmup_chunk_sizes,
            most_rows=settings.multi_item_extend_batch_size,
            packed=settings.multi_item_precompile_buckets,
            longest_packed=settings.max_multi_item_seq_len,
        )
        dtype = decoder.head_kernel().dtype
        pool = PoolShape.of(
            decoder.config, card.context_length, dtype.itemsize, settings.prefix_cache_bytes, settings.step_tokens
        )
        programs = Programs(decoder, attention or attention_for(platform), buckets)
        self.card = card
        self.weights_fingerprint = weights_fingerprint
        self.dtype: str = dtype.name
        self.device = _device_name()
        self.scored_rows: Counter[Algorithm] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self.computed_tokens = 0
        self._known_answers = KnownAnswers(programs, buckets, pool.longest)
        self._executables = Executables(programs, buckets, pool.longest, self._known_answers.check)
        self._context = card.context_length
        self._width = decoder.config.width
        self._buckets = buckets
        self._forward = Forward(programs, self._executables, buckets, pool.budget)
        self._prefixes = Prefixes(self._forward, pool, buckets, settings.multi_item_prefill_extend_cache_timeout)
        self._no_prefix = np.zeros(pool.longest, np.int32)
        self._keeps_prefixes = settings.enable_scoring_cache
        policy = Policy(
            algorithm=algorithm,
            mask=settings.multi_item_mask_impl,
            prefill_extend_enabled=settings.multi_item_enable_prefill_extend,
            shortest_prefix=settings.multi_item_algorithm_query_threshold,
            longest_packed=settings.max_multi_item_seq_len,
            batch_invariant=settings.batch_invariant,
            fewest_extended=settings.multi_item_algorithm_items_threshold,
            longest_dense=settings.multi_item_segment_fallback_threshold,
        )
        self._planner = Planner(policy, Estimator(decoder.config.size, Rates.of(platform), buckets.shapes))

    @classmethod
    def load(
        cls,
        directory: Path,
        settings: EngineSettings,
        card: ModelCard,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        algorithm: Wanted = "auto",
    ) -> Engine:
        """Load the checkpoint in ``directory``; ``card`` is what API and worker say of it.

        ``on_progress(done, total)`` is told of the bytes read. Raises :class:`checkpoints.files.ModelFilesError`:
        of the configuration :class:`model.configuration_reader.UnsupportedModelError`, of the weights
        :class:`model.weights.WeightsError`.
        """
        config = DecoderConfig.from_directory(directory)
        dtype = serving_dtype(settings.dtype, jax.devices()[0].platform)
        decoder, fingerprint = weights.load(directory, config, dtype, on_progress)
        return cls(decoder, settings, card, fingerprint, algorithm)

    @property
    def prefixes(self) -> Prefixes:
        """What is kept of queries, with counts of how that went."""
        return self._prefixes

    def warm_up(self, on_progress: Callable[[int, int, str], None]) -> None:
        """Compile the core set of programs and see that they are the model: to be called before anything is scored.

        ``on_progress(done, total, program)`` is told after each. What it raises ends it: no further program is begun.
        Raises :class:`model.checks.known_answer.KnownAnswerError`, and so does whoever has a wrong program compiled
        later.
        """
        self._compile(self._buckets.core(self._forward.blocks), COMPILING_THREADS, on_progress)
        self.check_model()

    def warm_up_rest(self, on_progress: Callable[[int, int, str], None]) -> None:
        """Compile the rest of the declared programs, one at a time: work goes on meanwhile."""
        policy = self._planner.policy
        keys = self._buckets.rest(self._forward.blocks, packed=policy.may_pack, dense=policy.may_mask)
        self._compile(keys, 1, on_progress)

    def _compile(self, keys: Sequence[Key], threads: int, on_progress: Callable[[int, int, str], None]) -> None:
        pool = ThreadPoolExecutor(threads)
        try:
            compiling = {pool.submit(self._executables.__getitem__, key): key for key in keys}
            for done, future in enumerate(as_completed(compiling), start=1):
                future.result()
                on_progress(done, len(keys), str(compiling[future]))
        finally:
            pool.shutdown(cancel_futures=True)

    def check_model(self) -> None:
        """Score a known prompt with and without a prefix in the pool, and hold both against NumPy.

        Raises :class:`model.checks.known_answer.KnownAnswerError`.
        """
        group = known_work(self.card.vocabulary)
        sheet = Sheet.blank(group.chunks[0])
        rows = list(self._rows(sheet, len(group.prefix)))
        algorithms = {"serial": self._serial([(group, rows)]), "prefill_extend": self._prefill_extend(group, rows)}
        found = {}
        for name, computed in algorithms.items():
            found[name] = np.full((len(rows), self._width), np.nan, np.float32)
            for row, hidden in (read for step, _ in computed for read in step):
                found[name][row.index] = hidden
        self._prefixes.drop(_handle(group))
        self._known_answers.check_model(group, found)

    def score(self, groups: Sequence[GroupWork], on_step: Callable[[], None]) -> Iterator[Scored]:
        """Score every row of every chunk; yield a chunk once its last row is in, so not in the order given.

        ``on_step`` is called after every step on the device, once its chunks are handed over. It may raise to end the
        work, and may score other work meanwhile: neither changes a bit of the other's scores. Raises
        :class:`EngineError` on a sequence that is empty or longer than the context, and where a score is not a number.
        """
        sheets = [(group, [Sheet.blank(chunk) for chunk in group.chunks]) for group in groups]
        yield from (sheet.scored() for _, of_group in sheets for sheet in of_group if not sheet.missing)
        reader = Reader(self._forward, self._buckets, self._width)
        plans = [self._plan(group, of_group) for group, of_group in sheets]
        computed = 0
        for found, tokens in self._steps(plans):
            computed += tokens
            self.computed_tokens += tokens
            yield from reader.take(found, tokens)
            on_step()
        yield from reader.rest()
        log.info(
            "computed",
            tokens=computed,
            estimated_seconds=round(sum(planned.plan.estimate.seconds for planned in plans), 3),
            prefixes=self._prefixes.counts(),
        )

    def _steps(self, plans: Sequence[_Planned]) -> Iterator[Computed]:
        """Everything that the device has to do below the heads, a step at a time."""
        work: dict[Algorithm, list[tuple[GroupWork, list[Row]]]] = defaultdict(list)
        choices: dict[Choice, list[int]] = defaultdict(list)
        for planned in plans:
            for part in planned.plan.parts:
                work[part.choice.algorithm].append((planned.group, [planned.rows[n] for n in part.rows]))
                choices[part.choice].append(len(part.rows))
        for choice, counts in choices.items():
            self._count(choice, len(counts), sum(counts))
        yield from self._serial(work[Algorithm.SERIAL])
        for group, rows in work[Algorithm.PREFILL_EXTEND]:
            yield from self._prefill_extend(group, rows)
        for algorithm in (Algorithm.PACKED_SEGMENT, Algorithm.PACKED_DENSE):
            yield from self._packed(work[algorithm], dense=algorithm is Algorithm.PACKED_DENSE)

    def _plan(self, group: GroupWork, sheets: Sequence[Sheet]) -> _Planned:
        """How to score a group's rows."""
        rows = [row for sheet in sheets for row in self._rows(sheet, len(group.prefix))]
        lengths = np.array([len(row.tokens) for row in rows], np.int32)
        ends = np.array([row.prefix_end for row in rows], np.int32)
        cached = self._prefixes.holds(_handle(group))
        return _Planned(group, rows, self._planner.plan(Geometry(len(group.prefix), lengths, ends, cached)))

    def _count(self, choice: Choice, groups: int, rows: int) -> None:
        """Keep count of what was chosen, and say it."""
        self.scored_rows[choice.algorithm] += rows
        if choice.fallback:
            self.fallbacks[choice.reason] += rows
        tell, event = (log.warning, "fallback") if choice.fallback else (log.info, "planned")
        tell(event, algorithm=choice.algorithm, reason=choice.reason, groups=groups, rows=rows)

    def _rows(self, sheet: Sheet, prefix_length: int) -> Iterator[Row]:
        rows = sheet.chunk.rows
        starts = np.cumsum(rows.lengths) - rows.lengths
        for index, (start, length, prefix_end) in enumerate(
            zip(starts.tolist(), rows.lengths.tolist(), rows.prefix_ends.tolist(), strict=True)
        ):
            if not (0 < prefix_end + length <= self._context and 0 <= prefix_end <= prefix_length):
                raise EngineError(
                    f"chunk {sheet.chunk.id}, row {index}: {length} tokens behind {prefix_end} of a prefix of "
                    f"{prefix_length}, the context is {self._context}"
                )
            yield Row(rows.tokens[start : start + length], prefix_end, sheet, index)

    def _serial(self, work: Sequence[tuple[GroupWork, list[Row]]]) -> Iterator[Computed]:
        """Whole sequences, which stand alone."""
        whole = [
            Extension(np.concatenate([group.prefix[: row.prefix_end], row.tokens]), 0, row)
            for group, rows in work
            for row in rows
        ]
        yield from self._extend(whole, self._no_prefix)
        for extension in self._long(whole):
            yield from self._alone(extension, self._no_prefix)

    def _prefill_extend(self, group: GroupWork, rows: list[Row]) -> Iterator[Computed]:
        """The prefix once, unless it is still there from an earlier time; then items against it."""
        key = _handle(group)
        with self._prefixes.pinned(key) as pin:
            prefix = self._prefixes.find(key)
            self._count_shared(rows if prefix is not None else rows[1:])
            if prefix is None:
                prefix = yield from self._prefill(group.prefix)
                self._prefixes.keep(key, prefix)
            yield [(row, prefix.hidden) for row in rows if _is_read_off(row, prefix)], 0
            extensions = [_extension(row, group.prefix) for row in rows if not _is_read_off(row, prefix)]
            yield from self._extend(extensions, prefix.table)
            for extension in self._long(extensions):
                yield from self._alone(extension, group.prefix, pin)
            if not self._keeps_prefixes:
                self._prefixes.drop(key)

    def _prefill(self, tokens: TokenIds, common: int = 0, pin: Pin | None = None) -> Generator[Computed, None, Prefix]:
        """See :meth:`model.prefix_cache.Prefixes.prefilling`."""
        with self._prefixes.prefilling(tokens, common, pin) as prefilling:
            while computed := prefilling.step():
                yield [], computed
            return prefilling.finished()

    def _alone(self, extension: Extension, before: TokenIds, pin: Pin | None = None) -> Iterator[Computed]:
        """A row that is longer than a step, as a prefix of its own: it is read where that ends.

        pin: of the handle of ``before``, where there is one.
        """
        assert extension.row is not None
        tokens = np.concatenate([before[: extension.start], extension.tokens])
        prefix = yield from self._prefill(tokens, extension.start, pin)
        self._prefixes.give_up(prefix.blocks)
        yield [(extension.row, prefix.hidden)], 0

    def _count_shared(self, rows: Sequence[Row]) -> None:
        """Note how much of whose prefix does not have to be computed: of long rows', whole blocks alone."""
        step = self._buckets.step
        for row in rows:
            row.sheet.cached_tokens += row.prefix_end // step * step if len(row.tokens) > step else row.prefix_end

    def _long(self, extensions: Sequence[Extension]) -> list[Extension]:
        return [extension for extension in extensions if len(extension.tokens) > self._buckets.step]

    def _extend(self, extensions: Sequence[Extension], table: TokenIds) -> Iterator[Computed]:
        """Those of some rows behind one prefix that fit into a step: the next is laid out while one is computed."""
        fitting = [extension for extension in extensions if len(extension.tokens) <= self._buckets.step]

        def dispatched() -> Iterator[tuple[list[Row], Array, int]]:
            for step in steps(fitting, self._buckets):
                rows = [extension.row for extension in step.extensions if extension.row is not None]
                yield rows, self._forward.extend(step, table), len(step.tokens)

        for rows, hidden, computed in _one_ahead(dispatched()):
            yield list(zip(rows, np.asarray(hidden), strict=False)), computed

    def _packed(self, work: Sequence[tuple[GroupWork, list[Row]]], *, dense: bool) -> Iterator[Computed]:
        """Prefixes and items of several groups in one sequence after another."""
        longest = self._planner.policy.longest_packed
        for packed in pack(((group.prefix, rows) for group, rows in work), longest, packed_reads(longest)):
            size, reads = self._buckets.packed(packed.length, len(packed.rows))
            hidden = self._forward.packed(PackedKey(size, reads, dense), *packed.arrays(size, reads))
            yield list(zip(packed.rows, np.asarray(hidden), strict=False)), size


@dataclass(frozen=True, slots=True, eq=False)
class _Planned:
    """A group, all of its rows, and how they are to be scored."""

    group: GroupWork
    rows: Sequence[Row]
    plan: Plan


def _one_ahead(found: Iterable[T]) -> Iterator[T]:
    """The same, with the next one asked for before each is handed over."""
    waiting: list[T] = []
    for one in found:
        waiting.append(one)
        if len(waiting) == 2:
            yield waiting.pop(0)
    yield from waiting


def _handle(group: GroupWork) -> str:
    """What a group's prefix is found again by: its owner, and its content."""
    return f"{group.key}:{hashlib.sha256(group.prefix.tobytes()).hexdigest()}"


def _extension(row: Row, prefix: TokenIds) -> Extension:
    """The item itself; of an empty one that stops short of the prefix's end, the last token it sees."""
    if len(row.tokens):
        return Extension(row.tokens, row.prefix_end, row)
    return Extension(prefix[row.prefix_end - 1 : row.prefix_end], row.prefix_end - 1, row)


def _is_read_off(row: Row, prefix: Prefix) -> bool:
    """Whether a row is scored where the prefix ends."""
    return not len(row.tokens) and row.prefix_end == prefix.length


def _device_name() -> str:
    device = jax.devices()[0]
    return f"{device.platform}: {device.device_kind}"
