"""A tenant has one live webhook secret, and two for a while after a rotation."""

from __future__ import annotations

import itertools

from sqlalchemy import text

from jobs.queue.sweep import sweep
from jobs.store.database import Database
from jobs.webhooks.secrets import live_secrets, rotate_secret
from tests.databases import ON_BOTH
from tests.jobs.conftest import HandClock
from tests.jobs.work import at_once

names = map("secret {}".format, itertools.count())


def new_secret() -> str:
    return next(names)


def live(store: Database, tenant: str = "default") -> list[str]:
    return [one.secret for one in live_secrets(store, tenant, new_secret)]


def rotate(store: Database) -> list[str]:
    return [one.secret for one in rotate_secret(store, "default", new_secret, 100.0)]


def test_the_first_read_creates_a_secret_and_later_ones_return_it(timed_store: Database) -> None:
    (secret,) = live(timed_store)
    assert live(timed_store) == [secret]
    assert live(timed_store, "another") != [secret]


def test_simultaneous_first_reads_return_the_same_secret(store: Database) -> None:
    assert len({tuple(seen) for seen in at_once(6, lambda _: live(store))}) == 1


@ON_BOTH
def test_after_a_rotation_both_secrets_are_live_the_new_one_first(timed_store: Database, clock: HandClock) -> None:
    (old,) = live(timed_store)
    new, *rest = rotate(timed_store)
    assert rest == [old]
    clock.turn(99)
    assert live(timed_store) == [new, old]
    clock.turn(2)
    assert live(timed_store) == [new]
    sweep(timed_store)
    with timed_store.read() as connection:
        assert connection.execute(text("SELECT secret FROM webhook_secrets")).scalars().all() == [new]


def test_never_more_than_two_are_live(timed_store: Database) -> None:
    live(timed_store)
    second, _ = rotate(timed_store)
    third, *rest = rotate(timed_store)
    assert rest == [second]
    assert live(timed_store) == [third, second]


def test_a_tenant_without_a_secret_may_rotate(timed_store: Database) -> None:
    (secret,) = rotate(timed_store)
    assert live(timed_store) == [secret]


@ON_BOTH
def test_simultaneous_rotations_leave_one_current_secret(store: Database) -> None:
    live(store)
    at_once(5, lambda _: rotate(store))
    assert [one.expires_at is None for one in live_secrets(store, "default", new_secret)] == [True, False]
