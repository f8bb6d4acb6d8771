"""The engine: rows of whole sequences in, label scores out. The serial algorithm, batched and padded.

Rows of all chunks are sorted into length buckets and run in batches, whoever they belong to. What a row scores depends
on its own tokens alone, bit for bit: its length picks the program, and neither its place nor its company in the batch
changes its bits (``tests/model/test_row_independence.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
import numpy.typing as npt

from model import weights
from model.buckets import HEAD_ROWS, BodyKey, Buckets
from model.config import DecoderConfig
from model.executables import Executables
from scoring.layout import ChunkWork, GroupWork, Head, LabelScores, Scored, TokenIds
from scoring.model_card import ModelCard
from settings.engine import EngineSettings

COMPILING_THREADS = 2
"""The compiler runs outside Python's lock, mostly on one core."""

READ_TOKENS = 2_048
"""Tokens, padding included, after which a head runs over what the body has computed since the last one. A head over a
large vocabulary costs as much for a few rows as for many, but a finished chunk should not wait for long either."""

Floats = npt.NDArray[np.float32]
T = TypeVar("T")


class EngineError(Exception):
    """Work that the engine can't do or must not answer: a fault of ours, never of a validated request."""


@dataclass(slots=True, eq=False)
class _Sheet:
    """A chunk's scores as they come in: logits and log-probabilities, float32 [N, M]."""

    chunk: ChunkWork
    logits: Floats
    logprobs: Floats
    missing: int

    @classmethod
    def blank(cls, chunk: ChunkWork) -> _Sheet:
        shape = (len(chunk.rows), len(chunk.label_token_ids))
        return cls(chunk, np.empty(shape, np.float32), np.empty(shape, np.float32), len(chunk.rows))

    def write(self, index: int, outputs: Sequence[Floats]) -> None:
        """Enter what the chunk's head said of one row: logits, then log-probabilities where it has them."""
        for sheet, output in zip((self.logits, self.logprobs), outputs, strict=False):
            sheet[index] = output
        self.missing -= 1

    def scored(self) -> Scored:
        """The finished chunk. Raises EngineError where a score is not a number."""
        if np.isnan(self.logits).any():
            raise EngineError(f"chunk {self.chunk.id}: a score is not a number")
        asked = self.chunk.head is Head.LOGPROBS
        return Scored(self.chunk.id, LabelScores(self.logits, self.logprobs if asked else None), cached_tokens=0)


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """One sequence to score: int32 [length], and where its scores go."""

    tokens: TokenIds
    sheet: _Sheet
    index: int


class Engine:
    """A loaded model on a device. One caller at a time scores; compiling is safe from any thread."""

    def __init__(
        self,
        executables: Executables,
        config: DecoderConfig,
        settings: EngineSettings,
        card: ModelCard,
        weights_fingerprint: str,
    ) -> None:
        self.card = card
        self.weights_fingerprint = weights_fingerprint
        self.dtype: str = settings.dtype
        self.device = _device_name()
        self._executables = executables
        self._context = card.context_length
        self._width = config.width
        self._buckets = Buckets.of(card.context_length, settings.step_tokens)

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
        return cls(Executables(decoder), config, settings, card, fingerprint)

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
        sheets = [(group.prefix, _Sheet.blank(chunk)) for group in groups for chunk in group.chunks]
        yield from (sheet.scored() for _, sheet in sheets if not sheet.missing)
        waiting: dict[BodyKey, list[_Row]] = defaultdict(list)
        for prefix, sheet in sheets:
            for row in self._rows(prefix, sheet):
                waiting[self._buckets.body(len(row.tokens))].append(row)
        unread: list[tuple[_Row, Floats]] = []
        unread_tokens = 0
        for key, rows in sorted(waiting.items(), key=lambda item: item[0].length):
            for batch in _batches(rows, key.rows):
                unread += zip(batch, self._hidden_states(key, batch), strict=False)
                unread_tokens += key.rows * key.length
                if len(unread) >= HEAD_ROWS or unread_tokens >= READ_TOKENS:
                    yield from self._read_scores(unread)
                    unread, unread_tokens = [], 0
                on_step()
        yield from self._read_scores(unread)

    def _rows(self, prefix: TokenIds, sheet: _Sheet) -> Iterator[_Row]:
        rows = sheet.chunk.rows
        starts = np.cumsum(rows.lengths) - rows.lengths
        for index, (start, length, prefix_end) in enumerate(
            zip(starts.tolist(), rows.lengths.tolist(), rows.prefix_ends.tolist(), strict=True)
        ):
            tokens = np.concatenate([prefix[:prefix_end], rows.tokens[start : start + length]])
            if not 0 < len(tokens) <= self._context:
                raise EngineError(
                    f"chunk {sheet.chunk.id}, row {index}: {len(tokens)} tokens, the context is {self._context}"
                )
            yield _Row(tokens, sheet, index)

    def _hidden_states(self, key: BodyKey, batch: Sequence[_Row]) -> Floats:
        """One step: float32 [key.rows, width], of the scoring positions of ``batch`` and then of padding."""
        tokens = np.zeros((key.rows, key.length), np.int32)
        last = np.zeros(key.rows, np.int32)
        for n, row in enumerate(batch):
            tokens[n, : len(row.tokens)] = row.tokens
            last[n] = len(row.tokens) - 1
        return np.asarray(self._executables.body(key, tokens, last))

    def _read_scores(self, unread: Sequence[tuple[_Row, Floats]]) -> Iterator[Scored]:
        """Run a head for each set of labels asked for by these rows, and hand over the chunks finished by it."""
        asked: dict[tuple[Head, tuple[int, ...]], list[tuple[_Row, Floats]]] = defaultdict(list)
        for row, hidden in unread:
            asked[row.sheet.chunk.head, row.sheet.chunk.label_token_ids].append((row, hidden))
        for (head, label_ids), part in asked.items():
            for few in _batches(part, HEAD_ROWS):
                self._run_head(head, label_ids, few)
        for sheet in {id(row.sheet): row.sheet for row, _ in unread}.values():
            if not sheet.missing:
                yield sheet.scored()

    def _run_head(self, head: Head, label_ids: tuple[int, ...], part: Sequence[tuple[_Row, Floats]]) -> None:
        """Score at most HEAD_ROWS rows and write the scores where they belong."""
        key = self._buckets.head(head, len(label_ids))
        labels = np.zeros(key.labels, np.int32)
        labels[: len(label_ids)] = label_ids
        hidden = np.zeros((key.rows, self._width), np.float32)
        for n, (_, state) in enumerate(part):
            hidden[n] = state
        outputs = [np.asarray(output) for output in self._executables.head(key, hidden, labels)]
        for n, (row, _) in enumerate(part):
            row.sheet.write(row.index, [output[n, : len(label_ids)] for output in outputs])


def _batches(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(rows), size):
        yield rows[first : first + size]


def _device_name() -> str:
    device = jax.devices()[0]
    return f"{device.platform}: {device.device_kind}"
