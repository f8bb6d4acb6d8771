"""Loads a :class:`Decoder` from HuggingFace's safetensors.

Unknown and missing tensors and those of a wrong shape are refused before anything is loaded, all in one
:class:`model.architecture.stored.tensors.WeightsError`. Tensors are read one at a time into one buffer for each stacked
parameter, so that a model is never in memory twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
import numpy.typing as npt
from flax import nnx
from jax.typing import DTypeLike

from checkpoints.text_part import text_tensors
from model.architecture.config import DecoderConfig
from model.architecture.decoder import Decoder
from model.architecture.experts import EXPERTS
from model.architecture.stored.checkpoint import READ_BYTES, StoredCheckpoint
from model.architecture.stored.decision_head import open_decision_head
from model.architecture.stored.encoding import Encoding, is_plain
from model.architecture.stored.experts import IN_TURN, ONE_AFTER_ANOTHER, are_together, experts_apart
from model.architecture.stored.fused import Fused, one_after_another, separated
from model.architecture.stored.lora import open_adapter
from model.architecture.stored.tensors import Tensors, WeightsError, open_tensors, stored_bytes

HEAD = "lm_head.weight"
_KERNELS = {"lm_head", "score", "gate", "shared_expert_gate"}  # beside those whose names say that they are projections
EMBEDDING = "model.embed_tokens.weight"

ALIGNMENT = 64
"""Bytes. On a CPU, jax uses host memory of this alignment as it is, and copies any other."""


STRIP_ROWS = 128
"""Rows of a tensor that are transposed at a time."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the decoder, and its tensors in a checkpoint."""

    path: tuple[str, ...]  # in the decoder's state
    names: tuple[str, ...]  # HuggingFace's, of all tensors of the stack in order
    shape: tuple[int, ...]  # of each tensor in the file
    stack: tuple[int, ...]  # layers, or layers and experts; empty for a parameter that is one tensor
    transposed: bool  # a kernel, which is [out, in] in the file
    dtype: np.dtype[Any]

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The shape of each tensor in the decoder's orientation."""
        return self.shape[::-1] if self.transposed else self.shape


class Destination(Protocol):
    """Where the tensors of one parameter go."""

    def write(self, number: int, rows: slice, tensor: npt.NDArray[Any]) -> None:
        """Take some rows of a tensor, as they are in the file; number: which of the parameter's tensors it is."""

    def value(self) -> Any:
        """Return the parameter, when all rows of all tensors are written."""


class InHostMemory:
    """A :class:`Destination` in the host's memory."""

    def __init__(self, parameter: Parameter) -> None:
        self._parameter = parameter
        self._buffer = buffer(parameter, parameter.own_shape)

    def write(self, number: int, rows: slice, tensor: npt.NDArray[Any]) -> None:
        slot = self._buffer[number]
        if not self._parameter.transposed:
            slot[rows] = tensor
            return
        # A strip at a time, whose lines stay in the processor's cache: twice as fast as a whole tensor. It is rounded
        # before it is transposed, which is twice as fast again.
        for start in range(0, len(tensor), STRIP_ROWS):
            strip = tensor[start : start + STRIP_ROWS].astype(slot.dtype, copy=False)
            slot[:, rows.start + start : rows.start + start + len(strip)] = strip.T

    def value(self) -> npt.NDArray[Any]:
        return self._buffer.reshape(*self._parameter.stack, *self._parameter.own_shape)


MakesDestination = Callable[[Parameter], Destination]


def parameters(decoder: Decoder) -> list[Parameter]:
    """Return all parameters of ``decoder``, whose values may be abstract, in a fixed order."""
    return [_parameter(path, param, decoder) for path, param in sorted(params(decoder).items())]


def without_values(config: DecoderConfig, dtype: DTypeLike = "bfloat16", *, tied_as_rows: bool = False) -> Decoder:
    """Return a decoder whose parameters are shapes, to be given values."""
    graph, shapes = _taken_apart(config, np.dtype(dtype), tied_as_rows)
    decoder: Decoder = nnx.merge(graph, jax.tree.map(lambda shape: shape, shapes))  # a copy of what is kept
    return decoder


@lru_cache(maxsize=16)
def _taken_apart(config: DecoderConfig, dtype: np.dtype[Any], tied_as_rows: bool) -> tuple[Any, Any]:
    """Return the modules and shapes of a decoder. Kept, because tracing it takes up to 0.1 s, and adapters ask, too."""
    return nnx.split(nnx.eval_shape(lambda: Decoder(config, dtype=dtype, rngs=nnx.Rngs(0), tied_as_rows=tied_as_rows)))


def tensor_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a checkpoint by HuggingFace's names, and the shape of each in its file."""
    return {name: one.shape for one in parameters(without_values(config)) for name in one.names}


def load(
    directory: Path,
    config: DecoderConfig,
    dtype: DTypeLike,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    tied_as_rows: bool = False,
    computed: DecoderConfig | None = None,
    encoding: Encoding | None = None,
    adapter: Path | None = None,
    destination: MakesDestination = InHostMemory,
) -> tuple[Decoder, str]:
    """Return the decoder with the weights of a checkpoint directory, cast to ``dtype``, and the weights' fingerprint.

    The weights are NumPy arrays in the host's memory, so that whoever takes the decoder apart decides what is put on
    which device, and a device never holds them twice. Another ``destination`` may put them elsewhere at once.
    tied_as_rows: see :class:`model.platforms.Platform`. computed: the configuration of the decoder, where it differs
    from that of the checkpoint (:class:`model.chips.shares.Shares`). encoding: of quantised weights. adapter: the
    folder of a LoRA adapter that is merged into them.

    Reads ``model.safetensors``, or the shards that ``model.safetensors.index.json`` names. The fingerprint is a sha256
    over names, dtypes, shapes and bytes as stored, the adapter's as well; sharding and ``dtype`` do not change it.
    ``on_progress(done, total)`` is called with the bytes that are read. Raises
    :class:`model.architecture.stored.tensors.WeightsError`.
    """

    decoder = without_values(computed or config, dtype, tied_as_rows=tied_as_rows)
    wanted = parameters(without_values(config, dtype, tied_as_rows=tied_as_rows))
    loaded = params(decoder)
    shapes_of = {name: parameter.shape for parameter in wanted for name in parameter.names}
    with open_tensors(directory) as found, ExitStack() as stack:
        found = stack.enter_context(open_decision_head(directory, found, config.classes)) if config.decides else found
        tensors, fused = text_tensors(found), fused_tensors(config)
        if config.traits.is_gpt_oss:
            tensors = experts_apart(tensors, shapes_of, IN_TURN, quantised=encoding is not None)
        elif config.mixture is not None and are_together(tensors):
            tensors = experts_apart(tensors, shapes_of, ONE_AFTER_ANOTHER, quantised=False)
        plain = {name: parts for name, parts in fused.items() if encoding is None or is_plain(name, tensors)}
        quantised = {name: parts for name, parts in fused.items() if name not in plain}
        tensors = separated(tensors, plain, shapes_of)
        merged = None if adapter is None else stack.enter_context(open_adapter(adapter))
        if merged is not None:
            merged.separate(fused)
            merged.check(shapes_of, tied=config.tied)
        stored = StoredCheckpoint(directory, tensors, encoding, shapes_of, quantised)
        stored.check(lambda name: _ignored(name, config))
        if config.tied:
            _refuse_another_head(directory, tensors)
        done, total = 0, stored.bytes

        def count(read: int) -> None:
            nonlocal done
            done += read
            on_progress(done, total)

        for parameter in wanted:
            filled = destination(parameter)
            for number, name in enumerate(parameter.names):
                for rows, tensor in stored.rows(name, count):
                    filled.write(number, rows, tensor if merged is None else merged.merged(name, rows, tensor))
            loaded[parameter.path].set_value(filled.value())
        return decoder, stored.fingerprint if merged is None else merged.fingerprint(stored.fingerprint)


def size_in_bytes(decoder: Decoder) -> int:
    """Return the bytes of all parameters."""
    return sum(param.get_value().nbytes for param in params(decoder).values())


def params(decoder: Decoder) -> dict[tuple[str, ...], nnx.Param[Any]]:
    """Return all parameters by their paths."""
    found = ((path, node) for path, node in nnx.iter_graph(decoder) if isinstance(node, nnx.Param))
    return {tuple(map(str, path)): param for path, param in found}


def _parameter(path: tuple[str, ...], param: nnx.Param[Any], decoder: Decoder) -> Parameter:
    """Return a parameter. Its name is HuggingFace's without the numbers of layer and expert."""
    is_recurrent = {"model.layers": False, "model.recurrent_layers": True}.get(".".join(path[:2]))
    numbers = [number for number, kind in enumerate(decoder.config.recurrent) if kind == is_recurrent]
    stacked, of_experts = is_recurrent is not None, EXPERTS in path
    stack, own_shape = param.shape[: stacked + of_experts], param.shape[stacked + of_experts :]
    is_kernel = path[-1] == "weight" and ("_proj" in path[-2] or path[-2] in _KERNELS)
    transposed = is_kernel or (path[-2] == "embed_tokens" and not decoder.model.embed_tokens.as_rows)
    rest = [".".join(path[2:])]
    if of_experts:
        rest = [rest[0].replace(f"{EXPERTS}.", f"{EXPERTS}.{expert}.") for expert in range(stack[1])]
    elif decoder.config.traits.is_gpt_oss:
        rest = [rest[0].replace("mlp.gate.", "mlp.router.")]
    name = ".".join(("proj", path[-1]) if decoder.config.decides and path[0] == "score" else path)
    return Parameter(
        path=path,
        names=tuple(f"model.layers.{number}.{each}" for number in numbers for each in rest) if stacked else (name,),
        shape=own_shape[::-1] if transposed else own_shape,
        stack=stack,
        transposed=transposed,
        dtype=np.dtype(param.dtype),
    )


def fused_tensors(config: DecoderConfig) -> Fused:
    """Return the tensors of a checkpoint that hold the kernels of several projections."""
    queries, keys = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
    gated = {"mlp.gate_proj": config.mlp_width, "mlp.up_proj": config.mlp_width}
    of_layer: Fused = {}
    of_recurrent: Fused = {}
    if config.traits.is_hybrid:
        # Behind the rows of a head's query are those of its gate.
        rows = np.arange(2 * queries).reshape(-1, 2, config.head_dim)
        of_layer = {
            "self_attn.q_proj": {
                "self_attn.q_proj": rows[:, 0].ravel(),
                "self_attn.output_gate_proj": rows[:, 1].ravel(),
            }
        }
        of_recurrent = _of_key_heads(config) if config.traits.is_fused else {}
    elif config.traits.is_fused:
        qkv = {"self_attn.q_proj": queries, "self_attn.k_proj": keys, "self_attn.v_proj": keys}
        of_layer = {"self_attn.qkv_proj": one_after_another(qkv), "mlp.gate_up_proj": one_after_another(gated)}
    elif config.traits.has_shared_mlp:
        of_layer = {
            "shared_mlp.input_linear": one_after_another(gated),
            "shared_mlp.output_linear": one_after_another({"mlp.down_proj": config.width}),
        }
    return {
        f"model.layers.{layer}.{name}.weight": {
            f"model.layers.{layer}.{part}.weight": of_part for part, of_part in parts.items()
        }
        for layer, is_recurrent in enumerate(config.recurrent)
        for name, parts in (of_recurrent if is_recurrent else of_layer).items()
    }


def _of_key_heads(config: DecoderConfig) -> Fused:
    """Return the tensors of Qwen3-Next's recurrent layers, in which all that belongs to a key head stands together."""
    sizes = config.recurrence
    assert sizes is not None
    of_head = sizes.value_heads // sizes.key_heads
    values = of_head * sizes.value_dim
    rows = np.arange(sizes.channels + sizes.output).reshape(sizes.key_heads, -1)
    queries, keys, of_values, gates = np.split(rows, np.cumsum([sizes.key_dim, sizes.key_dim, values]), axis=1)
    gating = np.arange(2 * sizes.value_heads).reshape(sizes.key_heads, 2, of_head)
    return {
        "linear_attn.in_proj_qkvz": {
            "linear_attn.in_proj_qkv": np.concatenate([part.ravel() for part in (queries, keys, of_values)]),
            "linear_attn.in_proj_z": gates.ravel(),
        },
        "linear_attn.in_proj_ba": {
            "linear_attn.in_proj_b": gating[:, 0].ravel(),
            "linear_attn.in_proj_a": gating[:, 1].ravel(),
        },
    }


def _ignored(name: str, config: DecoderConfig) -> bool:
    """Return whether a tensor may be in a checkpoint without being used, as in HuggingFace.

    Tied checkpoints and those with classes may contain the head of a language model, old Llama checkpoints contain the
    rotary frequencies, which follow from the configuration, and those with recurrent layers one that guesses further
    tokens.
    """
    if config.recurrence is not None and name.startswith("mtp."):
        return True
    has_own_head = not (config.tied or config.classes)
    return (not has_own_head and name == HEAD) or name.endswith(".rotary_emb.inv_freq")


def _refuse_another_head(directory: Path, tensors: Tensors) -> None:
    """Raise WeightsError if a tied checkpoint has a head beside the embedding that is not the same.

    HuggingFace would compute with that head.
    """
    if HEAD not in tensors:
        return
    head, embedding = tensors[HEAD], tensors[EMBEDDING]
    rows = embedding.get_shape()[0]
    count = max(1, READ_BYTES * rows // stored_bytes(embedding))
    parts = (slice(start, min(start + count, rows)) for start in range(0, rows, count))
    if (head.get_shape(), head.get_dtype()) != (embedding.get_shape(), embedding.get_dtype()) or any(
        (head[part].view(np.uint8) != embedding[part].view(np.uint8)).any() for part in parts
    ):
        raise WeightsError(
            f"weights in {directory} do not fit: {HEAD} differs from {EMBEDDING}, and by tie_word_embeddings they are "
            "one; where it is false, both are read"
        )


def buffer(parameter: Parameter, own_shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return memory for all tensors of a parameter, or for parts of them of such a shape: [names, ...]."""
    shape = (len(parameter.names), *own_shape)
    size = math.prod(shape) * parameter.dtype.itemsize
    room = np.empty(size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + size].view(parameter.dtype).reshape(shape)
