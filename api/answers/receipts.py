"""Sign what was asked and what is answered, for requests that want it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from scoring.options import ScoreOptions

if TYPE_CHECKING:
    from judgement.receipts import ReceiptKeys


def asked_at(options: ScoreOptions) -> str | None:
    """Return the path of the request that asked for a receipt; None if none did."""
    return None if options.receipt is None else options.receipt.split(" ")[0]


def sign(answer: bytes, asked: str, keys: ReceiptKeys, *, job_id: str, finished_at: float, provenance: Any) -> str:
    """Return the receipt of an answer, which is always the same one as long as the same key signs.

    answer: JSON. asked: path and digest of the request. finished_at: when its job ended, in Unix seconds. provenance:
    what computed it, as answers show it.
    """
    from judgement.receipts import digest_of_answer  # Most processes sign nothing, and it takes time to import.

    path, request = asked.split(" ")
    return keys.sign(
        {
            "job": job_id,
            "finished_at": math.floor(finished_at),
            "path": path,
            "request_sha256": request,
            "answer_sha256": digest_of_answer(json.loads(answer)),
            "provenance": provenance,
        }
    )
