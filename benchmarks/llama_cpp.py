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
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shapes import SHAPES
from benchmarks.timing import Measured, alone, timed
from benchmarks.workloads import batches, beginning
from model.architecture.config import DecoderConfig
from model.compiling.workloads import Sequences, Workload, labels_of

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


DTYPES = ("bfloat16", "float32")

TRIAL_TOKENS = 256
"""Tokens of the query when configurations are compared."""

CONFIGURATIONS = (
    Configuration(64, 512, flash=True),
    Configuration(64, 2_048, flash=True),
    Configuration(25, 512, flash=True),
    Configuration(64, 512, flash=False),
)

TENSORS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_TENSORS = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
"""llama.cpp's names by HuggingFace's, without the layer's ``blk.N.`` and ``model.layers.N.`` in front."""


def write_gguf(path: Path, config: DecoderConfig, weights: dict[str, np.ndarray], dtype: str = DTYPES[0]) -> None:
    """Write a Qwen3 for llama.cpp. weights: bf16, by HuggingFace's names; dtype: of the file."""
    import gguf

    is_wide = dtype == "float32"
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if is_wide else gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config.vocabulary)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.mlp_width)
    writer.add_head_count(config.query_heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    for name, weight in weights.items():
        if weight.ndim == 1 or is_wide:
            writer.add_tensor(_gguf_name(name), weight.astype(np.float32))
        else:
            writer.add_tensor(_gguf_name(name), weight.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    if name in TENSORS:
        return TENSORS[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{LAYER_TENSORS[rest]}"


class Context:
    """A loaded model with room for a query and a batch of items."""

    def __init__(self, model: Any, vocabulary: int, longest_query: int, configuration: Configuration) -> None:
        import llama_cpp as api

        sequences = configuration.items + 1
        threads = len(os.sched_getaffinity(0))
        params = api.llama_context_default_params()
        params.n_ctx = longest_query + BATCH_TOKENS
        params.n_batch = BATCH_TOKENS
        params.n_ubatch = configuration.ubatch
        params.n_seq_max = params.n_outputs_max = sequences
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
        self._batch = api.llama_batch_init(BATCH_TOKENS, 0, 1)

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
    """Time the best configuration. Files are written and tried in other processes, whose memory does not count."""
    vocabulary = SHAPES[shape].vocabulary
    groups = workload.sequences(vocabulary)
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
        with loaded(path) as model, closing(Context(model, vocabulary, longest, best)) as context:
            return timed(
                lambda: context.score(groups), repeats, workload.items, lambda: context.score(beginning(groups))
            )


def write_random_gguf(path: Path, shape: str, dtype: str = DTYPES[0]) -> None:
    """Write the random weights of :mod:`benchmarks.checkpoint`."""
    from benchmarks.checkpoint import random_tensors

    write_gguf(path, SHAPES[shape], random_tensors(SHAPES[shape], seed=0), dtype)


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
