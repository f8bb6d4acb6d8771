"""The client that blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

import httpx2

from scoreline.client import evaluating, mapping
from scoreline.client.connection import Connected, request_settings, unreachable
from scoreline.client.decisions import Decision, Questions, State
from scoreline.client.errors import ScorelineError
from scoreline.client.exchange.flow import (
    Answer,
    Close,
    Command,
    Compute,
    Exchange,
    Flow,
    Give,
    Iteration,
    Next,
    Open,
    Reading,
    Sleep,
    Stream,
)
from scoreline.client.exchange.sending import Service
from scoreline.client.mapping import CONCURRENCY, Mapping, Pair, R, map_blocking
from scoreline.client.methods import checked, explained
from scoreline.client.operations import batches as batch_operations
from scoreline.client.operations import decisions as decision_operations
from scoreline.client.operations import events as event_operations
from scoreline.client.operations import files as file_operations
from scoreline.client.operations import jobs as job_operations
from scoreline.client.operations import likelihoods as likelihood_operations
from scoreline.client.operations import receipts, scoring, submitting, waiting
from scoreline.client.options import DecideManyOptions, MapOptions
from scoreline.client.results import ScoreResult

P = ParamSpec("P")
T = TypeVar("T")

RETURNED = {"Flow": "{}", "Iteration": "Iterator[{}]", "Mapping": "Iterator[Any]"}
"""What the methods return, by what the operations are."""


def _blocking(flow: Callable[Concatenate[Service, P], Flow[T]]) -> Callable[Concatenate[Client, P], T]:
    """Return an operation as a method that returns its value."""
    flow = checked(flow)

    def method(self: Client, /, *args: P.args, **options: P.kwargs) -> T:
        return self._run(flow(self._service, *args, **options))

    return explained(method, flow, RETURNED)


def _iterating(flow: Callable[Concatenate[Service, P], Iteration[T]]) -> Callable[Concatenate[Client, P], Iterator[T]]:
    """Return an operation as a method that returns an iterator."""
    flow = checked(flow)

    def method(self: Client, /, *args: P.args, **options: P.kwargs) -> Iterator[T]:
        return self._iterate(flow(self._service, *args, **options))

    return explained(method, flow, RETURNED)


class Client(Connected):
    """A connection to a running service. Every method raises :class:`ScorelineError` if it fails.

    It may be used by several threads at once.
    """

    def _open(self) -> None:
        self._http = httpx2.Client(**self._settings)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    score = _blocking(scoring.score)
    likelihood = _blocking(likelihood_operations.likelihood)
    rerank = _blocking(scoring.rerank)
    decide = _blocking(decision_operations.decide)
    models = _blocking(scoring.models)
    receipt_keys = _blocking(receipts.receipt_keys)
    repeat = _blocking(receipts.repeat)
    tokenize = _blocking(scoring.tokenize)
    submit = _blocking(submitting.submit)
    upload = _blocking(submitting.upload)
    dry_run = _blocking(submitting.dry_run)
    submit_likelihood = _blocking(likelihood_operations.submit_likelihood)
    submit_decision = _blocking(decision_operations.submit_decision)
    upload_likelihood = _blocking(likelihood_operations.upload_likelihood)
    dry_run_decision = _blocking(decision_operations.dry_run_decision)
    dry_run_likelihood = _blocking(likelihood_operations.dry_run_likelihood)
    get = _blocking(job_operations.get)
    wait = _blocking(waiting.wait)
    jobs = _iterating(job_operations.jobs)
    scores = _iterating(job_operations.scores)
    result = _blocking(job_operations.result)
    likelihoods = _iterating(likelihood_operations.likelihoods)
    likelihood_result = _blocking(likelihood_operations.likelihood_result)
    cancel = _blocking(job_operations.cancel)
    cancel_all = _blocking(job_operations.cancel_all)
    delete = _blocking(job_operations.delete)
    deliveries = _blocking(job_operations.deliveries)
    redeliver = _blocking(job_operations.redeliver)
    events = _iterating(event_operations.events)

    upload_file = _blocking(file_operations.upload_file)
    get_file = _blocking(file_operations.get_file)
    delete_file = _blocking(file_operations.delete_file)
    files = _iterating(file_operations.files)
    file_lines = _iterating(file_operations.file_lines)
    batch = _blocking(batch_operations.batch)
    create_batch = _blocking(batch_operations.create_batch)
    get_batch = _blocking(batch_operations.get_batch)
    cancel_batch = _blocking(batch_operations.cancel_batch)
    delete_batch = _blocking(batch_operations.delete_batch)
    wait_batch = _blocking(batch_operations.wait_batch)
    batch_deliveries = _blocking(batch_operations.batch_deliveries)
    redeliver_batch = _blocking(batch_operations.redeliver_batch)
    batches = _iterating(batch_operations.batches)
    batch_results = _iterating(batch_operations.batch_results)
    batch_events = _iterating(event_operations.batch_events)

    @overload
    def map(
        self,
        pairs: Iterable[Pair],
        *,
        concurrency: int = CONCURRENCY,
        errors: Literal["raise"] = "raise",
        **options: Unpack[MapOptions],
    ) -> Iterator[ScoreResult]: ...

    @overload
    def map(
        self,
        pairs: Iterable[Pair],
        *,
        concurrency: int = CONCURRENCY,
        errors: Literal["yield"],
        **options: Unpack[MapOptions],
    ) -> Iterator[ScoreResult | ScorelineError]: ...

    def map(self, pairs: Iterable[Pair], **options: Any) -> Iterator[Any]:
        return self._mapped(mapping.map(self._service, pairs, **options))

    explained(map, mapping.map, RETURNED)

    @overload
    def decide_many(
        self,
        states: Iterable[State],
        questions: Questions,
        *,
        concurrency: int = CONCURRENCY,
        errors: Literal["raise"] = "raise",
        **options: Unpack[DecideManyOptions],
    ) -> Iterator[Decision]: ...

    @overload
    def decide_many(
        self,
        states: Iterable[State],
        questions: Questions,
        *,
        concurrency: int = CONCURRENCY,
        errors: Literal["yield"],
        **options: Unpack[DecideManyOptions],
    ) -> Iterator[Decision | ScorelineError]: ...

    def decide_many(self, states: Iterable[State], questions: Questions, **options: Any) -> Iterator[Any]:
        return self._mapped(mapping.decide_many(self._service, states, questions, **options))

    explained(decide_many, mapping.decide_many, RETURNED)

    evaluate = _blocking(evaluating.evaluate)

    def _mapped(self, wanted: Mapping[T, R]) -> Iterator[R | ScorelineError]:
        # Whoever imports a client for one call need not wait for asyncio.
        from scoreline.client.asynchronous import AsyncClient
        from scoreline.client.background import Background
        from scoreline.client.sets import JobSets

        client = AsyncClient.like(self._settings, self._service)
        with Background(client) as background:
            sets = JobSets(client)
            yield from map_blocking(wanted, lambda pair, number: background.start(wanted.carry_out(sets, pair, number)))

    def _run(self, flow: Flow[T]) -> T:
        """Carry out the commands of a flow and return its value."""
        try:
            next(self._steps(flow))
        except StopIteration as end:
            value: T = end.value
            return value
        raise AssertionError("a flow that returns a value gives none before")

    def _iterate(self, flow: Iteration[T]) -> Iterator[T]:
        """Carry out the commands of an iteration and yield its values."""
        yield from self._steps(flow)

    def _steps(self, flow: Generator[Command[Any] | Give[T], Any, Any]) -> Generator[T, None, Any]:
        outcome: Any = None
        failure: BaseException | None = None
        with ExitStack() as streams:
            while True:
                try:
                    command = flow.send(outcome) if failure is None else flow.throw(failure)
                except StopIteration as end:
                    return end.value
                outcome = failure = None
                if isinstance(command, Give):
                    yield command.value
                    continue
                try:
                    outcome = self._carry_out(command, streams)
                except BaseException as error:
                    failure = error

    def _carry_out(self, command: Command[Any], streams: ExitStack) -> Any:
        try:
            match command:
                case Exchange(request, seconds):
                    content = request.body.content() if request.body else None
                    response = self._http.request(**request_settings(request, seconds), content=content)
                    return Answer(response.status_code, response.headers, response.content)
                case Sleep(seconds):
                    return time.sleep(seconds)
                case Compute(function):
                    return function()
                case Open(request, reading, seconds):
                    wanted = self._http.build_request(**request_settings(request, seconds))
                    response = self._http.send(wanted, stream=True)
                    streams.callback(response.close)
                    if not response.is_success:
                        return Answer(response.status_code, response.headers, response.read())
                    return Stream(response.status_code, response, _read(response, reading))
                case Next(stream):
                    return next(stream.parts, None)
                case Close(stream):
                    return stream.handle.close()
                case Mapping():
                    return list(self._mapped(command))
        except httpx2.TransportError as error:
            raise unreachable(self._service, error) from error


def _read(response: httpx2.Response, reading: Reading) -> Iterator[Any]:
    """Return an iterator over the parts of an answer. It reads nothing before its first part is wanted."""
    match reading:
        case Reading.EVENTS:
            return iter(httpx2.EventSource(response))
        case Reading.CHUNKS:
            return response.iter_bytes()
