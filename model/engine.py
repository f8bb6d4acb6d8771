"""The engine: groups of rows in, label scores out, by the algorithm that suits each row.

Whoever's rows suit the same program run together. In ``serial`` and ``prefill_extend`` what a row scores depends on its
own tokens alone, bit for bit: its prefix and length pick the algorithm and the program, and neither its place nor its
company changes its bits (``tests/model/test_row_independence.py``). In packed sequences company shows in rounding.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import structlog

from model import weights
from model.attention import Attention
from model.buckets import BLOCK_TOKENS, Buckets, RowsKey, packed_reads
from model.config import DecoderConfig
from model.decoder import Decoder
from model.executables import Executables
from model.packing import pack
from model.prefixes import Prefix, Prefixes, pool_shape
from model.reading import EngineError, Read, Reader, Row, Sheet, batches
from scoring.algorithms import Algorithm, Choice, Policy, choose
from scoring.layout import GroupWork, Scored, TokenIds
from scoring.model_card import ModelCard
from settings.engine import EngineSettings

COMPILING_THREADS = 2
"""The compiler runs outside Python's lock, mostly on one core."""

Step = tuple[list[Read], int]
"""What a step on the device has brought: rows' final states, and the tokens it computed, padding included."""

log = structlog.stdlib.get_logger("engine")


class Engine:
    """A loaded model on a device. One caller at a time scores; compiling is safe from any thread.

    scored_rows: how many rows each algorithm has scored; fallbacks: how often each reason kept a row from the algorithm
    that was asked for.
    """

    def __init__(
        self,
        decoder: Decoder,
        settings: EngineSettings,
        card: ModelCard,
        weights_fingerprint: str,
        attention: Attention | None = None,
    ) -> None:
        itemsize = np.dtype(settings.dtype).itemsize
        pool = pool_shape(decoder.config, card.context_length, itemsize, settings.prefix_cache_bytes)
        self.card = card
        self.weights_fingerprint = weights_fingerprint
        self.dtype: str = settings.dtype
        self.device = _device_name()
        self.scored_rows: Counter[Algorithm] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self._executables = Executables(decoder, pool, attention)
        self._context = card.context_length
        self._buckets = Buckets.of(card.context_length, settings.step_tokens)
        self._prefixes = Prefixes(self._executables)
        self._keeps_prefixes = settings.enable_scoring_cache
        self._policy = Policy(
            algorithm=settings.multi_item_algorithm,
            mask=settings.multi_item_mask_impl,
            prefill_extend_enabled=settings.multi_item_enable_prefill_extend,
            shortest_prefix=settings.multi_item_algorithm_query_threshold,
            longest_prefix=pool.longest * BLOCK_TOKENS,
            longest_packed=settings.max_multi_item_seq_len,
        )

    @classmethod
    def load(
        cls,
        directory: Path,
        settings: EngineSettings,
        card: ModelCard,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Engine:
        """Load the checkpoint in ``directory``; ``card`` is what API and worker say of it.

        ``on_progress(done, total)`` is told of the bytes read. Raises :class:`scoring.model_files.ModelFilesError`:
        of the configuration :class:`model.fields.UnsupportedModelError`, of the weights
        :class:`model.weights.WeightsError`.
        """
        config = DecoderConfig.from_directory(directory)
        decoder, fingerprint = weights.load(directory, config, settings.dtype, on_progress)
        return cls(decoder, settings, card, fingerprint)

    def warm_up(self, on_progress: Callable[[int, int, str], None]) -> None:
        """Compile the core set of programs. ``on_progress(done, total, program)`` is told after each.

        What ``on_progress`` raises ends it: no further program is begun.
        """
        keys = self._buckets.warm_set()
        pool = ThreadPoolExecutor(COMPILING_THREADS)
        try:
            compiling = {pool.submit(self._executables.compiled, key): key for key in keys}
            for done, future in enumerate(as_completed(compiling), start=1):
                future.result()
                on_progress(done, len(keys), str(compiling[future]))
        finally:
            pool.shutdown(cancel_futures=True)

    def score(self, groups: Sequence[GroupWork], on_step: Callable[[], None]) -> Iterator[Scored]:
        """Score every row of every chunk; yield a chunk once its last row is in, so not in the order given.

        ``on_step`` is called after every step on the device, once its chunks are handed over, and may raise to end the
        work. Raises :class:`EngineError` on a sequence that is empty or longer than the context, and where a score is
        not a number.
        """
        sheets = [(group, [Sheet.blank(chunk) for chunk in group.chunks]) for group in groups]
        yield from (sheet.scored() for _, of_group in sheets for sheet in of_group if not sheet.missing)
        reader = Reader(self._executables, self._buckets)
        for found, tokens in self._steps(sheets):
            yield from reader.take(found, tokens)
            on_step()
        yield from reader.rest()

    def _steps(self, sheets: Sequence[tuple[GroupWork, Sequence[Sheet]]]) -> Iterator[Step]:
        """Everything that the device has to do below the heads, a step at a time."""
        work: dict[Algorithm, list[tuple[GroupWork, list[Row]]]] = defaultdict(list)
        for group, of_group in sheets:
            for algorithm, rows in self._sorted(group, of_group).items():
                work[algorithm].append((group, rows))
        yield from self._serial(work[Algorithm.SERIAL])
        for group, rows in work[Algorithm.PREFILL_EXTEND]:
            yield from self._prefill_extend(group, rows)
        for algorithm in (Algorithm.PACKED_SEGMENT, Algorithm.PACKED_DENSE):
            yield from self._packed(work[algorithm], dense=algorithm is Algorithm.PACKED_DENSE)

    def _sorted(self, group: GroupWork, sheets: Sequence[Sheet]) -> dict[Algorithm, list[Row]]:
        """A group's rows by the algorithm that scores them."""
        found: dict[Algorithm, list[Row]] = defaultdict(list)
        choices: Counter[Choice] = Counter()
        for sheet in sheets:
            for row in self._rows(sheet, len(group.prefix)):
                choice = choose(self._policy, len(group.prefix), row.prefix_end, len(row.tokens))
                found[choice.algorithm].append(row)
                choices[choice] += 1
        for choice, count in choices.items():
            self.scored_rows[choice.algorithm] += count
            if choice.fallback:
                self.fallbacks[choice.reason] += count
                log.warning("fallback", algorithm=choice.algorithm, reason=choice.reason, rows=count)
        return found

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

    def _serial(self, work: Sequence[tuple[GroupWork, list[Row]]]) -> Iterator[Step]:
        """Whole sequences, which stand alone."""
        whole = [
            _Extension(row, np.concatenate([group.prefix[: row.prefix_end], row.tokens]), 0)
            for group, rows in work
            for row in rows
        ]
        yield from self._extend(whole, np.zeros(self._executables.pool.longest, np.int32))

    def _prefill_extend(self, group: GroupWork, rows: list[Row]) -> Iterator[Step]:
        """The prefix once, unless it is still there from an earlier time; then items against it."""
        key = f"{group.key}:{hashlib.sha256(group.prefix.tobytes()).hexdigest()}"
        prefix = self._prefixes.find(key)
        _count_shared(rows if prefix is not None else rows[1:])
        if prefix is None:
            with self._prefixes.prefilling(group.prefix) as prefilling:
                while computed := prefilling.step():
                    yield [], computed
            prefix = prefilling.finished()
            self._prefixes.keep(key, prefix)
        try:
            yield [(row, prefix.hidden) for row in rows if _is_read_off(row, prefix)], 0
            extensions = [_extension(row, group.prefix) for row in rows if not _is_read_off(row, prefix)]
            yield from self._extend(extensions, prefix.table)
        finally:
            if not self._keeps_prefixes:
                self._prefixes.drop(key)

    def _extend(self, extensions: Sequence[_Extension], table: TokenIds) -> Iterator[Step]:
        """Rows behind one prefix, sorted into length buckets, in batches."""
        waiting: dict[RowsKey, list[_Extension]] = defaultdict(list)
        for extension in extensions:
            waiting[self._buckets.rows(len(extension.tokens))].append(extension)
        for key, rows in sorted(waiting.items(), key=lambda item: item[0].length):
            for batch in batches(rows, key.rows):
                tokens = np.zeros((key.rows, key.length), np.int32)
                lengths, starts = np.zeros(key.rows, np.int32), np.zeros(key.rows, np.int32)
                for n, extension in enumerate(batch):
                    tokens[n, : len(extension.tokens)] = extension.tokens
                    lengths[n], starts[n] = len(extension.tokens), extension.start
                hidden = np.asarray(self._executables.rows(key, *self._prefixes.pool, table, tokens, lengths, starts))
                yield [(extension.row, hidden[n]) for n, extension in enumerate(batch)], key.rows * key.length

    def _packed(self, work: Sequence[tuple[GroupWork, list[Row]]], *, dense: bool) -> Iterator[Step]:
        """Prefixes and items of several groups in one sequence after another."""
        longest = self._policy.longest_packed
        for packed in pack(((group.prefix, rows) for group, rows in work), longest, packed_reads(longest)):
            key = self._buckets.packed(packed.length, longest, len(packed.rows), dense=dense)
            hidden = np.asarray(self._executables.packed(key, *packed.arrays(key.tokens, key.reads)))
            yield list(zip(packed.rows, hidden, strict=False)), key.tokens


@dataclass(frozen=True, slots=True, eq=False)
class _Extension:
    """What a program of rows computes for a row: int32 [length] tokens from position ``start`` on."""

    row: Row
    tokens: TokenIds
    start: int


def _extension(row: Row, prefix: TokenIds) -> _Extension:
    """The item itself; of an empty one that stops short of the prefix's end, the last token it sees."""
    if len(row.tokens):
        return _Extension(row, row.tokens, row.prefix_end)
    return _Extension(row, prefix[row.prefix_end - 1 : row.prefix_end], row.prefix_end - 1)


def _is_read_off(row: Row, prefix: Prefix) -> bool:
    """Whether a row is scored where the prefix ends."""
    return not len(row.tokens) and row.prefix_end == prefix.length


def _count_shared(rows: Sequence[Row]) -> None:
    """Note whose prefix did not have to be computed."""
    for row in rows:
        row.sheet.cached_tokens += row.prefix_end


def _device_name() -> str:
    device = jax.devices()[0]
    return f"{device.platform}: {device.device_kind}"
