"""Creating and cancelling file batches. A batch is committed before its 200 is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, insert, select, update

from jobs.file_batches.reading import BatchRecord, find_batch
from jobs.file_batches.tables import OPEN, BatchStatus, file_batches
from jobs.files.creation_keys import CreationKey, take_creation_key
from jobs.files.reading import file_not_found, find_file
from jobs.files.receiving import check_room_for_output, too_many
from jobs.files.tables import Purpose
from jobs.store.clock import NOW
from jobs.store.database import Database
from jobs.store.identifiers import new_file_batch_id
from jobs.store.records import Idempotency
from jobs.store.webhook_events import Webhook
from jobs.webhooks.outbox import pack_webhook
from scoring.error_codes import ErrorCode, RequestError


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch that is wanted."""

    tenant: str
    model: str
    endpoint: str
    input_file_id: str
    completion_window: str
    window_seconds: float
    metadata: Mapping[str, str]
    webhook: Webhook | None
    idempotency: Idempotency | None


def create_batch(
    db: Database,
    wanted: NewBatch,
    max_open: int,
    max_files: int | None = None,
    no_room: RequestError | None = None,
) -> tuple[BatchRecord, bool]:
    """Store a batch. Returns it, and whether an earlier request with the same Idempotency-Key had made it.

    max_open: how many batches that have not ended the tenant may have. max_files: how many files it may have, if they
    are limited. no_room: the error of a new batch, if the tenant stores as much as it may. Raises RequestError
    FILE_NOT_FOUND, INVALID_FILE, QUOTA_EXCEEDED, IDEMPOTENCY_KEY_REUSED.
    """
    batch_id = new_file_batch_id()
    with db.write() as tx:
        if wanted.idempotency is not None:
            key = wanted.idempotency
            earlier = take_creation_key(tx, CreationKey(wanted.tenant, key.key, key.body_hash, batch_id))
            if earlier is not None:
                return find_batch(tx, wanted.tenant, earlier.made_id), True
        try:
            # Locked, so that nobody deletes it meanwhile.
            file = find_file(tx, wanted.tenant, wanted.input_file_id, lock=True)
        except RequestError:
            raise file_not_found("input_file_id") from None
        if file.purpose is not Purpose.BATCH:
            message = f'the purpose of the input file must be "batch", not "{file.purpose}"'
            raise RequestError(ErrorCode.INVALID_FILE, message, param="input_file_id")
        of_tenant = select(func.count()).select_from(file_batches).where(file_batches.c.tenant == wanted.tenant, OPEN)
        if int(tx.scalar(of_tenant) or 0) >= max_open:
            message = f"this tenant has {max_open} batches that have not ended, the most it may have"
            raise too_many(message, "max_open_batches_per_tenant")
        if max_files is not None:
            check_room_for_output(tx, wanted.tenant, max_files)
        if no_room is not None:
            raise no_room
        tx.execute(
            insert(file_batches).values(
                id=batch_id,
                tenant=wanted.tenant,
                model=wanted.model,
                endpoint=wanted.endpoint,
                status=BatchStatus.VALIDATING.value,
                input_file_id=file.id,
                completion_window=wanted.completion_window,
                created_at=NOW,
                expires_at=NOW + wanted.window_seconds,
                metadata=dict(wanted.metadata),
                webhook=pack_webhook(wanted.webhook),
                total_lines=file.lines,
                input_bytes=file.bytes,
                read_bytes=0,
                read_lines=0,
                written_lines=0,
                completed_lines=0,
                failed_lines=0,
                prompt_tokens=0,
                cached_tokens=0,
                next_step_at=NOW,
            )
        )
        return find_batch(tx, wanted.tenant, batch_id), False


def cancel_batch(db: Database, tenant: str, batch_id: str) -> BatchRecord:
    """Have a batch cancelled. One whose lines are all written, or that has ended, stays as it is.

    Raises RequestError BATCH_NOT_FOUND.
    """
    with db.write() as tx:
        batch = find_batch(tx, tenant, batch_id, lock=True)
        if batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
            tx.execute(
                update(file_batches)
                .where(file_batches.c.id == batch_id)
                .values(
                    status=BatchStatus.CANCELLING.value,
                    cancelling_at=NOW,
                    next_step_at=NOW,
                )
            )
        return find_batch(tx, tenant, batch_id)
