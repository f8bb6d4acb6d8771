"""The result of a call as a text that travels in the notice of its end, signed with the call's key.

Only the call's row and the request that waits for the call know its key, and the key itself is never sent. So whoever
can send notices, but can't read the database, can't make up a result or change one.
"""

from __future__ import annotations

import hmac
import json
from base64 import b64decode, b64encode
from dataclasses import dataclass

from jobs.store.codec import SCORE_BYTES, pack_scores, unpack_scores
from scoring.layout import Head, LabelScores

VERSION = 1
"""A result of another version counts as none: the scores are read from the database then."""

MAX_RESULT_BYTES = 4_096
"""The most bytes of scores that are sent with a notice, as they are stored. It is room for 512 items with one label."""


@dataclass(frozen=True, slots=True, eq=False)
class CallResult:
    """What is known of a call when it has succeeded, beyond what was known when it was accepted."""

    finished_at: float  # Unix seconds on the database's clock
    cached_tokens: int  # of all sequences of the call
    scores: LabelScores  # of all items, in their order


def sign_result(result: CallResult, key: bytes) -> str | None:
    """Return the result as a text, or None if it is too large to be sent with a notice."""
    scores = result.scores
    logits = pack_scores(scores.logits)
    logprobs = None if scores.logprobs is None else pack_scores(scores.logprobs)
    if len(logits) + len(logprobs or b"") > MAX_RESULT_BYTES:
        return None
    content = json.dumps(
        {
            "version": VERSION,
            "finished_at": result.finished_at,
            "cached_tokens": result.cached_tokens,
            "logits": b64encode(logits).decode(),
            "logprobs": None if logprobs is None else b64encode(logprobs).decode(),
        }
    )
    return f"{_signature(key, content.encode())} {content}"


def verified_result(text: str, key: bytes, *, items: int, labels: int, head: Head) -> CallResult | None:
    """Return the result in a text that was signed with this key, or None if there is no such result in it.

    items, labels, head: what the call asked for, which the scores must match.
    """
    signature, _, content = text.partition(" ")
    signed = content.encode(errors="surrogatepass")
    if not hmac.compare_digest(signature.encode(errors="surrogatepass"), _signature(key, signed).encode()):
        return None
    found = json.loads(content)  # by a worker, so it is what sign_result makes in this version or in another
    if found["version"] != VERSION:
        return None
    logits = b64decode(found["logits"])
    logprobs = b64decode(found["logprobs"]) if head is Head.LOGPROBS else None
    if any(len(values) != items * labels * SCORE_BYTES for values in (logits, logprobs) if values is not None):
        return None
    scores = LabelScores(
        logits=unpack_scores([logits], labels),
        logprobs=None if logprobs is None else unpack_scores([logprobs], labels),
    )
    return CallResult(found["finished_at"], found["cached_tokens"], scores)


def _signature(key: bytes, content: bytes) -> str:
    return hmac.digest(key, content, "sha256").hex()
