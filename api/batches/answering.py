"""Encode the results of lines as they are written to the files of a batch.

This takes processor time, so call it in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from api.answers.batch_lines import encode_answer, encode_refusal, encode_unscored
from api.answers.completions import encode_completion
from api.answers.presentation import ScoredJob, encode_scoring
from api.answers.reranking import Ranking, encode_ranking
from api.batches.reading import INTERNAL, packed_formula
from api.drift import ScoreCounts
from api.requests.bodies.json_body import parse_json
from api.requests.reranking import documents_of
from api.results import Shown
from jobs.file_batches.reading import BatchRecord
from jobs.file_batches.writing import EndedLine, Written
from jobs.store.records import JobRecord, JobStatus
from scoring.error_codes import ErrorCode, RequestError
from scoring.options import Shape
from scoring.quoting import quote
from scoring.tokenizing.tokenization import TextTokenizer

if TYPE_CHECKING:
    from judgement.receipts import ReceiptKeys

log = structlog.stdlib.get_logger("api.batches")


@dataclass(frozen=True, slots=True)
class Needed:
    """What answers need beside the results of their jobs, by the number of the line."""

    inputs: Mapping[int, bytes]  # the lines whose answers hold their documents
    provenances: Mapping[int, Shown]  # of lines that ask for them
    tokenizers: Mapping[str, TextTokenizer]  # of completions, by the ids of their jobs
    receipt_keys: ReceiptKeys | None
    counts: ScoreCounts


def encode_lines(batch: BatchRecord, lines: Sequence[EndedLine], needed: Needed) -> Written:
    outputs: list[bytes] = []
    errors: list[bytes] = []
    prompt_tokens = cached_tokens = 0
    is_late = False
    for line in lines:
        if line.refusal is not None:
            errors.append(line.refusal)
            continue
        try:
            job_id, body = _answer(batch, line, needed)
            outputs.append(encode_answer(batch.id, line.number, line.custom_id, job_id, body))
            assert line.result is not None
            prompt_tokens += line.result[0].prompt_tokens
            cached_tokens += line.result[0].cached_tokens
        except _UnscoredError:
            code = ErrorCode.BATCH_CANCELLED if batch.cancelling_at is not None else ErrorCode.BATCH_EXPIRED
            is_late |= code is ErrorCode.BATCH_EXPIRED
            errors.append(encode_unscored(batch.id, line.number, line.custom_id, code))
        except RequestError as error:
            errors.append(encode_refusal(batch.id, line.number, line.custom_id, error))
        except Exception:
            log.exception("a line of a batch could not be encoded", batch_id=batch.id, number=line.number)
            fault = RequestError(ErrorCode.INTERNAL_ERROR, INTERNAL)
            errors.append(encode_refusal(batch.id, line.number, line.custom_id, fault))
    return Written(
        b"".join(outputs), b"".join(errors), len(outputs), len(errors), prompt_tokens, cached_tokens, is_late
    )


class _UnscoredError(Exception):
    """The job of the line was ended by its batch, by a cancellation or at the end of its time."""


def _answer(batch: BatchRecord, line: EndedLine, needed: Needed) -> tuple[str, bytes]:
    """Return the id of the job and the encoded answer. Raises RequestError, _UnscoredError."""
    if line.result is None:
        raise RequestError(ErrorCode.JOB_NOT_FOUND, "the job of this line was deleted before its result was written")
    job, page = line.result
    if page is None:
        raise _reason(batch, job)
    needed.counts.count_page(page)
    provenance = needed.provenances.get(line.number)
    scored = replace(ScoredJob.read(page), provenance=provenance, receipt_keys=needed.receipt_keys)
    if job.options.shape is Shape.COMPLETION:
        if job.id not in needed.tokenizers:
            message = f"the tokenizer of {quote(job.model)}, by which tokens become texts, can't be loaded any more"
            raise RequestError(ErrorCode.MODEL_UNAVAILABLE, message)
        return job.id, encode_completion(scored, needed.tokenizers[job.id])
    if line.ranking is None:
        return job.id, encode_scoring(scored)
    documents = None
    if line.number in needed.inputs:
        value = parse_json(needed.inputs[line.number])
        assert isinstance(value, dict), "the line was read before"
        documents = documents_of(value["body"]["documents"])
    return job.id, encode_ranking(scored, Ranking(line.ranking["top_n"], documents, packed_formula(line.ranking)))


def _reason(batch: BatchRecord, job: JobRecord) -> Exception:
    """Return the error of a line whose job has not succeeded."""
    match job.status:
        case JobStatus.FAILED if job.error is not None:
            return RequestError(job.error.code, f"{job.error.message} ({job.id})")
        case JobStatus.CANCELLED if batch.cancelling_at is None:
            return RequestError(ErrorCode.JOB_CANCELLED, f"{job.id} was cancelled")
    return _UnscoredError()
