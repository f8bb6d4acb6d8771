"""All layers of a decoder in NumPy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from model.checks import numpy_recurrence
from model.checks.numpy_decoder import (
    Floats,
    Mask,
    ServedDecoder,
    attend,
    embed,
    key_values,
    output_mlp,
    queries,
    rotary_angles,
)
from scoring.layout import TokenIds


def final_states(
    decoder: ServedDecoder, tokens: TokenIds, positions: TokenIds, visible: Mask, *, shaken: bool = False
) -> Floats:
    """Return the hidden states after the last layer, [T, width]; visible: which tokens each token sees, [T, T].

    shaken: numbers are changed at random behind each layer, by about one in their last place.
    """
    dtype, config = decoder.head[1].dtype, decoder.config
    of_kinds = [rotary_angles(positions, rope, config.head_dim) for rope in config.ropes]
    within = visible & (np.subtract.outer(positions, positions) < config.reach)
    random, last_place = np.random.default_rng(0), np.float32(jnp.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    hidden, before = embed(decoder, tokens), _before(positions, visible)
    for number, (is_windowed, is_recurrent) in enumerate(zip(config.windowed, config.recurrent, strict=True)):
        of_kind = config.recurrent[:number].count(is_recurrent)
        if is_recurrent:
            hidden = numpy_recurrence.through(decoder.recurrent_layer(of_kind), hidden, before)
        else:
            # The angles of layers with a window come last, where they differ.
            layer, rotary = decoder.layer(of_kind), of_kinds[-1 if is_windowed else 0]
            seen = within if is_windowed else visible
            keys, values = key_values(layer, hidden, rotary)
            attended = attend(queries(layer, hidden, rotary), keys, values, seen, dtype, config.caps.scores)
            hidden = output_mlp(layer, hidden, attended)
        if shaken:
            hidden *= 1 + last_place * random.standard_normal(hidden.shape, np.float32)
    return hidden


def _before(positions: TokenIds, visible: Mask) -> list[int]:
    """Return the place of the token that stands before each token in its sequence; -1 for the first."""
    is_before = visible & np.equal.outer(positions - 1, positions)
    found: list[int] = np.where(is_before.any(axis=1), is_before.argmax(axis=1), -1).tolist()
    return found
