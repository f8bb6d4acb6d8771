"""Removing what a tenant has stored, and the tenant itself. A removal that is cut short can be repeated."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass

from sqlalchemy import delete, func, select, update

from jobs.file_batches.reading import VISIBLE_BATCH
from jobs.file_batches.removal import delete_batch
from jobs.file_batches.tables import file_batches
from jobs.files.removal import remove_files
from jobs.files.tables import creation_keys, files
from jobs.queue.ending import remove_at_once
from jobs.queue.removal import JOBS_PER_STEP, remove_jobs, remove_prefixes
from jobs.queue.reuse import forget_tenant
from jobs.store.database import Database
from jobs.store.tables import api_keys, flows, jobs, tenants
from jobs.tenancy.changes import Action, record_change
from jobs.tenancy.keys import revoke_keys
from jobs.tenancy.ownership import VISIBLE, owned
from jobs.tenancy.tenants import DEFAULT_TENANT, find_tenant, no_such_tenant, suspend_tenant
from jobs.webhooks.tables import PENDING, DeliveryState, webhook_deliveries, webhook_endpoints, webhook_secrets
from scoring.error_codes import RequestError


@dataclass(frozen=True, slots=True)
class Stored:
    """How much of a tenant is stored."""

    jobs: int  # with calls and lines of batches
    batches: int
    files: int

    def __add__(self, other: Stored) -> Stored:
        return Stored(self.jobs + other.jobs, self.batches + other.batches, self.files + other.files)


def count_stored(db: Database, tenant: str) -> Stored:
    """Return how much of a tenant is stored. Raises ValueError if there is no such tenant, StorageUnavailable."""
    if find_tenant(db, tenant) is None:
        raise no_such_tenant(tenant)
    with db.read(slow=True) as tx:
        counts = (
            tx.scalar(select(func.count()).select_from(table).where(table.c.tenant == tenant, condition)) or 0
            for table, condition in (
                (jobs, VISIBLE),
                (file_batches, VISIBLE_BATCH),
                (files, files.c.remove_at.is_(None)),
            )
        )
        return Stored(*counts)


def purge_tenant(db: Database, tenant: str) -> Stored:
    """Remove all work of a tenant: jobs, batches and files, what waits and what is in progress, and all webhooks.

    Its keys, limits and webhook secrets stay. Webhooks that are still to be sent are not sent. Returns what was
    removed. Raises ValueError if there is no such tenant, StorageUnavailable.
    """
    removed = count_stored(db, tenant)
    _remove_work(db, tenant)
    with db.write() as tx:
        record_change(tx, Action.TENANT_PURGED, tenant, asdict(removed))
    return removed


def delete_tenant(db: Database, tenant: str, key_cache_seconds: float) -> Stored:
    """Revoke the keys of a tenant, purge it, and remove it with its keys and secrets.

    key_cache_seconds: for how long API processes may still know its keys. What they accept until then is purged, too:
    they look at a key again just before they accept what it sends.
    Returns what was removed. Raises ValueError, StorageUnavailable.
    """
    if tenant == DEFAULT_TENANT:
        raise ValueError(f"the tenant {tenant!r} can't be deleted: requests with the bootstrap key are its own")
    suspend_tenant(db, tenant)
    with db.write() as tx:
        revoke_keys(tx, api_keys.c.tenant == tenant)
    removed = purge_tenant(db, tenant)
    time.sleep(2 * key_cache_seconds)  # until no key is known, and what was being accepted then is stored
    removed += count_stored(db, tenant)
    _remove_work(db, tenant)
    with db.write(slow=True) as tx:
        for table in (webhook_secrets, flows, api_keys):
            tx.execute(delete(table).where(table.c.tenant == tenant))
        tx.execute(delete(tenants).where(tenants.c.name == tenant))
        record_change(tx, Action.TENANT_DELETED, tenant)
    return removed


def _remove_work(db: Database, tenant: str) -> None:
    # So none is sent while work is removed, which takes longer. An ended job has its delivery as long as it is seen.
    with db.write(slow=True) as tx:
        pending = (webhook_deliveries.c.tenant == tenant, PENDING)
        tx.execute(update(webhook_deliveries).where(*pending).values(state=DeliveryState.SKIPPED.value, claim_id=None))
    for batch_id in iter(lambda: _first_batch(db, tenant), None):
        try:
            delete_batch(db, tenant, batch_id, most_steps=sys.maxsize, silently=True)
        except RequestError:
            continue  # Another process was faster.
    while _end_some_jobs(db, tenant):
        pass
    while remove_jobs(db, jobs.c.tenant == tenant).found:
        pass
    with db.write(slow=True) as tx:
        tx.execute(update(files).where(files.c.tenant == tenant).values(remove_at=0.0))
        tx.execute(delete(creation_keys).where(creation_keys.c.tenant == tenant))
        tx.execute(delete(webhook_endpoints).where(webhook_endpoints.c.tenant == tenant))
    while remove_files(db, files.c.tenant == tenant):
        pass
    _remove_deliveries(db, tenant)
    while remove_prefixes(db):
        pass
    forget_tenant(db, tenant)


def _first_batch(db: Database, tenant: str) -> str | None:
    with db.read() as tx:
        found: str | None = tx.scalar(
            select(file_batches.c.id).where(file_batches.c.tenant == tenant, VISIBLE_BATCH).limit(1)
        )
        return found


def _end_some_jobs(db: Database, tenant: str) -> bool:
    with db.write(slow=True) as tx:
        some = list(tx.scalars(select(jobs.c.id).where(owned(tenant)).limit(JOBS_PER_STEP)))
        if some:
            remove_at_once(tx, some, silently=True)
        return bool(some)


def _remove_deliveries(db: Database, tenant: str) -> None:
    some = select(webhook_deliveries.c.id).where(webhook_deliveries.c.tenant == tenant).limit(JOBS_PER_STEP)
    removed = True
    while removed:
        with db.write(slow=True) as tx:
            removed = tx.execute(delete(webhook_deliveries).where(webhook_deliveries.c.id.in_(some))).rowcount > 0
