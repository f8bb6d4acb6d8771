"""Neither many connections at once nor threads that compute hold up the event loop."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest

from api.server.server import ACCEPTED_IN_A_TURN, SWITCH_SECONDS
from tests.api.server.raw_client import RawClient, connections, head
from tests.api.serving import DEADLINE_SECONDS, running_api
from tests.api.tiny_model import TinyModel

CONNECTIONS = 8 * ACCEPTED_IN_A_TURN


def test_connections_at_once_are_accepted_in_few_turns(model: TinyModel, sqlite_url: str, tmp_path: Path) -> None:
    with running_api(model.directory, sqlite_url, tmp_path) as (api, _), ExitStack() as opened:
        loop = api._server.servers[0].get_loop()
        held, go, all_accepted = Event(), Event(), Event()
        turns = 0

        def hold() -> None:
            held.set()
            go.wait(DEADLINE_SECONDS)

        def count() -> None:
            nonlocal turns
            if len(connections(api)) < CONNECTIONS:
                turns += 1
                loop.call_soon(count)
            else:
                all_accepted.set()

        loop.call_soon_threadsafe(hold)
        assert held.wait(DEADLINE_SECONDS)
        clients = [opened.enter_context(RawClient(api)) for _ in range(CONNECTIONS)]
        loop.call_soon_threadsafe(count)
        go.set()
        assert all_accepted.wait(DEADLINE_SECONDS)
        assert turns <= CONNECTIONS // ACCEPTED_IN_A_TURN + 2
        clients[-1].send(head())
        assert clients[-1].answer().status == 200


def test_a_thread_that_computes_gives_the_event_loop_way_early(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        with running_api(model.directory, sqlite_url, tmp_path):
            assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    finally:
        sys.setswitchinterval(before)
