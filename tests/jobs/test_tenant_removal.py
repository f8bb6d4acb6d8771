"""What is removed with a tenant, and what stays."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Table, select, update

from jobs.file_batches.tables import file_batches
from jobs.files.reading import get_file
from jobs.invariants import find_violations
from jobs.queue.accept import accept
from jobs.queue.claims.claim import claim
from jobs.queue.read import get_job
from jobs.store.database import Database
from jobs.store.records import Origin
from jobs.store.tables import changes, jobs, metadata, provenances
from jobs.store.webhook_events import BatchEvent, Event, Webhook
from jobs.tenancy.changes import Action, list_changes
from jobs.tenancy.keys import Scope, create_key, find_key
from jobs.tenancy.tenants import DEFAULT_TENANT, create_tenant, find_tenant
from jobs.tenant_removal import Stored, delete_tenant, purge_tenant
from jobs.webhooks.outbox import pack_webhook
from jobs.webhooks.secrets import live_secrets
from jobs.webhooks.tables import webhook_deliveries
from scoring.error_codes import RequestError
from tests.jobs.interleaving import once_after
from tests.jobs.test_file_batches import new_batch, step
from tests.jobs.work import CARD, finish_all, keyed, submission, submit

ACME, BOLT = "acme", "bolt"
HOOK = Webhook("https://hooks.example/x", "hooks.example", (Event.SUCCEEDED, Event.CANCELLED))


def fill(store: Database, tenant: str) -> list[str]:
    """Store something of every kind for a tenant. Returns the ids of its jobs."""
    create_tenant(store, tenant)
    key, _ = create_key(store, tenant, "laptop", list(Scope))
    live_secrets(store, tenant, lambda: f"whsec_of_{tenant}")
    done = submit(store, tenant=tenant, webhook=HOOK, prefix=(1, 2, len(tenant)))
    claimed = claim(store, "worker", CARD, 1_000_000)
    assert claimed is not None
    finish_all(store, claimed)
    batch = new_batch(store, lines=4, tenant=tenant)
    step(store, batch, 2)
    waiting = submit(store, tenant=tenant, webhook=HOOK)
    call = submit(store, tenant=tenant, origin=Origin.CALL)
    once = accept(store, keyed("once", tenant=tenant)).job_id
    assert key
    return [done, waiting, call, once]


def left(store: Database, tenant: str) -> dict[str, int]:
    """Return how many rows each table has that belong to a tenant, or to something of a tenant that is gone."""
    found: dict[str, int] = {}
    with store.read() as tx:
        for table in metadata.sorted_tables:
            if table not in (changes, provenances) and (count := _rows_of(tx, table, tenant)):
                found[table.name] = count
    return found


def _rows_of(tx: Any, table: Table, tenant: str) -> int:
    name = table.c.get("tenant", table.c.name if table.name == "tenants" else None)
    return 0 if name is None else len(tx.execute(select(name).where(name == tenant)).all())


def lines_of(store: Database, tenant: str) -> set[str]:
    """Return the jobs of the lines of a tenant's batches."""
    with store.read() as tx:
        lines = select(jobs.c.id).where(jobs.c.tenant == tenant, jobs.c.origin == Origin.LINE.value)
        return set(tx.scalars(lines))


def test_a_purge_removes_all_work_of_a_tenant_and_nothing_of_another(store: Database) -> None:
    gone, kept = fill(store, ACME), fill(store, BOLT)
    before = left(store, BOLT)
    assert purge_tenant(store, ACME) == Stored(jobs=6, batches=1, files=1)
    for job_id in gone:
        with pytest.raises(RequestError):
            get_job(store, ACME, job_id)
    assert left(store, ACME) == {"tenants": 1, "api_keys": 1, "webhook_secrets": 1, "lanes": 1}
    assert left(store, BOLT) == before
    assert [get_job(store, BOLT, job_id).id for job_id in kept] == kept
    assert find_violations(store, full=True) == []
    claimed = claim(store, "worker", CARD, 1_000_000)
    assert claimed is not None
    assert {job.id for job in claimed.jobs} == set(kept[1:]) | lines_of(store, BOLT)
    assert purge_tenant(store, ACME) == Stored(0, 0, 0), "a purge can be repeated"


def test_a_purge_leaves_no_webhook_to_be_sent_while_it_goes_on(store: Database) -> None:
    fill(store, ACME)
    asked = Webhook(HOOK.url, HOOK.host, (BatchEvent.CANCELLED,))
    with store.write() as tx:
        tx.execute(update(file_batches).values(webhook=pack_webhook(asked)))
    assert left(store, ACME)["webhook_deliveries"] == 1
    seen: list[object] = []

    def look() -> None:
        with store.read() as tx:
            seen.append(list(tx.scalars(select(webhook_deliveries.c.state))))
        seen.append(find_violations(store, full=True))

    once_after(store, "DELETE FROM batch_lines", look)
    purge_tenant(store, ACME)
    assert seen == [["skipped"], []]


def test_scores_of_purged_work_that_arrive_late_do_no_harm(store: Database) -> None:
    create_tenant(store, ACME)
    submit(store, tenant=ACME)
    claimed = claim(store, "worker", CARD, 1_000_000)
    assert claimed is not None
    purge_tenant(store, ACME)
    finish_all(store, claimed)
    assert find_violations(store, full=True) == []
    assert left(store, ACME) == {"tenants": 1, "lanes": 1}


def test_a_deleted_tenant_leaves_nothing_but_the_record_of_changes(store: Database) -> None:
    fill(store, ACME)
    key, record = create_key(store, ACME, "another", [Scope.READ])
    delete_tenant(store, ACME, 0.0)
    assert (left(store, ACME), find_tenant(store, ACME), find_key(store, record.id)) == ({}, None, None)
    recorded = list_changes(store, tenant=ACME, limit=100)
    assert [change.action for change in recorded[:3]] == [
        Action.TENANT_DELETED,
        Action.TENANT_PURGED,
        Action.KEY_REVOKED,
    ]
    assert all(change.by and change.at > 0 for change in recorded)
    assert key.rpartition("_")[2] not in str(recorded)
    for name in (ACME, DEFAULT_TENANT):
        with pytest.raises(ValueError, match=r"no tenant|can't be deleted"):
            delete_tenant(store, name, 0.0)


def test_a_file_that_is_still_being_received_goes_with_its_tenant(store: Database) -> None:
    create_tenant(store, ACME)
    batch = new_batch(store, tenant=ACME)
    purge_tenant(store, ACME)
    with pytest.raises(RequestError):
        get_file(store, ACME, batch.input_file_id)
    assert left(store, ACME) == {"tenants": 1}
    assert submission().tenant == DEFAULT_TENANT
