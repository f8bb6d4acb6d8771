"""The encoding of arrays and options in columns: little-endian bytes and small JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from scoring.layout import TokenIds
from scoring.options import ScoreOptions

_IDS = np.dtype("<i4")
TOKEN_BYTES = _IDS.itemsize
_SCORES = np.dtype("<f4")
_DEFAULTS = asdict(ScoreOptions())
SCORE_BYTES = _SCORES.itemsize


def pack_ids(ids: Sequence[int] | TokenIds) -> bytes:
    """Encode token ids as little-endian int32."""
    return np.asarray(ids, _IDS).tobytes()


def unpack_ids(data: bytes) -> TokenIds:
    """Decode what :func:`pack_ids` encoded: int32 [length]."""
    return np.frombuffer(data, _IDS)


def pack_scores(values: npt.NDArray[np.float32]) -> bytes:
    """Encode logits or log-probabilities [N, M] as little-endian float32."""
    return np.ascontiguousarray(values, _SCORES).tobytes()


def unpack_scores(parts: Sequence[bytes], labels: int) -> npt.NDArray[np.float32]:
    """Decode and join the scores of chunks: float32 [N, labels]."""
    return np.frombuffer(b"".join(parts), _SCORES).reshape(-1, labels)


def pack_options(options: ScoreOptions) -> dict[str, bool | float]:
    """Encode options as JSON. Defaults are left out, so that an older version can read what it knows."""
    return {name: value for name, default in _DEFAULTS.items() if (value := getattr(options, name)) != default}


def unpack_options(stored: Mapping[str, Any]) -> ScoreOptions:
    """Decode what :func:`pack_options` encoded. Options of a newer version are ignored."""
    return ScoreOptions(**{name: value for name, value in stored.items() if name in _DEFAULTS})
