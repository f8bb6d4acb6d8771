"""A process accepts no more connections than it may open files for, and keeps some files for the rest of its work."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.api.processes.test_process import api_process, wait_for
from tests.api.serving import DEADLINE_SECONDS
from tests.api.tiny_model import TinyModel

ASK = """
import resource, sys
from api.server.open_files import connections_that_fit
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
print(connections_that_fit(int(sys.argv[3])), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "fitting", "raised"),
    [
        (256, 4096, 1000, 1000, 1256),  # raised as far as needed
        (256, 1024, 8192, 768, 1024),  # raised as far as allowed
        (2048, 2048, 1000, 1000, 2048),  # enough already, and never lowered
        (100, 100, 8192, 50, 100),  # a limit too low to serve many still leaves files for the rest
    ],
)
def test_the_limit_of_open_files_is_raised_and_divided(
    soft: int, hard: int, wanted: int, fitting: int, raised: int
) -> None:
    command = [sys.executable, "-c", ASK, str(soft), str(hard), str(wanted)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert answer.split() == [str(fitting), str(raised)]


@pytest.mark.slow
def test_a_process_whose_clients_take_all_connections_can_still_open_its_database(
    model: TinyModel, sqlite_url: str, tmp_path: Path
) -> None:
    settings = {"model": str(model.directory), "database_url": sqlite_url, "bell_socket": str(tmp_path / "bell")}
    with api_process(**settings) as (process, url):
        # It has not read its limit yet, because that takes it a second.
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (100, 100))
        with httpx2.Client(base_url=url, timeout=DEADLINE_SECONDS) as client:
            wait_for(client, process)
            port = int(url.rpartition(":")[2])
            others = [socket.create_connection(("127.0.0.1", port)) for _ in range(120)]
            for _ in range(3):
                assert client.get("/v1/jobs").status_code == 200
            refused = 'scoreline_refused_requests_total{limit="max_connections"}'
            assert refused in client.get("/metrics").text
            for other in others:
                other.close()
