"""Folders of random adapters for small checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from model.architecture.config import DecoderConfig
from model.architecture.decoder import Decoder
from model.architecture.projections import Linear, LowRank
from model.architecture.weights import tensor_shapes
from tests.model.architecture.stored.writers import write_adapter
from tests.model.checkpoints import Tensors

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj_qkv", "out_proj")


def add_low_rank(decoder: Decoder, rank: int) -> None:
    """Add random factors to all projections of the layers of a decoder."""
    random = np.random.default_rng(rank)
    linear = [module for _, module in nnx.iter_graph(decoder.model.layers) if isinstance(module, Linear)]
    for module in linear:
        layers, width, out = module.weight.shape
        down, up = random.standard_normal((layers, width, rank)), random.standard_normal((layers, rank, out))
        module.low_rank = LowRank(*(jnp.asarray(0.05 * part, module.weight.dtype) for part in (down, up)))


def random_adapter(
    directory: Path,
    config: DecoderConfig,
    seed: int,
    rank: int = 4,
    modules: Sequence[str] = MODULES,
    size: float = 0.3,
    **fields: Any,
) -> Path:
    """An adapter that changes these projections of all layers as much as tests can see."""
    random, found = np.random.default_rng(seed), Tensors()
    for name, shape in tensor_shapes(config).items():
        module = name.removesuffix(".weight")
        own = module.rpartition(".")[2]
        if own in modules and not (own == "q_proj" and config.traits.is_hybrid):  # which is one tensor with the gate
            down = random.standard_normal((rank, shape[1])).astype(np.float32) / np.sqrt(shape[1])
            up = size * random.standard_normal((shape[0], rank)).astype(np.float32)
            found |= {
                f"base_model.model.{module}.lora_A.weight": down.astype(np.float32),
                f"base_model.model.{module}.lora_B.weight": up,
            }
    return write_adapter(directory, found, r=rank, target_modules=list(modules), **fields)
