"""The result of a call as a text that travels in the notice of its end, signed with the call's key.

Only the call's row and the request that waits for the call know its key, and the key itself is never sent. So whoever
can send notices, but can't read the database, can't make up a result or change one.

Every API process receives every notice. So the content is text without a quotation mark or a backslash, which a JSON
parser copies unchanged. Only the process whose request waits for the call decodes it.
"""

from __future__ import annotations

import hmac
import struct
from base64 import b64decode, b64encode
from dataclasses import dataclass

from jobs.store.codec import SCORE_BYTES, TOKEN_BYTES, pack_places, pack_scores, unpack_scores, unpack_targets
from scoring.layout import Head, LabelScores, TargetScores

VERSION = 3
"""It is a part of what is signed. So a result of another version counts as none, and the scores are read from the
database."""

MAX_RESULT_BYTES = 4_096
"""The most bytes of scores that are sent with a notice, as they are stored. It is room for 512 items with one label."""

_HEAD = struct.Struct("<dq?q")
"""The time of the end, the number of cached tokens, and the provenance of all scores, if it is known. Behind it come
the logits and, if any, the log-probabilities and what :func:`jobs.store.codec.pack_places` gives."""


@dataclass(frozen=True, slots=True, eq=False)
class CallResult:
    """What is known of a call when it has succeeded, beyond what was known when it was accepted."""

    finished_at: float  # Unix seconds on the database's clock
    cached_tokens: int  # of all sequences of the call
    scores: LabelScores  # of all items, in their order
    provenance: int | None = None  # of all scores; None: not known
    targets: TargetScores | None = None  # where an answer needs them


def sign_result(result: CallResult, key: bytes) -> str | None:
    """Return the result as a text, or None if it is too large to be sent with a notice."""
    scores = result.scores
    values = pack_scores(scores.logits)
    if scores.logprobs is not None:
        values += pack_scores(scores.logprobs)
    values += pack_places(scores, result.targets) or b""
    if len(values) > MAX_RESULT_BYTES:
        return None
    provenance = result.provenance
    head = _HEAD.pack(result.finished_at, result.cached_tokens, provenance is not None, provenance or 0)
    content = b64encode(head + values)
    return f"{_signature(key, content)} {content.decode()}"


def verified_result(
    text: str, key: bytes, *, items: int, labels: int, head: Head, targets: int | None = None, top: bool = False
) -> CallResult | None:
    """Return the result in a text that was signed with this key, or None if there is no such result in it.

    items, labels, head: what the call asked for, which the scores must match. targets: the number of targets whose
    scores its answer needs; None if it needs none. top: whether it needs the most probable tokens.
    """
    signature, _, content = text.partition(" ")
    signed = content.encode(errors="surrogatepass")
    if not hmac.compare_digest(signature.encode(errors="surrogatepass"), _signature(key, signed).encode()):
        return None
    found = b64decode(signed)
    finished_at, cached_tokens, is_known, provenance = _HEAD.unpack_from(found)
    size = items * labels * SCORE_BYTES
    if targets is None:
        behind = items * SCORE_BYTES * top
    else:
        behind = items * labels + targets * (SCORE_BYTES + (TOKEN_BYTES + SCORE_BYTES) * top)
    place = len(found) - behind
    if place < _HEAD.size:
        return None
    logits, logprobs, of_places = found[_HEAD.size : _HEAD.size + size], found[_HEAD.size + size : place], found[place:]
    # A worker of the previous version gives no log-probabilities for a softmax, and no most probable tokens.
    if len(logits) != size or len(logprobs) not in ((size,) if head is Head.LOGPROBS or top else (0, size)):
        return None
    of_targets = None if targets is None else unpack_targets(of_places, items * labels, targets)
    scores = LabelScores(
        logits=unpack_scores([logits], labels),
        logprobs=unpack_scores([logprobs], labels) if len(logprobs) == size else None,
        top_logprobs=unpack_scores([of_places], 1)[:, 0] if top and targets is None else None,
    )
    return CallResult(finished_at, cached_tokens, scores, provenance if is_known else None, of_targets)


def _signature(key: bytes, content: bytes) -> str:
    return hmac.digest(key, b"%d %b" % (VERSION, content), "sha256").hex()
