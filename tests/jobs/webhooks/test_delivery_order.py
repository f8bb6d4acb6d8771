"""The order of deliveries: neither many deliveries of a tenant nor a slow host delay others."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import insert, select

from jobs.store.clock import NOW
from jobs.store.database import Database
from jobs.store.identifiers import new_job_id, new_message_id
from jobs.store.webhook_events import Event
from jobs.webhooks.deliveries import has_due
from jobs.webhooks.delivery_order import SCAN_LIMIT
from jobs.webhooks.tables import DeliveryState, webhook_deliveries
from tests.databases import ON_BOTH
from tests.jobs.conftest import HandClock
from tests.jobs.sending import DAYS, LEASE, REFUSED, due, ended, hook, one, settle


def pile_up(store: Database, tenant: str, hosts: Iterable[str]) -> None:
    """A delivery that is due to each of the hosts, as fast as rows can be stored."""
    with store.write() as connection:
        now = connection.execute(select(NOW)).scalar_one()
        rows = [
            {
                "id": new_message_id(),
                "job_id": new_job_id(),
                "tenant": tenant,
                "event": Event.SUCCEEDED.value,
                "url": f"https://{host}/",
                "host": host,
                "body": b"{}",
                "state": DeliveryState.PENDING.value,
                "due_at": now,
                "attempts": 0,
                "failures": 0,
                "created_at": now,
                "remove_at": now + 7 * DAYS,
            }
            for host in hosts
        ]
        connection.execute(insert(webhook_deliveries), rows)


def test_deliveries_to_one_host_are_limited_and_do_not_hide_other_hosts(
    timed_store: Database, clock: HandClock
) -> None:
    for _ in range(20):
        ended(timed_store, hook("slow.example"))
    clock.turn(1)
    ended(timed_store, hook("quick.example"))
    assert sorted(delivery.host for delivery in due(timed_store, places=6, per_host=2)) == [
        "quick.example",
        "slow.example",
        "slow.example",
    ]
    ended(timed_store, hook("quick.example"))
    assert [delivery.host for delivery in due(timed_store, places=10, per_host=2)] == ["quick.example"]
    # Whose senders were lost is not under way any more.
    clock.turn(LEASE + 1)
    assert [delivery.host for delivery in due(timed_store, places=8, per_host=2)].count("slow.example") == 2


def test_deliveries_that_wait_for_their_next_attempt_are_not_claimed(timed_store: Database, clock: HandClock) -> None:
    ended(timed_store)
    settle(timed_store, one(timed_store), REFUSED)
    assert not has_due(timed_store)
    job_id = ended(timed_store)
    assert one(timed_store).job_id == job_id


def test_the_host_with_the_fewest_claimed_deliveries_comes_first(timed_store: Database, clock: HandClock) -> None:
    for _ in range(3):
        ended(timed_store, hook("slow.example"))
    assert len(due(timed_store, places=1)) == 1
    clock.turn(1)
    ended(timed_store, hook("quick.example"))
    assert [delivery.host for delivery in due(timed_store, places=1)] == ["quick.example"]


@ON_BOTH
def test_a_tenant_with_many_hosts_does_not_delay_others(timed_store: Database, clock: HandClock) -> None:
    pile_up(timed_store, "many", (f"r{n}.example" for n in range(1_000)))
    clock.turn(1)
    pile_up(timed_store, "single", ["hooks.example"])
    assert sorted(delivery.tenant for delivery in due(timed_store, places=4)) == ["many", "many", "single"]
    clock.turn(1)
    pile_up(timed_store, "single", ["hooks.example"])
    assert [delivery.tenant for delivery in due(timed_store, places=1)] == ["single"], "the other has two under way"
    assert len(due(timed_store, places=2_000)) <= 2 * SCAN_LIMIT, "a look goes no further"


@ON_BOTH
def test_an_eighth_of_the_places_is_for_tenants_that_have_none(timed_store: Database, clock: HandClock) -> None:
    pile_up(timed_store, "many", (f"r{n}.example" for n in range(40)))
    assert len(due(timed_store, places=16)) == 14
    assert due(timed_store, places=16, many=14) == [], "not with the next look either"
    clock.turn(1)
    for tenant in ("second", "third"):
        pile_up(timed_store, tenant, (f"s{n}.example" for n in range(40)))
    assert [delivery.tenant for delivery in due(timed_store, places=16, many=14)] == ["second", "third"]


def test_among_equal_tenants_the_longest_due_comes_first(timed_store: Database, clock: HandClock) -> None:
    for tenant in ("b", "c", "a"):
        pile_up(timed_store, tenant, ["hooks.example"])
        clock.turn(1)
    assert [due(timed_store, places=1)[0].tenant for _ in range(3)] == ["b", "c", "a"]


def test_turns_that_a_tenant_can_not_use_go_to_the_others(timed_store: Database) -> None:
    pile_up(timed_store, "few", ["hooks.example"])
    pile_up(timed_store, "many", ["other.example"] * 5)
    assert sorted(delivery.tenant for delivery in due(timed_store, places=5)) == ["few", "many", "many", "many"]


def test_tenants_take_turns_at_a_host_they_share(timed_store: Database, clock: HandClock) -> None:
    pile_up(timed_store, "many", ["hooks.example"] * 1_000)
    clock.turn(1)
    pile_up(timed_store, "single", ["hooks.example"])
    claimed = due(timed_store, per_host=2)
    assert sorted(delivery.tenant for delivery in claimed) == ["many", "single"]
    assert due(timed_store, per_host=2) == [], "so many of a host, whoseever they are"


def test_many_deliveries_to_one_host_do_not_hide_the_tenants_other_hosts(
    timed_store: Database, clock: HandClock
) -> None:
    pile_up(timed_store, "default", ["slow.example"] * (SCAN_LIMIT + 5))
    clock.turn(1)
    pile_up(timed_store, "default", [f"r{n}.example" for n in range(3)])
    hosts = [delivery.host for delivery in due(timed_store, per_host=2)]
    assert sorted(hosts) == ["r0.example", "r1.example", "r2.example", "slow.example", "slow.example"]


@ON_BOTH
def test_a_host_with_nothing_due_takes_no_place_beside_many_deliveries(timed_store: Database, clock: HandClock) -> None:
    ended(timed_store, hook("later.example"))
    settle(timed_store, one(timed_store), REFUSED)
    pile_up(timed_store, "default", ["slow.example"] * SCAN_LIMIT)
    clock.turn(1)
    pile_up(timed_store, "default", ["next.example"])
    assert sorted(delivery.host for delivery in due(timed_store, places=3)) == ["next.example", "slow.example"]
