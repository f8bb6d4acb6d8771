"""The encoding of arrays and options in columns: little-endian bytes and small JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from scoring.layout import LabelScores, TargetScores, TokenIds, TopTokens
from scoring.options import ScoreOptions

_IDS = np.dtype("<i4")
TOKEN_BYTES = _IDS.itemsize
SCORES = np.dtype("<f4")
_DEFAULTS = asdict(ScoreOptions())
_ENUMS = {name: type(default) for name, default in _DEFAULTS.items() if isinstance(default, StrEnum)}
SCORE_BYTES = SCORES.itemsize


def pack_ids(ids: Sequence[int] | TokenIds) -> bytes:
    """Encode token ids as little-endian int32."""
    return np.asarray(ids, _IDS).tobytes()


def unpack_ids(data: bytes) -> TokenIds:
    """Decode what :func:`pack_ids` encoded: int32 [length]."""
    return np.frombuffer(data, _IDS)


def pack_scores(values: npt.NDArray[np.float32]) -> bytes:
    """Encode logits or log-probabilities [N, M] as little-endian float32."""
    return np.ascontiguousarray(values, SCORES).tobytes()


def unpack_scores(parts: Sequence[bytes], labels: int) -> npt.NDArray[np.float32]:
    """Decode and join the scores of chunks: float32 [N, labels]."""
    return np.frombuffer(b"".join(parts), SCORES).reshape(-1, labels)


def pack_places(scores: LabelScores, targets: TargetScores | None) -> bytes | None:
    """Encode what is kept beside logits and log-probabilities; None if that is nothing.

    Of targets, it is a byte for each continuation and a little-endian float32 for each target, and behind them, if
    they are kept, the ids and log-probabilities of the most probable tokens. Of rows with labels of one token, it is
    the log-probabilities of the most probable tokens.
    """
    if targets is None:
        return None if scores.top_logprobs is None else pack_scores(scores.top_logprobs)
    packed = np.ascontiguousarray(targets.greedy, np.uint8).tobytes() + pack_scores(targets.token_logprobs)
    return packed if targets.top is None else packed + pack_ids(targets.top.ids) + pack_scores(targets.top.logprobs)


def unpack_targets(data: bytes, continuations: int, targets: int) -> TargetScores:
    """Decode what :func:`pack_places` encoded of so many continuations and targets. Raises ValueError."""
    greedy = np.frombuffer(data, np.uint8, continuations).astype(np.bool_)
    logprobs = np.frombuffer(data, SCORES, targets, continuations)
    place = continuations + logprobs.nbytes
    if targets and place == len(data):
        return TargetScores(logprobs, greedy)
    ids = np.frombuffer(data, _IDS, targets, place)
    return TargetScores(logprobs, greedy, TopTokens(ids, np.frombuffer(data, SCORES, offset=place + ids.nbytes)))


def pack_options(options: ScoreOptions) -> dict[str, bool | float | str]:
    """Encode options as JSON. Defaults are left out, so that an older version can read what it knows."""
    return {name: value for name, default in _DEFAULTS.items() if (value := getattr(options, name)) != default}


def unpack_options(stored: Mapping[str, Any]) -> ScoreOptions:
    """Decode what :func:`pack_options` encoded. Options of a newer version are ignored."""
    known = {name: value for name, value in stored.items() if name in _DEFAULTS}
    for name, kind in _ENUMS.items():
        if name in known:
            known[name] = kind(known[name])
    return ScoreOptions(**known)
