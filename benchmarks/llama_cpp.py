"""Times llama.cpp on a workload, through llama-cpp-python's low-level interface. Items share the query's cache cells.

A query is prefilled as sequence 0. Its cells are then shared, without a copy, with a sequence for each item of a batch.
A batch is decoded with logits at each item's last token alone, and its sequences are removed. The model is a GGUF file
without a tokenizer, with weights in bf16 or float32. Keys and values are float16, for which llama.cpp has its fastest
attention on a CPU, in tiles that it skips where no query sees them.

The fastest settings depend on the machine and on the version. So both dtypes of weights are tried on a batch of items
first, each with all of :data:`CONFIGURATIONS`, and the best of them is measured.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gguf_files import DTYPES, write_random_gguf
from benchmarks.shapes import SHAPES
from benchmarks.timing import Measured, alone, timed
from benchmarks.workloads import LabelSequences, LabelWorkload, batches, beginning
from tools.tpu.workloads import Sequences, Workload, labels_of

BATCH_TOKENS = 2_048
"""Tokens of a call (``n_batch``), which llama.cpp cuts into pieces of ``n_ubatch``."""

Floats = np.ndarray
"""float32 [items, labels]: log-probabilities over the whole vocabulary."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings of llama.cpp that decide about speed."""

    items: int  # in a batch at most
    ubatch: int  # tokens that are computed together
    flash: bool  # attention in tiles


TRIAL_TOKENS = 256
"""Tokens of the query when configurations are compared."""

CONFIGURATIONS = (
    Configuration(64, 512, flash=True),
    Configuration(64, 2_048, flash=True),
    Configuration(25, 512, flash=True),
    Configuration(64, 512, flash=False),
)


class Context:
    """A loaded model with room for a query and a batch of items."""

    def __init__(
        self, model: Any, vocabulary: int, longest_query: int, configuration: Configuration, labels: int = 0
    ) -> None:
        """labels: of several tokens that an item has; 0 if items are scored with labels of one token."""
        import llama_cpp as api

        self._sequences = min(configuration.items * max(1, labels), api.llama_max_parallel_sequences() - 1)
        sequences = self._sequences + 1
        threads = len(os.sched_getaffinity(0))
        params = api.llama_context_default_params()
        params.n_ctx = longest_query + BATCH_TOKENS
        params.n_batch = BATCH_TOKENS
        params.n_ubatch = configuration.ubatch
        params.n_seq_max = sequences
        params.n_outputs_max = BATCH_TOKENS if labels else sequences
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = (
            api.LLAMA_FLASH_ATTN_TYPE_ENABLED if configuration.flash else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        params.kv_unified = True
        self._api = api
        self._items = configuration.items
        self._vocabulary = vocabulary
        self._labels = list(labels_of(vocabulary))
        self._context = api.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp has made no context for {configuration}")
        self._memory = api.llama_get_memory(self._context)
        self._batch = api.llama_batch_init(BATCH_TOKENS, 0, max(1, labels))

    def close(self) -> None:
        """Free the memory of the library."""
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._context)

    def score(self, groups: Sequence[Sequences]) -> Floats:
        """Score every item of every group."""
        return np.concatenate([self._behind(group) for group in groups])

    def _behind(self, group: Sequences) -> Floats:
        api, scores = self._api, np.empty((len(group.items), len(self._labels)), np.float32)
        lengths = [len(item) for item in group.items]
        empty = [n for n, length in enumerate(lengths) if not length]
        api.llama_memory_clear(self._memory, False)
        for first in range(0, len(group.query), BATCH_TOKENS):
            piece = group.query[first : first + BATCH_TOKENS]
            is_last = first + len(piece) == len(group.query)
            found = self._decode([piece], first, [0], read=is_last and bool(empty))
            if len(found):
                scores[empty] = found
        for batch in batches(lengths, self._items, BATCH_TOKENS):
            sequences = range(1, len(batch) + 1)
            for sequence in sequences:
                api.llama_memory_seq_cp(self._memory, 0, sequence, -1, -1)
            scores[batch] = self._decode([group.items[n] for n in batch], len(group.query), sequences, read=True)
            for sequence in sequences:
                api.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return scores

    def labels(self, groups: Sequence[LabelSequences]) -> list[np.ndarray]:
        """Score labels of several tokens. Returns the sums of each group, float32 [items, labels]."""
        return [self._labels_behind(group) for group in groups]

    def _labels_behind(self, group: LabelSequences) -> np.ndarray:
        """A label is a sequence, and the tokens of its item belong to the sequences of all labels of the item."""
        api, labels = self._api, len(group.labels[0])
        api.llama_memory_clear(self._memory, False)
        for first in range(0, len(group.query), BATCH_TOKENS):
            self._decode([group.query[first : first + BATCH_TOKENS]], first, [0], read=False)
        sums = np.empty((len(group.items), labels), np.float32)
        tokens = max(map(len, group.items)) + sum(len(label) - 1 for label in group.labels[0])
        most = max(1, min(self._items, self._sequences // labels, BATCH_TOKENS // tokens))
        for begin in range(0, len(group.items), most):
            items = range(begin, min(begin + most, len(group.items)))
            sequences = range(1, labels * len(items) + 1)
            for sequence in sequences:
                api.llama_memory_seq_cp(self._memory, 0, sequence, -1, -1)
            for item, found in zip(items, self._decode_labels(group, items), strict=True):
                sums[item] = found
            for sequence in sequences:
                api.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return sums

    def _decode_labels(self, group: LabelSequences, items: range) -> Iterator[list[float]]:
        batch, start = self._batch, len(group.query)
        tokens, positions, owners = list[int](), list[int](), list[list[int]]()
        read = list[list[tuple[int, list[tuple[int, int]]]]]()  # of each item: places in the batch, and their targets
        for number, item in enumerate(items):
            own, labels = group.items[item].tolist(), [label.tolist() for label in group.labels[item]]
            sequences = [number * len(labels) + n + 1 for n in range(len(labels))]
            tokens += own
            positions += range(start, start + len(own))
            owners += [sequences] * len(own)
            of_item = [(len(tokens) - 1, [(n, label[0]) for n, label in enumerate(labels)])]
            for n, label in enumerate(labels):
                for offset, token in enumerate(label[:-1]):
                    tokens.append(token)
                    positions.append(start + len(own) + offset)
                    owners.append([sequences[n]])
                    of_item.append((len(tokens) - 1, [(n, label[offset + 1])]))
            read.append(of_item)
        count = batch.n_tokens = len(tokens)
        _array(batch.token, count)[:] = tokens
        _array(batch.pos, count)[:] = positions
        _array(batch.n_seq_id, count)[:] = [len(of_token) for of_token in owners]
        for place, of_token in enumerate(owners):
            for n, sequence in enumerate(of_token):
                batch.seq_id[place][n] = sequence
        wanted = _array(batch.logits, count)
        wanted[:] = 0
        wanted[[place for of_item in read for place, _ in of_item]] = 1
        if code := self._api.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode of {count} tokens of labels has returned {code}")
        for of_item in read:
            sums = [0.0] * len(group.labels[0])
            for place, targets in of_item:
                logits = _array(self._api.llama_get_logits_ith(self._context, place), self._vocabulary)
                most = logits.max()
                total = most + np.log(np.exp(logits - most).sum())
                for label, target in targets:
                    sums[label] += float(logits[target] - total)
            yield sums

    def _decode(self, parts: Sequence[np.ndarray], start: int, sequences: Sequence[int], *, read: bool) -> Floats:
        """Decode a part of each sequence, from position ``start`` on. Returns scores at the parts' ends if ``read``."""
        batch, lengths = self._batch, [len(part) for part in parts]
        count = batch.n_tokens = sum(lengths)
        ends = np.cumsum(lengths) - 1
        _array(batch.token, count)[:] = np.concatenate(parts)
        _array(batch.pos, count)[:] = np.concatenate([np.arange(start, start + length) for length in lengths])
        _array(batch.n_seq_id, count)[:] = 1
        for n, sequence in enumerate(np.repeat(sequences, lengths).tolist()):
            batch.seq_id[n][0] = sequence
        wanted = _array(batch.logits, count)
        wanted[:] = 0
        if read:
            wanted[ends] = 1
        if code := self._api.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode of {count} tokens at {start} has returned {code}")
        return self._logprobs(ends.tolist() if read else [])

    def _logprobs(self, places: Sequence[int]) -> Floats:
        """Return the labels' log-probabilities at places where the last batch has logits."""
        scores = np.empty((len(places), len(self._labels)), np.float32)
        for row, place in zip(scores, places, strict=True):
            logits = _array(self._api.llama_get_logits_ith(self._context, place), self._vocabulary)
            most = logits.max()
            row[:] = logits[self._labels] - most - np.log(np.exp(logits - most).sum())
        return scores


def _array(pointer: Any, length: int) -> np.ndarray:
    """Return the contents of a C array without a copy."""
    return np.ctypeslib.as_array(pointer, (length,))


@contextmanager
def loaded(path: Path) -> Iterator[Any]:
    """Load a GGUF file. Only errors of llama.cpp's log are shown."""
    import llama_cpp as api
    from llama_cpp._logger import set_verbose

    set_verbose(False)
    api.llama_backend_init()
    model = api.llama_model_load_from_file(os.fsencode(path), api.llama_model_default_params())
    if not model:
        raise RuntimeError(f"llama.cpp does not load {path}")
    try:
        yield model
    finally:
        api.llama_model_free(model)


def measure(shape: str, workload: Workload, repeats: int) -> Measured:
    """Time the best configuration."""
    groups = workload.sequences(SHAPES[shape].vocabulary)

    def timing(context: Context) -> Measured:
        return timed(lambda: context.score(groups), repeats, workload.items, lambda: context.score(beginning(groups)))

    return _measure(shape, groups, 0, timing)


def measure_labels(shape: str, workload: LabelWorkload, repeats: int) -> Measured:
    """Time labels of several tokens, with the configuration that is the best for labels of one token.

    An item is decoded once, and its labels share its cells.
    """
    return _measure_labels(shape, workload, workload.sequences(SHAPES[shape].vocabulary), repeats)


def measure_label_rows(shape: str, workload: LabelWorkload, repeats: int) -> Measured:
    """Time the same, but decode an item again for each of its labels."""
    groups = [group.as_rows() for group in workload.sequences(SHAPES[shape].vocabulary)]
    return _measure_labels(shape, workload, groups, repeats)


def _measure_labels(shape: str, workload: LabelWorkload, groups: list[LabelSequences], repeats: int) -> Measured:
    plain = [Sequences(group.query, group.items) for group in groups]

    def timing(context: Context) -> Measured:
        return timed(lambda: context.labels(groups), repeats, workload.items, lambda: context.score(beginning(plain)))

    return _measure(shape, plain, len(groups[0].labels[0]), timing)


def _measure(shape: str, groups: Sequence[Sequences], labels: int, timing: Callable[[Context], Measured]) -> Measured:
    """Time the best configuration. Files are written and tried in other processes, whose memory does not count."""
    vocabulary = SHAPES[shape].vocabulary
    longest = max(len(group.query) for group in groups)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.gguf"
        found = []
        for dtype in DTYPES:
            alone(write_random_gguf, path, shape, dtype)
            found += [(seconds, dtype, best) for seconds, best in alone(_try, path, vocabulary, longest, groups[0])]
        _, dtype, best = min(found, key=lambda trial: trial[0])
        print(f"  measured in {dtype}, with n_batch {BATCH_TOKENS} and {best}", file=sys.stderr)
        alone(write_random_gguf, path, shape, dtype)
        with loaded(path) as model, closing(Context(model, vocabulary, longest, best, labels)) as context:
            return timing(context)


def _try(path: Path, vocabulary: int, longest: int, group: Sequences) -> list[tuple[float, Configuration]]:
    """Return the seconds that each configuration takes for a batch of items, after a warm-up."""
    most = max(configuration.items for configuration in CONFIGURATIONS)
    trial = [Sequences(group.query[:TRIAL_TOKENS], group.items[:most])]
    found = []
    with loaded(path) as model:
        for configuration in CONFIGURATIONS:
            with closing(Context(model, vocabulary, longest, configuration)) as context:
                context.score(trial)
                started = time.perf_counter()
                context.score(trial)
                found.append((time.perf_counter() - started, configuration))
            print(f"  {configuration}: {found[-1][0]:.2f} s for a trial", file=sys.stderr)
    return found
