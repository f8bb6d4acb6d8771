"""The configuration of nginx in docs/proxy.md, in front of real processes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.end_to_end.deployment import AUTHORIZATION, ROOT, Deployment
from tests.services import (
    MissingBinaryError,
    PostgresServer,
    RedisServer,
    die_with_parent,
    find_binary,
    free_port,
    wait_until,
)

CLIENTS = 6
REQUESTS_BETWEEN = 200
"""The requests that are answered before, between and after the restarts."""


def nginx() -> str:
    """Return the path of nginx; skip the test where there is none, unless NGINX is set."""
    try:
        return find_binary("nginx")
    except MissingBinaryError:
        assert not os.environ.get("NGINX"), "nginx is not installed"
        pytest.skip("NOT TESTED: nginx is not installed (Debian's package nginx)")


@contextmanager
def proxy(folder: Path, apis: Sequence[int], connections: int | None = None) -> Iterator[str]:
    """Run nginx with the page's configuration, without TLS. apis: their ports. Yields its URL.

    connections: how many an address may have; None: what the page says.
    """
    (written,) = re.findall(r"```\n(limit_conn_zone.*?)```", (ROOT / "docs" / "proxy.md").read_text(), re.DOTALL)
    port = free_port()
    configured = re.sub(r" +ssl_certificate.*\n", "", written)
    servers = iter(apis)
    configured = re.sub(r"127\.0\.0\.1:\d+", lambda _: f"127.0.0.1:{next(servers)}", configured)
    configured = configured.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    if connections is not None:
        configured = re.sub(r"limit_conn addresses \d+", f"limit_conn addresses {connections}", configured)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    file = folder / "nginx.conf"
    file.write_text(
        f"daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{paths}{configured}}}\n"
    )
    process = subprocess.Popen(
        [nginx(), "-p", str(folder), "-e", f"{folder}/error.log", "-c", str(file)],
        preexec_fn=die_with_parent(15),
    )

    def listens() -> bool:
        assert process.poll() is None, (folder / "error.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(listens, "nginx listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


class Load:
    """Clients that send calls and jobs, without keys, one after the other."""

    def __init__(self, url: str) -> None:
        self.answered, self.lost = 0, list[str]()
        self._url, self._lock, self._is_over = url, threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._send) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        # Jobs wait, because there is no worker. A call without items is answered at once.
        requests: tuple[tuple[str, list[str], int], ...] = (("/v1/jobs", ["a"], 202), ("/v1/score", [], 200))
        with httpx2.Client(base_url=self._url, headers=AUTHORIZATION, timeout=60.0, trust_env=False) as client:
            while not self._is_over.is_set():
                for path, items, expected in requests:
                    try:
                        answer = client.post(path, json={"query": "q", "items": items, "labels": [" yes"]})
                        outcome = "" if answer.status_code == expected else f"{answer.status_code} {answer.text[:200]}"
                    except httpx2.HTTPError as error:
                        outcome = repr(error)
                    with self._lock:
                        self.answered += 1
                        self.lost += [outcome] if outcome else []

    def more(self) -> None:
        """Return when some more requests were answered."""
        before = self.answered
        wait_until(lambda: self.answered >= before + REQUESTS_BETWEEN, "requests are answered", 120)

    def end(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.slow
def test_a_rolling_restart_behind_the_proxy_of_the_page_loses_no_request(
    postgres: PostgresServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    nginx()
    database = postgres.url(postgres.create_database())
    with ExitStack() as stack:
        apis = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            apis.append(Deployment(tmp_path / name, database, redis_server.url, drain_seconds=5))
            stack.enter_context(apis[-1])
        apis[0].migrate()
        running = [api.start_api() for api in apis]
        url = stack.enter_context(proxy(tmp_path, [api.port for api in apis]))
        assert httpx2.get(f"{url}/metrics", trust_env=False).status_code == 404
        load = Load(url)
        try:
            load.more()
            for api, process in zip(apis, running, strict=True):
                process.terminate()
                assert process.wait(60) == 0
                load.more()
                api.start_api()
                load.more()
        finally:
            load.end()
        assert load.lost == [], f"{len(load.lost)} of {load.answered}"


def test_an_address_with_too_many_connections_gets_the_error_of_the_api(tmp_path: Path) -> None:
    nginx()
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        proxy(tmp_path, [silent.getsockname()[1]] * 2, connections=1) as url,
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as first,
    ):
        first.sendall(b"GET /readyz HTTP/1.1\r\nHost: scoreline.example\r\n\r\n")
        upstream = silent.accept()[0]  # so nginx has counted it
        with upstream:
            refused = httpx2.get(f"{url}/readyz", trust_env=False)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.headers["content-type"] == "application/json"
    assert refused.json()["error"]["code"] == "too_many_open_requests"
