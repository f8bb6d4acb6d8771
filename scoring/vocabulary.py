"""Check token ids that a client sends against the vocabulary of the served model."""

from __future__ import annotations

from collections.abc import Sequence

from checkpoints.card import ModelCard
from scoring.error_codes import ErrorCode, RequestError


def check_range(ids: Sequence[int], card: ModelCard, where: str) -> None:
    """Check Python integers, before numpy could overflow on them. Raises :class:`RequestError`.

    where: the path of the list in the request.
    """
    if ids and not 0 <= min(ids) <= max(ids) < card.vocabulary:
        n = next(n for n, token in enumerate(ids) if not 0 <= token < card.vocabulary)
        raise bad_id(ids[n], card, f"{where}[{n}]")


def bad_id(token: int, card: ModelCard, param: str) -> RequestError:
    """Return the error for a token id that the model does not have."""
    if token < 0:
        return RequestError(ErrorCode.NEGATIVE_TOKEN_ID, f"{param}: token ids are not negative", param=param)
    message = f"{param}: a token id is not in the vocabulary, whose ids are 0 to {card.vocabulary - 1}"
    return RequestError(ErrorCode.TOKEN_ID_EXCEEDS_VOCAB, message, param=param)
