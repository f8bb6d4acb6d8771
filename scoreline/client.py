"""The client of the HTTP interface."""

from __future__ import annotations

import json
import math
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import httpx2

DEFAULT_URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "SCORELINE_API_KEY"
ENDED = frozenset({"succeeded", "failed", "cancelled", "expired"})
"""The final statuses of a job."""

WAIT_SECONDS = 30
"""Time that the server may hold one request of :meth:`Client.wait`, which then asks again."""

SLACK_SECONDS = 15.0
"""Time that a response may take beyond the time that the server was asked to wait."""

Query = str | Sequence[int]
Items = Sequence[str] | Sequence[Sequence[int]]
Labels = Sequence[int] | Sequence[Sequence[int]]
"""Ids of labels: the same for all items, or a list for each item."""


class ScorelineError(Exception):
    """A request that failed."""

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(message)
        self.code = code  # as in the service's table of errors
        self.message = message
        self.status = status  # the HTTP status; 0 if there was no response


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """The scores of a request: a row per item and a column per label, in the order of the request."""

    id: str
    model: str
    scores: list[list[float]]
    logprobs: list[list[float | None]] | None  # None unless asked for
    logits: list[list[float | None]] | None  # None unless asked for
    prompt_tokens: int
    cached_tokens: int  # prompt tokens that did not have to be computed
    warnings: list[str]
    raw: Mapping[str, Any] = field(repr=False)  # the whole response


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document and how relevant it is."""

    index: int  # its place in the request
    relevance_score: float  # by the template's formula, which need not lie between 0 and 1
    label_mass: float  # the share of the probability that the template's labels have; tiny if the prompt is wrong
    text: str | None  # None unless asked for


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents by their relevance to a query, highest first, ties by index."""

    id: str
    model: str
    results: list[RankedDocument]
    prompt_tokens: int
    warnings: list[str]
    raw: Mapping[str, Any] = field(repr=False)  # the whole response


@dataclass(frozen=True, slots=True)
class Job:
    """A job in its present state. Times are Unix seconds."""

    id: str
    status: str
    total_items: int
    scored_items: int
    created_at: float
    started_at: float | None
    finished_at: float | None
    error: tuple[str, str] | None  # code and message, if it failed
    metadata: Mapping[str, str]
    result: ScoreResult | None  # if it succeeded and has at most 1,000 items
    raw: Mapping[str, Any] = field(repr=False)  # the whole response

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.status in ENDED


@dataclass(frozen=True, slots=True)
class ItemScores:
    """The scores of one item of a job, one for each label."""

    index: int
    scores: list[float]
    logprobs: list[float | None] | None
    logits: list[float | None] | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event that was sent, or is to be sent, to a job's webhook."""

    id: str
    event: str
    url: str
    state: str  # pending, delivered, failed or skipped
    next_attempt_at: float | None  # Unix seconds
    attempts: list[Mapping[str, Any]]  # as in the response, oldest first
    raw: Mapping[str, Any] = field(repr=False)  # the whole response


@dataclass(frozen=True, slots=True)
class Model:
    """A served model."""

    id: str
    max_model_len: int  # longest sequence, in tokens
    live_workers: int
    template: str  # by which documents are ranked


class Client:
    """A connection to a running service. Every method raises :class:`ScorelineError`.

    api_key: None: the environment variable ``SCORELINE_API_KEY``; empty: no key. timeout: seconds for a response that
    does not wait for scores.
    """

    def __init__(self, url: str = DEFAULT_URL, *, api_key: str | None = None, timeout: float = 30.0) -> None:
        self._timeout = timeout
        key = os.environ.get(KEY_VARIABLE, "") if api_key is None else api_key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx2.Client(base_url=url, timeout=timeout, headers=headers)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def score(
        self,
        query: Query,
        items: Items,
        *,
        labels: Sequence[str] | None = None,
        label_token_ids: Labels | None = None,
        timeout: float = 60.0,
        **options: object,
    ) -> ScoreResult:
        """Score items and wait for the result, ``timeout`` seconds at most.

        options: ``apply_softmax``, ``temperature``, ``return_logprobs``, ``return_logits``, ``item_first``, ``model``,
        ``on_timeout``, ``query_template``, ``item_template``, ``template``, ``instruction``.
        """
        body = _body(query, items, labels, label_token_ids, options | {"timeout": timeout})
        return _score_result(self._request("POST", "/v1/score", json=body, seconds=timeout + SLACK_SECONDS))

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        return_documents: bool = False,
        instruction: str | None = None,
        timeout: float = 60.0,
        **options: object,
    ) -> Ranking:
        """Rank documents by their relevance to a query, and wait for it, ``timeout`` seconds at most.

        top_n: how many results to return; None: all. instruction: what makes a document relevant, if the template has
        a place for it. options: ``template``, ``max_tokens_per_doc``, ``model``.
        """
        body = {
            "query": query,
            "documents": documents,
            "top_n": top_n,
            "return_documents": return_documents,
            "instruction": instruction,
            "timeout": timeout,
            **options,
        }
        sent = {name: value for name, value in body.items() if value is not None}
        return _ranking(self._request("POST", "/v1/rerank", json=sent, seconds=timeout + SLACK_SECONDS))

    def submit(
        self,
        query: Query,
        items: Items,
        *,
        labels: Sequence[str] | None = None,
        label_token_ids: Labels | None = None,
        idempotency_key: str | None = None,
        **options: object,
    ) -> Job:
        """Submit a job. Once this returns, the job survives the crash of any process.

        idempotency_key: makes it safe to submit again after an error; options: those of :meth:`score`, and
        ``metadata``, ``priority``, ``expires_in``, ``webhook``.
        """
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key is not None else {}
        body = _body(query, items, labels, label_token_ids, options)
        return _job(self._request("POST", "/v1/jobs", json=body, headers=headers))

    def upload(
        self,
        query: Query,
        items: Iterable[str] | Iterable[Sequence[int]],
        *,
        labels: Sequence[str] | None = None,
        label_token_ids: Sequence[int] | None = None,
        idempotency_key: str | None = None,
        **options: object,
    ) -> Job:
        """:meth:`submit` for a large job: items are sent as the iterable yields them, packed, in bounded memory.

        Nothing is submitted if the iterable raises, or anything else fails on the way.
        """
        headers = {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        body = _body(query, None, labels, label_token_ids, options)
        return _job(self._request("POST", "/v1/jobs", content=_packed_lines(chain([body], items)), headers=headers))

    def get(self, job_id: str) -> Job:
        """Return a job in its present state."""
        return _job(self._request("GET", f"/v1/jobs/{job_id}"))

    def wait(self, job_id: str, timeout: float | None = None) -> Job:
        """Wait for a job to end and return it. Raises TimeoutError after ``timeout`` seconds; None: never."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = (
                WAIT_SECONDS if deadline is None else min(WAIT_SECONDS, max(0, math.ceil(deadline - time.monotonic())))
            )
            headers = {"Prefer": f"wait={left}"}
            job = _job(self._request("GET", f"/v1/jobs/{job_id}", headers=headers, seconds=left + SLACK_SECONDS))
            if job.ended:
                return job
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{job_id} is still {job.status} after {timeout:g} s")

    def scores(self, job_id: str, *, page_items: int = 1_000) -> Iterator[ItemScores]:
        """Yield what is scored so far, in the order of the items. It is read page by page."""
        offset = 0
        while True:
            parameters = {"offset": offset, "limit": page_items}
            page = self._request("GET", f"/v1/jobs/{job_id}/scores", params=parameters)
            for line in page["data"]:
                yield ItemScores(line["index"], line["scores"], line.get("logprobs"), line.get("logits"))
            if not page["has_more"]:
                return
            offset += page_items

    def cancel(self, job_id: str) -> Job:
        """Cancel a job. A job that has ended is not changed."""
        return _job(self._request("POST", f"/v1/jobs/{job_id}/cancel"))

    def deliveries(self, job_id: str) -> list[Delivery]:
        """Return what was sent, or is to be sent, to a job's webhook: nothing before the job has ended."""
        return [_delivery(raw) for raw in self._request("GET", f"/v1/jobs/{job_id}/deliveries")["data"]]

    def redeliver(self, job_id: str, delivery_id: str) -> Delivery:
        """Send a delivery again now, whatever its state."""
        return _delivery(self._request("POST", f"/v1/jobs/{job_id}/deliveries/{delivery_id}/redeliver"))

    def delete(self, job_id: str) -> None:
        """Delete a job with its inputs and scores."""
        self._request("DELETE", f"/v1/jobs/{job_id}")

    def models(self) -> list[Model]:
        """Return the served models."""
        data = self._request("GET", "/v1/models")["data"]
        return [Model(model["id"], model["max_model_len"], model["live_workers"], model["template"]) for model in data]

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        tokens: list[int] = self._request("POST", "/v1/tokenize", json={"text": text})["tokens"]
        return tokens

    def _request(self, method: str, path: str, *, seconds: float | None = None, **arguments: Any) -> dict[str, Any]:
        try:
            response = self._http.request(method, path, timeout=seconds or self._timeout, **arguments)
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise ScorelineError("unreachable", f"no answer from {self._http.base_url}: {reason}", 0) from error
        try:
            body = response.json()
            if response.is_success:
                return dict(body)
            raise ScorelineError(body["error"]["code"], body["error"]["message"], response.status_code)
        except (ValueError, KeyError, TypeError):
            message = f"{self._http.base_url} answered {response.status_code} with something else than Scoreline does"
            raise ScorelineError("unexpected_response", message, response.status_code) from None


def _packed_lines(lines: Iterable[object]) -> Iterator[bytes]:
    """Yield JSON lines, compressed as gzip."""
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    for line in lines:
        if packed := packer.compress(json.dumps(line).encode() + b"\n"):
            yield packed
    yield packer.flush()


def _body(
    query: Query,
    items: Items | None,
    labels: Sequence[str] | None,
    label_token_ids: Labels | None,
    options: Mapping[str, object],
) -> dict[str, object]:
    body = {"query": query, "items": items, "labels": labels, "label_token_ids": label_token_ids, **options}
    return {name: value for name, value in body.items() if value is not None}


def _score_result(raw: Mapping[str, Any]) -> ScoreResult:
    usage = raw["usage"]
    return ScoreResult(
        id=raw["id"],
        model=raw["model"],
        scores=raw["scores"],
        logprobs=raw.get("logprobs"),
        logits=raw.get("logits"),
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        warnings=raw["warnings"],
        raw=raw,
    )


def _ranking(raw: Mapping[str, Any]) -> Ranking:
    results = [
        RankedDocument(
            index=result["index"],
            relevance_score=result["relevance_score"],
            label_mass=result["label_mass"],
            text=result["document"]["text"] if "document" in result else None,
        )
        for result in raw["results"]
    ]
    return Ranking(raw["id"], raw["model"], results, raw["usage"]["prompt_tokens"], raw["warnings"], raw)


def _delivery(raw: Mapping[str, Any]) -> Delivery:
    return Delivery(
        id=raw["id"],
        event=raw["event"],
        url=raw["url"],
        state=raw["state"],
        next_attempt_at=raw["next_attempt_at"],
        attempts=raw["attempts"],
        raw=raw,
    )


def _job(raw: Mapping[str, Any]) -> Job:
    error, result = raw.get("error"), raw.get("result")
    return Job(
        id=raw["id"],
        status=raw["status"],
        total_items=raw["progress"]["total_items"],
        scored_items=raw["progress"]["scored_items"],
        created_at=raw["created_at"],
        started_at=raw["started_at"],
        finished_at=raw["finished_at"],
        error=(error["code"], error["message"]) if error else None,
        metadata=raw["metadata"],
        result=_score_result(result) if result else None,
        raw=raw,
    )
