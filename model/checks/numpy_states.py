"""All layers of a decoder in NumPy."""

from __future__ import annotations

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
from model.checks.numpy_recurrence import ReferenceState
from scoring.layout import TokenIds


def final_states(decoder: ServedDecoder, tokens: TokenIds, positions: TokenIds, visible: Mask) -> Floats:
    """Return the hidden states after the last layer, [T, width]; visible: which tokens each token sees, [T, T].

    With recurrent layers, the tokens must be one sequence, of which each token sees all that stand before it.
    """
    dtype, config = decoder.head[1].dtype, decoder.config
    of_kinds = [rotary_angles(positions, rope, config.head_dim) for rope in config.ropes]
    within = visible & (np.subtract.outer(positions, positions) < config.reach)
    hidden = embed(decoder, tokens)
    for number, (is_windowed, is_recurrent) in enumerate(zip(config.windowed, config.recurrent, strict=True)):
        of_kind = config.recurrent[:number].count(is_recurrent)
        if is_recurrent and config.recurrence is not None:
            recurrent = decoder.recurrent_layer(of_kind)
            given = numpy_recurrence.inputs(recurrent, hidden)
            out, _ = numpy_recurrence.recur(recurrent, given, ReferenceState.empty(config.recurrence))
            hidden = numpy_recurrence.output_mlp(recurrent, hidden, out)
            continue
        # The angles of layers with a window come last, where they differ.
        layer, rotary = decoder.layer(of_kind), of_kinds[-1 if is_windowed else 0]
        seen = within if is_windowed else visible
        attended = attend(queries(layer, hidden, rotary), *key_values(layer, hidden, rotary), seen, dtype)
        hidden = output_mlp(layer, hidden, attended.out)
    return hidden
