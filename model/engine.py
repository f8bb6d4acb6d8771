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

import jax
import numpy as np
import numpy.typing as npt

from model import weights
from model.buckets import BodyKey, Buckets
from model.config import DecoderConfig
from model.executables import Executables
from scoring.layout import ChunkWork, GroupWork, Head, LabelScores, Scored, TokenIds
from scoring.model_card import ModelCard
from settings.engine import EngineSettings

COMPILING_THREADS = 2
"""The compiler runs outside Python's lock, mostly on one core."""

Floats = npt.NDArray[np.float32]


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

    def scored(self) -> Scored:
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
        self._context = config.context
        self._buckets = Buckets.of(config.context, settings.step_tokens)

    @classmethod
    def load(cls, directory: Path, settings: EngineSettings, card: ModelCard) -> Engine:
        """Load the checkpoint in ``directory``; ``card`` is what API and worker say of it.

        Raises :class:`model.config.UnsupportedModelError` or :class:`model.weights.WeightsError`.
        """
        config = DecoderConfig.from_directory(directory)
        decoder, fingerprint = weights.load(directory, config, settings.dtype)
        return cls(Executables(decoder), config, settings, card, fingerprint)

    def warm_up(self, on_progress: Callable[[int, int, str], None]) -> None:
        """Compile the core set of programs. ``on_progress(done, total, program)`` is told after each."""
        keys = self._buckets.warm_set()
        with ThreadPoolExecutor(COMPILING_THREADS) as pool:
            compiling = {pool.submit(self._executables.compiled, key): key for key in keys}
            for done, future in enumerate(as_completed(compiling), start=1):
                future.result()
                on_progress(done, len(keys), str(compiling[future]))

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
        for key, rows in sorted(waiting.items(), key=lambda item: item[0].length):
            for batch in _batches(rows, key.rows):
                self._step(key, batch)
                yield from _finished(batch)
                on_step()

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

    def _step(self, key: BodyKey, batch: Sequence[_Row]) -> None:
        """Run one batch through the body and, for each set of labels asked for in it, a head."""
        tokens = np.zeros((key.rows, key.length), np.int32)
        last = np.zeros(key.rows, np.int32)
        for n, row in enumerate(batch):
            tokens[n, : len(row.tokens)] = row.tokens
            last[n] = len(row.tokens) - 1
        hidden = np.asarray(self._executables.body(key, tokens, last))
        asked: dict[tuple[Head, tuple[int, ...]], list[int]] = defaultdict(list)
        for n, row in enumerate(batch):
            asked[row.sheet.chunk.head, row.sheet.chunk.label_token_ids].append(n)
        for (head, label_ids), places in asked.items():
            self._read_off(head, label_ids, hidden[places], [batch[n] for n in places])

    def _read_off(self, head: Head, label_ids: tuple[int, ...], hidden: Floats, rows: Sequence[_Row]) -> None:
        """Run a head over hidden states, float32 [rows, width], and write the scores where they belong."""
        key = self._buckets.head(head, len(label_ids))
        labels = np.zeros(key.labels, np.int32)
        labels[: len(label_ids)] = label_ids
        padded = np.zeros((key.rows, hidden.shape[1]), np.float32)
        padded[: len(rows)] = hidden
        outputs = [np.asarray(output) for output in self._executables.head(key, padded, labels)]
        for n, row in enumerate(rows):
            row.sheet.logits[row.index] = outputs[0][n, : len(label_ids)]
            if head is Head.LOGPROBS:
                row.sheet.logprobs[row.index] = outputs[1][n, : len(label_ids)]
            row.sheet.missing -= 1


def _batches(rows: list[_Row], size: int) -> Iterator[list[_Row]]:
    for first in range(0, len(rows), size):
        yield rows[first : first + size]


def _finished(batch: Sequence[_Row]) -> Iterator[Scored]:
    """The chunks whose last row was in this batch, each once."""
    for sheet in {id(row.sheet): row.sheet for row in batch}.values():
        if sheet.missing:
            continue
        if np.isnan(sheet.logits).any():
            raise EngineError(f"chunk {sheet.chunk.id}: a score is not a number")
        yield sheet.scored()


def _device_name() -> str:
    device = jax.devices()[0]
    return f"{device.platform}: {device.device_kind}"
