"""How arrays and options are kept in columns: little-endian bytes and small JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import numpy.typing as npt

from scoring.layout import TokenIds
from scoring.options import ScoreOptions

_IDS = np.dtype("<i4")
TOKEN_BYTES = _IDS.itemsize
_SCORES = np.dtype("<f4")


def pack_ids(ids: Sequence[int] | TokenIds) -> bytes:
    """Token ids as little-endian int32."""
    return np.asarray(ids, _IDS).tobytes()


def unpack_ids(data: bytes) -> TokenIds:
    """The inverse of :func:`pack_ids`: int32 [length]."""
    return np.frombuffer(data, _IDS)


def pack_scores(values: npt.NDArray[np.float32]) -> bytes:
    """Logits or log-probabilities [N, M] as little-endian float32."""
    return np.ascontiguousarray(values, _SCORES).tobytes()


def unpack_scores(parts: Sequence[bytes], labels: int) -> npt.NDArray[np.float32]:
    """Chunks' packed scores, joined: float32 [N, labels]."""
    return np.frombuffer(b"".join(parts), _SCORES).reshape(-1, labels)


def pack_options(options: ScoreOptions) -> dict[str, bool]:
    """Options as JSON."""
    return asdict(options)


def unpack_options(stored: Mapping[str, bool]) -> ScoreOptions:
    """The inverse of :func:`pack_options`."""
    return ScoreOptions(**stored)
