"""Turn the lines of batches into jobs: read a block of a file, read what each line asks for, and store the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from api.answers.batch_lines import encode_refusal, encode_unscored
from api.answers.batches import pack_reason
from api.batches.blocks import Block, next_block
from api.batches.reading import InputLine, ReadLine, custom_id_of, read_lines, refused_line, too_long
from api.callers.authentication import Principal
from api.callers.storage_quota import full
from api.service import Service
from api.text_process.body_reader import SHORT_BYTES
from api.text_process.process import ReaderKilledError
from jobs.file_batches.feeding import Fed, NewLine, feed, say_why_it_waits
from jobs.file_batches.reading import BatchRecord
from jobs.tenancy.tenants import Tenant, find_tenant
from scoring.error_codes import ErrorCode, RequestError, invalid

PAUSE_SECONDS = 5.0
"""How long a batch waits while there is no room for its jobs, unless an error says otherwise."""

KILLED_TIMES = 5
"""A line is refused once the process that read it alone was killed so often, with a pause after each time."""

log = structlog.stdlib.get_logger("api.batches")


class Feeder:
    """Feeds the queue with lines of batches. For use within one event loop."""

    def __init__(self, service: Service) -> None:
        self._service = service
        # Batches with lines that ended the process that read them, so that no line of them is read in a thread: the
        # place of the last line whose process was killed, and how often it was.
        self._dangerous: dict[str, tuple[int, int]] = {}

    async def feed(self, batch: BatchRecord) -> float:
        """Turn the next lines of a batch into jobs. Returns for how many seconds nothing more can be done; mostly 0.

        Raises StorageUnavailable, MissingFileError.
        """
        tracer = self._service.tracer
        if tracer is None:
            return await self._feed(batch, None)
        attributes = {"scoreline.file_batch.id": batch.id}
        with (
            tracer.span("read lines of a batch", attributes=attributes) as span,
            structlog.contextvars.bound_contextvars(**span.log_fields),
        ):
            return await self._feed(batch, span.traceparent)

    async def _feed(self, batch: BatchRecord, traceparent: str | None) -> float:
        threads, db = self._service.threads, self._service.store.database
        most = self._service.reading.limits.max_line_bytes
        room = await threads.sql_of(batch.tenant, self._service.acceptance.storage_quota.room, batch.tenant)
        if room <= 0:  # Its lines would be read for nothing.
            return await self._wait_for_room(batch)
        block = await threads.sql_of(batch.tenant, next_block, db, batch, most)
        principal = await threads.sql_of(batch.tenant, _principal, self._service, batch.tenant)
        try:
            read = await self._read(batch, principal, block.lines)
            read = read[: await self._admitted(batch, read)]
            if any(one.submission is not None and one.submission.options.artefact is not None for one in read):
                read = await threads.sql_of(batch.tenant, _refuse_other_weights, self._service, read)
        except RequestError as error:
            # Nothing is wrong with the lines: there is no room for them, or nobody to read or to score them.
            return await self._wait(batch, error)
        lines = [_new_line(batch, line, one, traceparent) for line, one in zip(block.lines, read, strict=False)]
        fitting = _fitting(lines, room)
        if lines and not fitting:
            return await self._wait_for_room(batch)
        fed = await self._store(batch, block, fitting)
        return fed.pause_seconds

    async def _admitted(self, batch: BatchRecord, read: Sequence[ReadLine]) -> int:
        """Return how many of the first lines can be jobs now: those before one for whose model there is no room.

        Raises RequestError if that is the first line.
        """
        admitted = set[tuple[str, str]]()
        for place, submission in enumerate(one.submission for one in read):
            if submission is None or (model := (submission.model, submission.work_key)) in admitted:
                continue
            try:
                door = self._service.acceptance.doors.of(submission)
                await self._service.threads.sql_of(batch.tenant, door.admission.admit_upload, submission)
            except RequestError:
                if place == 0:
                    raise
                return place
            admitted.add(model)
        return len(read)

    async def _wait_for_room(self, batch: BatchRecord) -> float:
        """Have a batch wait because its tenant has no room for further lines, as :meth:`_wait` does."""
        reason = (
            f"{full(self._service.acceptance.storage_quota.most)}; further lines are read when something is deleted"
        )
        return await self._wait(batch, RequestError(ErrorCode.QUOTA_EXCEEDED, reason))

    async def _wait(self, batch: BatchRecord, error: RequestError) -> float:
        """Have a batch say why it waits, if that may take long. Returns for how many seconds it waits."""
        log.info("a batch waits", batch_id=batch.id, reason=error.message)
        if error.code in (ErrorCode.MODEL_UNAVAILABLE, ErrorCode.QUOTA_EXCEEDED):
            await self._service.store.in_turn(batch.tenant, say_why_it_waits, batch, pack_reason(error))
        return error.retry_after or PAUSE_SECONDS

    async def refuse(self, batch: BatchRecord, code: ErrorCode) -> None:
        """Refuse the next lines of a batch that has expired, or that is cancelled."""
        threads, db = self._service.threads, self._service.store.database
        block = await threads.sql_of(batch.tenant, next_block, db, batch, self._service.reading.limits.max_line_bytes)
        lines = await threads.text_of(batch.tenant, _refused_lines, batch, block.lines, code)
        await self._store(batch, block, lines, is_late=code is ErrorCode.BATCH_EXPIRED)

    async def _store(self, batch: BatchRecord, block: Block, lines: list[NewLine], *, is_late: bool = False) -> Fed:
        """Store lines, and move the batch behind them. lines: the first lines of the block, or all of them."""
        stop_bytes, stop_lines = block.stop_bytes, block.stop_lines
        if len(lines) < len(block.lines):
            stop_bytes, stop_lines = lines[-1].stop, lines[-1].number + 1
        fed = await self._service.store.in_turn(
            batch.tenant,
            feed,
            batch,
            lines,
            read_bytes=stop_bytes,
            read_lines=stop_lines,
            refuse_repeated=lambda line: _refuse_repeated(batch, line),
            is_late=is_late,
        )
        self._service.acceptance.storage_quota.add(batch.tenant, fed.stored_bytes)
        for submission in fed.submissions:
            self._service.acceptance.ringer.ring(submission.model)
            self._service.metrics.count_accepted(submission, submission.reused_items)
        return fed

    async def _read(self, batch: BatchRecord, principal: Principal, lines: Sequence[InputLine]) -> list[ReadLine]:
        """Read the first lines, or all of them. Raises RequestError if that is not possible now.

        If they take too long or need too much memory, or their process is killed, half as many are read. A line for
        which that holds is refused, as it would be if it were sent alone; if its process is killed, after some times.
        """
        if not lines:
            return []
        if lines[0].content is None:
            return [refused_line(None, too_long(self._service.reading, lines[0]))]
        readable = list(lines)
        for place, line in enumerate(lines):
            if line.content is None:
                readable = readable[:place]
                break
        while True:
            try:
                return await self._read_in_process(batch, principal, readable)
            except RequestError as error:
                if error.code is not ErrorCode.REQUEST_TOO_LARGE and not isinstance(error, ReaderKilledError):
                    raise
                self._dangerous.setdefault(batch.id, (0, 0))
                if len(readable) == 1:
                    refusal = self._after_killing(batch, error) if isinstance(error, ReaderKilledError) else error
                    return [refused_line(custom_id_of(readable[0].content or b""), refusal)]
                readable = readable[: len(readable) // 2]

    def _after_killing(self, batch: BatchRecord, error: ReaderKilledError) -> RequestError:
        """Return why a line is refused whose process was killed too often. Before, the error is raised again."""
        place, times = self._dangerous[batch.id]
        times = times + 1 if place == batch.read_bytes else 1
        self._dangerous[batch.id] = (batch.read_bytes, times)
        if times < KILLED_TIMES:
            error.retry_after = PAUSE_SECONDS
            raise error
        message = f"the process that read this line was killed {times} times; it may need more memory than there is"
        return RequestError(ErrorCode.REQUEST_TOO_LARGE, message)

    async def _read_in_process(
        self, batch: BatchRecord, principal: Principal, lines: Sequence[InputLine]
    ) -> list[ReadLine]:
        service = self._service
        body = b"".join((line.content or b"") + b"\n" for line in lines)
        places = [replace(line, content=None) for line in lines]
        if len(body) <= SHORT_BYTES and batch.id not in self._dangerous:
            return await service.bodies.loader.reading(
                lambda: service.threads.text_of(
                    batch.tenant, read_lines, service.reading, body, principal, batch.endpoint, places
                )
            )
        return await service.bodies.loader.reading(
            lambda: service.bodies.process.read(batch.tenant, read_lines, body, principal, batch.endpoint, places)
        )


def _principal(service: Service, tenant: str) -> Principal:
    """Return the tenant of a batch as the sender of its lines."""
    return Principal(find_tenant(service.store.database, tenant) or Tenant(tenant), frozenset(), None)


def _refuse_other_weights(service: Service, read: Sequence[ReadLine]) -> list[ReadLine]:
    """Return the lines; those are refused whose artefact was made for other weights than the live workers have."""
    found: list[ReadLine] = []
    for line in read:
        try:
            if line.submission is not None:
                service.acceptance.doors.of(line.submission).admission.refuse_other_weights(line.submission)
            found.append(line)
        except RequestError as error:
            found.append(refused_line(line.custom_id, error))
    return found


def _new_line(batch: BatchRecord, line: InputLine, read: ReadLine, traceparent: str | None) -> NewLine:
    if read.error is None:
        submission = read.submission
        if submission is not None and traceparent is not None:
            submission = replace(submission, traceparent=traceparent)
        return NewLine(
            line.number,
            line.stop,
            read.custom_id,
            submission,
            ranking=read.ranking,
            answer_bytes=read.answer_bytes,
        )
    refusal = encode_refusal(batch.id, line.number, read.custom_id, RequestError(**read.error))
    return NewLine(line.number, line.stop, read.custom_id, refusal=refusal, answer_bytes=len(refusal))


def _fitting(lines: Sequence[NewLine], room: int) -> list[NewLine]:
    """Return the first lines, as many as there is room for."""
    fitting = []
    for line in lines:
        room -= line.stored_bytes
        if room < 0:
            break
        fitting.append(line)
    return fitting


def _refuse_repeated(batch: BatchRecord, line: NewLine) -> bytes:
    error = invalid("an earlier line of the file has the same custom_id", "custom_id")
    return encode_refusal(batch.id, line.number, line.custom_id, error)


def _refused_lines(batch: BatchRecord, lines: Sequence[InputLine], code: ErrorCode) -> list[NewLine]:
    refused = []
    for line in lines:
        custom_id = None if line.content is None else custom_id_of(line.content)
        refusal = encode_unscored(batch.id, line.number, custom_id, code)
        refused.append(NewLine(line.number, line.stop, None, refusal=refusal))
    return refused
