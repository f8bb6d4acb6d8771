"""Work on batches in the background of an API process: read their lines, write their results, and end them.

Any number of processes may do this. Each takes a batch of the tenant whose turn it is, and works on it for a short
time, so that all batches make progress. It works for a few tenants at the same time, so that lines that take long to
read hold up no other tenant. Whatever a process has not committed when it is killed, another one does again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

import structlog

from api.batches.answering import Needed, encode_lines
from api.batches.blocks import MissingFileError
from api.batches.feeder import Feeder
from api.results import Shown
from api.service import Service
from jobs.file_batches.claiming import claim_batch, has_expired, read_again, release_batch
from jobs.file_batches.feeding import cancel_jobs, start_batch
from jobs.file_batches.reading import BatchRecord
from jobs.file_batches.tables import BatchStatus
from jobs.file_batches.writing import (
    EndedLine,
    end_batch,
    ended_lines,
    finalize_batch,
    is_written,
    write_lines,
)
from jobs.files.reading import read_bytes
from jobs.queue.inputs import work_keys
from jobs.store.database import Database, StorageUnavailable
from scoring.error_codes import ErrorCode, RequestError
from scoring.options import Shape
from scoring.tokenizing.tokenization import TextTokenizer

TURN_SECONDS = 1.0
"""How long a process works on a batch before it looks for another one."""

TURNS_AT_ONCE = 4
"""The tenants on whose batches a process works at the same time. Each turn holds a block of lines in memory."""

FAILED_SECONDS = 10.0
"""How long a batch is left alone after an unexpected error."""

MAX_PAUSE_SECONDS = 10.0
"""How long a batch is left alone at most while there is no room for its lines: their results are to be written."""

BEGINNING_BYTES = 4_096
WINDOW_BYTES = 2**19

log = structlog.stdlib.get_logger("api.batches")


class BatchWork:
    """The background task. For use within one event loop."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._store = service.store
        self._feeder = Feeder(service)
        self._tenants: set[str] = set()  # on whose batches this process works at present
        self._turn_has_ended = asyncio.Event()
        # When there may be room again for the lines of a batch, by its id, on the monotonic clock.
        self._room_at: dict[str, float] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as turns:
            while True:
                self._turn_has_ended.clear()
                try:
                    batch = await self._claim()
                except StorageUnavailable:
                    batch = None
                if batch is not None:
                    self._tenants.add(batch.tenant)
                    turns.create_task(self._take_turn(batch))
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._service.reading.api.batch_poll_seconds):
                        await self._turn_has_ended.wait()

    async def _claim(self) -> BatchRecord | None:
        """Return a batch of a tenant whose other batches are not worked on here; None if there is none, or no room."""
        if len(self._tenants) >= TURNS_AT_ONCE:
            return None
        service = self._service
        # Others leave the batch alone until it is released, or as long as a lease lasts: a step takes a second or two.
        seconds = self._store.database.settings.lease_seconds
        but_of = frozenset(self._tenants)
        claiming = asyncio.ensure_future(
            service.threads.sql(
                claim_batch, self._store.database, service.reading.models.catalogue.names, seconds, but_of=but_of
            )
        )
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            with contextlib.suppress(StorageUnavailable):
                if (batch := await claiming) is not None:
                    await service.threads.sql(release_batch, self._store.database, batch.id, 0.0)
            raise

    async def _take_turn(self, batch: BatchRecord) -> None:
        """Work on a batch, and let any process work on it again."""
        pause = FAILED_SECONDS
        try:
            try:
                pause = await self._work_on(batch)
            except StorageUnavailable:
                pause = self._service.reading.api.batch_poll_seconds
                raise
            except asyncio.CancelledError:
                pause = 0.0
                raise
            except Exception:
                log.exception("work on a batch failed, and is tried again", batch_id=batch.id)
            finally:
                await self._service.threads.sql(release_batch, self._store.database, batch.id, pause)
        except StorageUnavailable:
            log.warning("work on a batch stops until the database is back", batch_id=batch.id)
        finally:
            self._tenants.discard(batch.tenant)
            self._turn_has_ended.set()

    async def _work_on(self, batch: BatchRecord | None) -> float:
        """Work on a batch for a while. Returns for how many seconds to leave it alone."""
        until = time.monotonic() + TURN_SECONDS
        pause = 0.0
        while batch is not None and not batch.status.ended:
            try:
                pause, is_busy = await self._step(batch)
            except MissingFileError:
                await self._end(batch, "the input file is gone")
                return 0.0
            if not is_busy:
                return pause
            if time.monotonic() >= until:
                return 0.0
            batch = await self._store.in_turn(batch.tenant, read_again, batch.id)
        return pause

    async def _step(self, batch: BatchRecord) -> tuple[float, bool]:
        """Take the next step of everything that is to be done for a batch.

        Returns for how many seconds to leave it alone, and whether more can be done at once.
        """
        match batch.status:
            case BatchStatus.VALIDATING:
                await self._validate(batch)
                return 0.0, True
            case BatchStatus.FINALIZING:
                await self._end(batch)
                return 0.0, False
        pause = 0.0
        is_busy = not batch.is_read
        if not batch.is_read:
            pause = await self._feed(batch)
            is_busy = pause == 0.0
        if batch.status is BatchStatus.CANCELLING:
            cancelled = await self._store.in_turn(batch.tenant, cancel_jobs, batch)
            self._service.acceptance.ringer.announce(cancelled)
            is_busy |= bool(cancelled)
        is_busy |= await self._write(batch)
        if await self._store.in_turn(batch.tenant, _is_written_now, batch.id):
            if batch.status is BatchStatus.CANCELLING:
                await self._end(batch)
            else:
                await self._store.in_turn(batch.tenant, finalize_batch, batch)
            return 0.0, True
        return pause or self._service.reading.api.batch_poll_seconds, is_busy

    async def _validate(self, batch: BatchRecord) -> None:
        """Begin with a batch whose file can be read as lines."""
        reason = await self._store.in_turn(batch.tenant, _why_unreadable, batch)
        if reason is None:
            await self._store.in_turn(batch.tenant, start_batch, batch)
        else:
            await self._end(batch, reason)

    async def _feed(self, batch: BatchRecord) -> float:
        """Read the next lines of a batch. Returns for how many seconds no more can be read; mostly 0."""
        if batch.status is BatchStatus.CANCELLING:
            await self._feeder.refuse(batch, ErrorCode.BATCH_CANCELLED)
        elif await self._store.in_turn(batch.tenant, has_expired, batch.id):
            await self._feeder.refuse(batch, ErrorCode.BATCH_EXPIRED)
        elif batch.model not in self._service.reading.models.catalogue.names:
            # This process is here to write results. The lines are read by one that serves the model of the batch.
            return self._service.reading.api.batch_poll_seconds
        else:
            return await self._feed_if_room(batch)
        return 0.0

    async def _feed_if_room(self, batch: BatchRecord) -> float:
        """Make jobs of lines, unless there was no room for them a moment ago: they would be tokenized for nothing."""
        now = time.monotonic()
        self._room_at = {batch_id: at for batch_id, at in self._room_at.items() if at > now}
        if batch.id in self._room_at:
            return self._room_at[batch.id] - now
        pause = min(await self._feeder.feed(batch), MAX_PAUSE_SECONDS)
        if pause:
            self._room_at[batch.id] = time.monotonic() + pause
        return pause

    async def _write(self, batch: BatchRecord) -> bool:
        """Write some of the lines that can be written. Returns whether there may be more of them."""
        lines, may_be_more = await self._store.in_turn(batch.tenant, ended_lines, batch)
        if not lines:
            return False
        needed = Needed(
            await self._store.in_turn(batch.tenant, _inputs_of, batch, lines),
            await self._store.in_turn(batch.tenant, self._provenances_of, lines),
            await self._tokenizers_of(batch, lines),
            self._service.receipt_keys,
            self._service.results.counts,
        )
        written = await self._service.threads.text_of(batch.tenant, encode_lines, batch, lines, needed)
        if await self._store.in_turn(batch.tenant, write_lines, batch, lines[-1].number + 1, written):
            self._service.metrics.count_lines(completed=written.completed, failed=written.failed)
        return may_be_more

    async def _tokenizers_of(self, batch: BatchRecord, lines: Sequence[EndedLine]) -> dict[str, TextTokenizer]:
        """Return the tokenizers by which the answers of completions become texts, by the ids of their jobs.

        Those are missing whose model can't be loaded. Raises RequestError OVERLOADED.
        """
        jobs = [line.result[0] for line in lines if line.result is not None]
        ids = [job.id for job in jobs if job.options.shape is Shape.COMPLETION]
        found = dict[str, TextTokenizer]()
        for job_id, key in (await self._store.in_turn(batch.tenant, work_keys, ids) if ids else {}).items():
            entry = self._service.reading.models.catalogue.by_key.get(key)
            if entry is None:
                continue
            try:
                found[job_id] = (await self._service.bodies.loader.loaded(entry)).tokenizer
            except RequestError as error:
                if error.code is not ErrorCode.MODEL_UNAVAILABLE:
                    raise
        return found

    def _provenances_of(self, _: Database, lines: Sequence[EndedLine]) -> dict[int, Shown]:
        """Return what computed the scores of the lines that ask for it, by number."""
        pages = {line.number: line.result[1] for line in lines if line.result is not None}
        return {
            number: self._service.results.provenances.look_up(page.provenances)
            for number, page in pages.items()
            if page is not None and page.job.options.needs_provenance
        }

    async def _end(self, batch: BatchRecord, error_message: str | None = None) -> None:
        ended = await self._store.in_turn(batch.tenant, end_batch, batch, error_message)
        if ended is not None:
            self._service.metrics.count_batch(ended.status)
            log.info("a batch has ended", batch_id=batch.id, status=str(ended.status))


def _why_unreadable(db: Database, batch: BatchRecord) -> str | None:
    """Return why the file of a batch can't be read as lines, or None if it can."""
    if batch.total_lines == 0:
        return "the file has no lines"
    if b"\0" in read_bytes(db, batch.input_file_id, 0, BEGINNING_BYTES):
        return "the file is not text in UTF-8: its beginning holds a zero byte"
    return None


def _is_written_now(db: Database, batch_id: str) -> bool:
    batch = read_again(db, batch_id)
    return batch is not None and is_written(db, batch)


def _inputs_of(db: Database, batch: BatchRecord, lines: Sequence[EndedLine]) -> dict[int, bytes]:
    """Return the input lines whose answers hold their documents, by number."""
    wanted = {
        line.number: (line.ranking["start"], line.ranking["bytes"])
        for line in lines
        if line.ranking is not None and "start" in line.ranking
    }
    found: dict[int, bytes] = {}
    begin, window = 0, b""  # many lines are read at a time
    for number, (start, size) in wanted.items():
        if start + size > begin + len(window):
            begin, window = start, read_bytes(db, batch.input_file_id, start, max(size, WINDOW_BYTES))
        found[number] = window[start - begin : start - begin + size]
    return found
