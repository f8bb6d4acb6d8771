"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
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
from scoreline.client.mapping import CONCURRENCY, Mapping, Pair, map_async
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

RETURNED = {"Flow": "Coroutine[Any, Any, {}]", "Iteration": "AsyncIterator[{}]", "Mapping": "AsyncIterator[Any]"}
"""What the methods return, by what the operations are."""


def _awaited(
    flow: Callable[Concatenate[Service, P], Flow[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Return an operation as a method that is awaited."""
    flow = checked(flow)

    def method(self: AsyncClient, /, *args: P.args, **options: P.kwargs) -> Coroutine[Any, Any, T]:
        return self.carry_out(flow(self._service, *args, **options))

    return explained(method, flow, RETURNED)


def _iterating(
    flow: Callable[Concatenate[Service, P], Iteration[T]],
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    """Return an operation as a method that returns an asynchronous iterator."""
    flow = checked(flow)

    def method(self: AsyncClient, /, *args: P.args, **options: P.kwargs) -> AsyncIterator[T]:
        return self._iterate(flow(self._service, *args, **options))

    return explained(method, flow, RETURNED)


class AsyncClient(Connected):
    """:class:`Client` for asyncio: its methods are awaited, and its iterators are asynchronous."""

    def _open(self) -> None:
        self._http = httpx2.AsyncClient(**self._settings)

    @classmethod
    def like(cls, settings: dict[str, Any], service: Service) -> AsyncClient:
        """Return a client of the same service as another one, which was made with these settings."""
        client = cls.__new__(cls)
        client._settings, client._service = settings, service
        client._open()
        return client

    @property
    def service(self) -> Service:
        """Where the service is, and whether it answers."""
        return self._service

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    score = _awaited(scoring.score)
    likelihood = _awaited(likelihood_operations.likelihood)
    rerank = _awaited(scoring.rerank)
    decide = _awaited(decision_operations.decide)
    models = _awaited(scoring.models)
    receipt_keys = _awaited(receipts.receipt_keys)
    repeat = _awaited(receipts.repeat)
    tokenize = _awaited(scoring.tokenize)
    submit = _awaited(submitting.submit)
    upload = _awaited(submitting.upload)
    dry_run = _awaited(submitting.dry_run)
    submit_likelihood = _awaited(likelihood_operations.submit_likelihood)
    submit_decision = _awaited(decision_operations.submit_decision)
    upload_likelihood = _awaited(likelihood_operations.upload_likelihood)
    dry_run_decision = _awaited(decision_operations.dry_run_decision)
    dry_run_likelihood = _awaited(likelihood_operations.dry_run_likelihood)
    get = _awaited(job_operations.get)
    wait = _awaited(waiting.wait)
    jobs = _iterating(job_operations.jobs)
    scores = _iterating(job_operations.scores)
    result = _awaited(job_operations.result)
    likelihoods = _iterating(likelihood_operations.likelihoods)
    likelihood_result = _awaited(likelihood_operations.likelihood_result)
    cancel = _awaited(job_operations.cancel)
    cancel_all = _awaited(job_operations.cancel_all)
    delete = _awaited(job_operations.delete)
    deliveries = _awaited(job_operations.deliveries)
    redeliver = _awaited(job_operations.redeliver)
    events = _iterating(event_operations.events)

    upload_file = _awaited(file_operations.upload_file)
    get_file = _awaited(file_operations.get_file)
    delete_file = _awaited(file_operations.delete_file)
    files = _iterating(file_operations.files)
    file_lines = _iterating(file_operations.file_lines)
    batch = _awaited(batch_operations.batch)
    create_batch = _awaited(batch_operations.create_batch)
    get_batch = _awaited(batch_operations.get_batch)
    cancel_batch = _awaited(batch_operations.cancel_batch)
    delete_batch = _awaited(batch_operations.delete_batch)
    wait_batch = _awaited(batch_operations.wait_batch)
    batch_deliveries = _awaited(batch_operations.batch_deliveries)
    redeliver_batch = _awaited(batch_operations.redeliver_batch)
    batches = _iterating(batch_operations.batches)
    batch_results = _iterating(batch_operations.batch_results)
    batch_events = _iterating(event_operations.batch_events)

    @overload
    def map(
        self,
        pairs: Iterable[Pair] | AsyncIterable[Pair],
        *,
        concurrency: int = CONCURRENCY,
        errors: Literal["raise"] = "raise",
        **options: Unpack[MapOptions],
    ) -> AsyncIterator[ScoreResult]: ...

    @overload
    def map(
        self,
        pairs: Iterable[Pair] | AsyncIterable[Pair],
        *,
        concurrency: int = CONCURRENCY,
        errors: Literal["yield"],
        **options: Unpack[MapOptions],
    ) -> AsyncIterator[ScoreResult | ScorelineError]: ...

    def map(self, pairs: Iterable[Pair] | AsyncIterable[Pair], **options: Any) -> AsyncIterator[Any]:
        return map_async(mapping.map(self._service, pairs, **options), self)

    explained(map, mapping.map, RETURNED)

    @overload
    def decide_many(
        self,
        states: Iterable[State] | AsyncIterable[State],
        questions: Questions,
        *,
        concurrency: int = CONCURRENCY,
        errors: Literal["raise"] = "raise",
        **options: Unpack[DecideManyOptions],
    ) -> AsyncIterator[Decision]: ...

    @overload
    def decide_many(
        self,
        states: Iterable[State] | AsyncIterable[State],
        questions: Questions,
        *,
        concurrency: int = CONCURRENCY,
        errors: Literal["yield"],
        **options: Unpack[DecideManyOptions],
    ) -> AsyncIterator[Decision | ScorelineError]: ...

    def decide_many(
        self, states: Iterable[State] | AsyncIterable[State], questions: Questions, **options: Any
    ) -> AsyncIterator[Any]:
        return map_async(mapping.decide_many(self._service, states, questions, **options), self)

    explained(decide_many, mapping.decide_many, RETURNED)

    evaluate = _awaited(evaluating.evaluate)

    async def carry_out(self, flow: Flow[T]) -> T:
        """Carry out the commands of a flow and return its value."""
        outcome: Any = None
        failure: BaseException | None = None
        async with AsyncExitStack() as streams:
            while True:
                try:
                    command = flow.send(outcome) if failure is None else flow.throw(failure)
                except StopIteration as end:
                    value: T = end.value
                    return value
                outcome, failure = await self._outcome(command, streams)

    async def _iterate(self, flow: Iteration[T]) -> AsyncIterator[T]:
        """Carry out the commands of an iteration and yield its values."""
        outcome: Any = None
        failure: BaseException | None = None
        async with AsyncExitStack() as streams:
            while True:
                try:
                    command = flow.send(outcome) if failure is None else flow.throw(failure)
                except StopIteration:
                    return
                outcome = failure = None
                if isinstance(command, Give):
                    yield command.value
                else:
                    outcome, failure = await self._outcome(command, streams)

    async def _outcome(self, command: Command[Any], streams: AsyncExitStack) -> tuple[Any, BaseException | None]:
        """Return what came of a command: a value, or an error that the flow is to hear of."""
        try:
            return await self._carry_out(command, streams), None
        except BaseException as error:
            return None, error

    async def _carry_out(self, command: Command[Any], streams: AsyncExitStack) -> Any:
        try:
            match command:
                case Exchange(request, seconds):
                    content = request.body.async_content() if request.body else None
                    response = await self._http.request(**request_settings(request, seconds), content=content)
                    return Answer(response.status_code, response.headers, response.content)
                case Sleep(seconds):
                    return await asyncio.sleep(seconds)
                case Compute(function):
                    return await asyncio.to_thread(function)
                case Open(request, reading, seconds):
                    wanted = self._http.build_request(**request_settings(request, seconds))
                    response = await self._http.send(wanted, stream=True)
                    streams.push_async_callback(response.aclose)
                    if not response.is_success:
                        return Answer(response.status_code, response.headers, await response.aread())
                    return Stream(response.status_code, response, _read(response, reading))
                case Next(stream):
                    return await anext(stream.parts, None)
                case Close(stream):
                    return await stream.handle.aclose()
                case Mapping():
                    return [found async for found in map_async(command, self)]
        except httpx2.TransportError as error:
            raise unreachable(self._service, error) from error


def _read(response: httpx2.Response, reading: Reading) -> AsyncIterator[Any]:
    """Return an iterator over the parts of an answer. It reads nothing before its first part is wanted."""
    match reading:
        case Reading.EVENTS:
            return aiter(httpx2.EventSource(response))
        case Reading.CHUNKS:
            return response.aiter_bytes()
