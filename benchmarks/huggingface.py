"""Times HuggingFace's classes on a workload: with the query's keys and values computed once, and serially.

The dtype is bf16 or float32, whichever takes less time for a batch of items on this machine. Items of a batch are
padded on the right, which needs no mask, since all layers are causal. The body runs without the head, which then runs
on each item's last state alone. torch uses as many threads as there are cores.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.shapes import SHAPES
from benchmarks.timing import Measured, timed
from benchmarks.workloads import LabelSequences, LabelWorkload, batches, beginning
from demonstration.saving import config_fields
from tools.tpu.workloads import Sequences, Workload, labels_of

CACHED_ITEMS = 25
"""Items that share a forward pass behind a cached query, whose keys and values are copied for each of them."""
CACHED_TOKENS = 60_000
"""Tokens whose copied keys and values are in memory at once: 7 GB at the width of a Qwen3-0.6B."""
SERIAL_TOKENS = 2_048
"""Tokens of whole sequences that share a forward pass, padding included, unless a single one is longer."""

DTYPES = ("bfloat16", "float32")
TRIAL_TOKENS = 256
"""Tokens of the query when the two dtypes are compared."""

Floats = np.ndarray
"""float32 [items, labels]: log-probabilities over the whole vocabulary."""


class HuggingFace:
    """A model with the given weights by HuggingFace's names, or random weights. dtype: of :data:`DTYPES`."""

    def __init__(self, shape: str, weights: dict[str, Any] | None = None, dtype: str = DTYPES[0]) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        fields = config_fields(SHAPES[shape])
        config = AutoConfig.for_model(fields.pop("model_type"), **fields)
        self._torch = torch
        self._model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()
        if weights is not None:
            unknown = self._model.load_state_dict(weights, strict=False).unexpected_keys
            if unknown:
                raise ValueError(f"HuggingFace has no weights named {unknown}")
        self._labels = list(labels_of(config.vocab_size))

    def cached(self, groups: Sequence[Sequences]) -> Floats:
        """Score with each query computed once, and its cache expanded to batches of items."""
        with self._torch.inference_mode():
            return np.concatenate([self._behind(group) for group in groups])

    def serial(self, groups: Sequence[Sequences]) -> Floats:
        """Score whole sequences of query and item."""
        whole = [np.concatenate([group.query, item]) for group in groups for item in group.items]
        scores = np.empty((len(whole), len(self._labels)), np.float32)
        with self._torch.inference_mode():
            for batch in batches([len(sequence) for sequence in whole], len(whole), SERIAL_TOKENS):
                ids, last = self._padded([whole[n] for n in batch])
                scores[batch] = self._read(self._model.model(ids, use_cache=False).last_hidden_state, last)
        return scores

    def _behind(self, group: Sequences) -> Floats:
        scores = np.empty((len(group.items), len(self._labels)), np.float32)
        prefix = self._model.model(self._torch.tensor(group.query[None]).long(), use_cache=True)
        lengths = [len(item) for item in group.items]
        empty = [n for n, length in enumerate(lengths) if not length]
        if empty:
            scores[empty] = self._read(prefix.last_hidden_state, [len(group.query) - 1])
        for batch in batches(lengths, CACHED_ITEMS, CACHED_TOKENS, behind=len(group.query)):
            cache = copy.deepcopy(prefix.past_key_values)
            cache.reorder_cache(self._torch.zeros(len(batch), dtype=self._torch.long))
            ids, last = self._padded([group.items[n] for n in batch])
            scores[batch] = self._read(self._model.model(ids, past_key_values=cache).last_hidden_state, last)
        return scores

    def labels(self, groups: Sequence[LabelSequences]) -> list[np.ndarray]:
        """Score labels of several tokens: rows of item and label, batched behind the cached query.

        Returns the sums of each group, float32 [items, labels].
        """
        with self._torch.inference_mode():
            return [self._labels_behind(group) for group in groups]

    def _labels_behind(self, group: LabelSequences) -> np.ndarray:
        prefix = self._model.model(self._torch.tensor(group.query[None]).long(), use_cache=True)
        targets = [label for labels in group.labels for label in labels]
        item_of = np.repeat(np.arange(len(group.items)), [len(labels) for labels in group.labels])
        rows = [np.concatenate([group.items[n], label[:-1]]) for n, label in zip(item_of, targets, strict=True)]
        sums = np.empty(len(rows), np.float32)
        for batch in batches([len(row) for row in rows], CACHED_ITEMS, CACHED_TOKENS, behind=len(group.query)):
            cache = copy.deepcopy(prefix.past_key_values)
            cache.reorder_cache(self._torch.zeros(len(batch), dtype=self._torch.long))
            ids, last = self._padded([rows[n] for n in batch])
            hidden = self._model.model(ids, past_key_values=cache).last_hidden_state
            # Only the states before targets go through the head.
            lengths = [len(targets[n]) for n in batch]
            row = np.repeat(np.arange(len(batch)), lengths)
            place = np.concatenate([np.arange(end - n + 1, end + 1) for end, n in zip(last, lengths, strict=True)])
            logprobs = self._model.lm_head(hidden[row, place]).float().log_softmax(-1)
            wanted = self._torch.tensor(np.concatenate([targets[n] for n in batch]).astype(np.int64))
            read = logprobs.gather(1, wanted[:, None])[:, 0].numpy()
            sums[batch] = np.add.reduceat(read, np.cumsum([0, *lengths[:-1]]))
        return sums.reshape(len(group.items), -1)

    def _padded(self, sequences: Sequence[np.ndarray]) -> tuple[Any, list[int]]:
        """Return padded ids, int64 [B, longest], and the end of each sequence."""
        lengths = [len(sequence) for sequence in sequences]
        ids = np.zeros((len(sequences), max(lengths)), np.int64)
        for row, sequence in zip(ids, sequences, strict=True):
            row[: len(sequence)] = sequence
        return self._torch.tensor(ids), [length - 1 for length in lengths]

    def _read(self, hidden: Any, last: list[int]) -> Floats:
        """Return the labels' log-probabilities from states [B, L, D] at the positions ``last`` [B]."""
        logits = self._model.lm_head(hidden[self._torch.arange(len(last)), last])
        scores: Floats = logits.float().log_softmax(-1)[:, self._labels].numpy()
        return scores


def measure_cached(shape: str, workload: Workload, repeats: int) -> Measured:
    """See :meth:`HuggingFace.cached`."""
    return _measure(HuggingFace.cached, shape, workload, repeats)


def measure_serial(shape: str, workload: Workload, repeats: int) -> Measured:
    """See :meth:`HuggingFace.serial`."""
    return _measure(HuggingFace.serial, shape, workload, repeats)


def measure_labels(shape: str, workload: LabelWorkload, repeats: int) -> Measured:
    """See :meth:`HuggingFace.labels`. The dtype is the one that is faster for labels of one token."""
    groups = workload.sequences(SHAPES[shape].vocabulary)
    plain = [Sequences(group.query[:TRIAL_TOKENS], group.items[:CACHED_ITEMS]) for group in groups[:1]]
    best = _faster_dtype(shape, plain, HuggingFace.cached)
    model = HuggingFace(shape, dtype=best)
    return timed(lambda: model.labels(groups), repeats, workload.items, lambda: model.cached(beginning(plain)))


def _measure(
    score: Callable[[HuggingFace, Sequence[Sequences]], Floats], shape: str, workload: Workload, repeats: int
) -> Measured:
    groups = workload.sequences(SHAPES[shape].vocabulary)
    trial = [Sequences(groups[0].query[:TRIAL_TOKENS], groups[0].items[:CACHED_ITEMS])]
    model = HuggingFace(shape, dtype=_faster_dtype(shape, trial, score))
    return timed(lambda: score(model, groups), repeats, workload.items, lambda: score(model, beginning(groups)))


def _faster_dtype(
    shape: str, trial: Sequence[Sequences], score: Callable[[HuggingFace, Sequence[Sequences]], Floats]
) -> str:
    """Return the dtype in which a trial takes less time."""
    seconds = {}
    for dtype in DTYPES:
        model = HuggingFace(shape, dtype=dtype)

        def warm_up(model: HuggingFace = model) -> None:
            score(model, beginning(trial))

        seconds[dtype] = timed(lambda model=model: score(model, trial), 1, 1, warm_up).seconds  # type: ignore[misc]
    best = min(seconds, key=seconds.__getitem__)
    print(f"  measured in {best}", file=sys.stderr)
    return best
