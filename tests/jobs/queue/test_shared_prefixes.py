"""Tenants share the work on equal queries only if sharing is switched on."""

from __future__ import annotations

from jobs.store.database import Database
from settings.store import StoreSettings
from tests.jobs.work import finish_all, submit, take


def test_the_work_on_a_query_stays_within_its_tenant(store: Database) -> None:
    for tenant in ("acme", "bolt"):
        submit(store, tenant=tenant)
    claimed = take(store)
    assert len({group.owner for group in claimed.groups}) == len(claimed.groups) == 2
    assert all(group.prefix.tolist() == [1, 2, 3] for group in claimed.groups)


def test_tenants_share_the_work_on_a_query_if_sharing_is_switched_on(store_url: str) -> None:
    store = Database.open(StoreSettings(database_url=store_url, share_prefixes=True))
    for tenant in ("acme", "bolt", "acme"):
        submit(store, tenant=tenant)
        submit(store, tenant=tenant, prefix=(9, 9))
    claimed = take(store)
    assert len(claimed.chunk_ids) == 6
    assert sorted(group.prefix.tolist() for group in claimed.groups) == [[1, 2, 3], [9, 9]]
    assert len({group.owner for group in claimed.groups}) == 1
    assert finish_all(store, claimed).fenced == 0
    store.close()
