"""The logical axes of arrays, and which of them are divided among chips.

Parameters, the pool and the outputs of programs name their axes by what they mean. One table says which of these axes
are divided over the one axis of the mesh (:data:`DIVIDED`); all others are whole on every chip. Hidden states are
``rows`` and ``width``, so every chip has them whole, and what comes between two all-reduces is divided by heads, by
the MLP's width, or by the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.sharding import PartitionSpec

from model.architecture.experts import EXPERTS

TENSOR = "tensor"
"""The one axis of the mesh."""

DIVIDED = dict.fromkeys(("heads", "key_heads", "mlp", "vocabulary", "channels", "value_heads"), TENSOR)
"""Logical axes that are divided among chips. Attention never exchanges numbers, because it works head by head."""

Axes = tuple[str, ...]

_KERNELS: dict[str, Axes] = {
    "embed_tokens": ("vocabulary", "width"),  # stored in rows: see Platform.tied_as_rows
    "lm_head": ("width", "vocabulary"),
    "score": ("width", "classes"),
    "q_proj": ("width", "heads"),
    "k_proj": ("width", "key_heads"),
    "v_proj": ("width", "key_heads"),
    "o_proj": ("heads", "width"),
    "output_gate_proj": ("width", "heads"),
    "in_proj_qkv": ("width", "channels"),
    "in_proj_z": ("width", "value_heads"),
    "in_proj_b": ("width", "value_heads"),
    "in_proj_a": ("width", "value_heads"),
    "conv1d": ("channels", "one", "inputs"),
    "out_proj": ("value_heads", "width"),
    "gate_proj": ("width", "mlp"),
    "up_proj": ("width", "mlp"),
    "down_proj": ("mlp", "width"),
    "gate": ("width", "routes"),
    "shared_expert_gate": ("width", "one"),
}
_OF_HEADS = {"A_log": "value_heads", "dt_bias": "value_heads", "sinks": "heads"}
"""Parameters of a layer that are a number for each head."""
LOW_RANK = "low_rank"
"""The module that has what an adapter adds to a projection, within the module of the projection."""
POOL: Axes = ("layers", "key_heads", "blocks", "block_tokens", "head_dim")
POOL_OF_STATES: tuple[Axes, Axes] = (
    ("layers", "blocks", "channels", "lanes"),
    ("layers", "blocks", "value_heads", "key_dim", "value_dim"),
)
"""Of what recurrent layers keep behind each block."""
STATES: Axes = ("rows", "width")
WHOLE: Axes = ()
"""Of any array that every chip has whole."""


def parameter_axes(path: Sequence[str]) -> Axes:
    """Return the axes of a parameter of :class:`model.architecture.decoder.Decoder`, with that of the layers.

    path: its names from a module that holds the layer, or from further out, to ``weight`` or ``bias``. Raises
    ValueError for a kernel whose axes are not known, which would otherwise be whole on every chip.
    """
    module, name = path[-2:]
    if name in _OF_HEADS:
        return "layers", _OF_HEADS[name]
    if module == LOW_RANK:
        of_kernel = parameter_axes((*path[:-2], "weight"))
        return (*of_kernel[:-1], "rank") if name == "down" else (*of_kernel[:-2], "rank", of_kernel[-1])
    if module not in _KERNELS and not module.endswith("norm"):
        raise ValueError(f"the axes of {'.'.join(path)} are not known: add them to {__name__}")
    axes = _KERNELS.get(module, ("width",))
    own = axes[-1:] if name == "bias" else axes
    own = (EXPERTS, *own) if EXPERTS in path else own
    is_outside = module in {"embed_tokens", "lm_head", "score"} or tuple(path[:-1]) == ("model", "norm")
    return own if is_outside else ("layers", *own)


def divided_axis(axes: Axes) -> int | None:
    """Return the number of the axis that is divided, of which there is one at most; None if the array is whole."""
    return next((number for number, axis in enumerate(axes) if axis in DIVIDED), None)


def partition(axes: Axes) -> PartitionSpec:
    """Return how an array is divided over the mesh."""
    return PartitionSpec(*(DIVIDED.get(axis) for axis in axes))  # type: ignore[no-untyped-call]
