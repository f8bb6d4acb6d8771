"""Note the digest of a request whose answer is to be signed: the body is gone when the answer is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from api.answers.presentation import EMBEDDED_ITEMS
from api.reading import ReadingContext
from jobs.queue.read import most_embedded
from jobs.store.records import Submission
from public_api import paths
from scoring.error_codes import ErrorCode, RequestError, invalid
from scoring.values import parse_flag


def wants_receipt(reading: ReadingContext, body: Mapping[str, object]) -> bool:
    """Return whether a body asks for a receipt. Raises RequestError where there is no key to sign with."""
    wanted = parse_flag(body.get("return_receipt"), "return_receipt")
    if wanted and not reading.signs_receipts:
        message = "this server signs no receipts: SCORELINE_RECEIPT_KEYS is not set"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="return_receipt")
    return wanted


def check_is_whole(submission: Submission, field: str) -> None:
    """Raise RequestError for a job whose result can't be read at once. field: of the body, which needs that it can."""
    if submission.total_items > (most := most_embedded(submission, EMBEDDED_ITEMS)):
        message = f"{field} needs a result that is read at once, which this job could have with at most {most:,} items"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param=field)


def with_receipt(reading: ReadingContext, body: Mapping[str, object], path: str, submission: Submission) -> Submission:
    """Return a submission whose answer will have a receipt. path: where the body was sent.

    Raises RequestError for a job whose answer is never whole, and for a body that has no digest.
    """
    if path == paths.JOBS:
        check_is_whole(submission, "return_receipt")
    # It takes time to import, and most deployments sign nothing.
    from judgement.receipts import ReceiptError, digest_of_request

    reading.stop_if_unwanted()
    try:
        asked = f"{path} {digest_of_request(body)}"
    except ReceiptError as error:
        raise invalid(f"there can be no receipt of this request: {error}", "return_receipt") from None
    return replace(submission, options=replace(submission.options, receipt=asked))
