"""Every mistake of an operator ends a real process with one line, an exit code of its kind, no traceback and no files.

Roles that log write the line as their last line of JSON, with the event "can't start". A process
without Redis serves on, and logs a line that says the same.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from scoreline.exit_codes import ExitCode
from scoreline.server_process import DEMONSTRATION_MODEL
from tests.forked.running import ROOT, SERVER, WORKER, run, start
from tests.services import PostgresServer, RedisServer, free_port, wait_until

AWAY = "postgresql+psycopg://scoreline:s3cret@127.0.0.1:{closed}/scoreline"
PRESENT = "postgresql+psycopg://scoreline:s3cret@127.0.0.1:{postgresql}/postgres"
SILENT = "postgresql+psycopg://scoreline:s3cret@127.0.0.1:{busy}/postgres"
KEY = "k" * 40
USAGE, UNAVAILABLE, FAILED = ExitCode.USAGE, ExitCode.UNAVAILABLE, ExitCode.FAILED


@dataclass(frozen=True)
class Mistake:
    """A command that is given something wrong."""

    command: str
    code: int
    says: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.command, *(f"{name}={value}" for name, value in self.variables.items())])[:80]


NOTICES = "no notices from Redis: SCORELINE_REDIS_URL is '"
ON_ITS_OWN = "Redis can't be used, so this worker finds work by looking for it: SCORELINE_REDIS_URL is '"


def database(url: str) -> dict[str, str]:
    return {"DATABASE_URL": url}


def redis(url: str) -> dict[str, str]:
    return {"REDIS_URL": url}


QUICK = [
    Mistake("migrate", UNAVAILABLE, ("SCORELINE_DATABASE_URL is '", "start PostgreSQL there"), database(AWAY)),
    Mistake("check", UNAVAILABLE, ("SCORELINE_DATABASE_URL is unset", "no such file; run `scoreline migrate`")),
    Mistake(
        "up --port 0", USAGE, ("SCORELINE_STEP_TOKENS is '100': it must be a power of two",), {"STEP_TOKENS": "100"}
    ),
    Mistake("keys list --data nowhere", USAGE, ("--data is 'nowhere': there is no scoreline.db in it",)),
    Mistake("keys list --tenants x", USAGE, ("No such option: --tenants", "`scoreline keys list --help`")),
]
SLOW = [
    # The commands on a database.
    Mistake("migrate", USAGE, ("SCORELINE_DATABASE_URL is 'no url': it must be sqlite:///PATH",), database("no url")),
    Mistake("migrate", USAGE, ("SCORELINE_SWEEP_SECONDS is 'often': it must be",), {"SWEEP_SECONDS": "often"}),
    Mistake(
        "migrate", FAILED, ("name a file in a folder that this user may write",), database("sqlite:////proc/no/a.db")
    ),
    Mistake("keys create --name x", UNAVAILABLE, ("no such file",)),
    Mistake("keys list", UNAVAILABLE, ("start PostgreSQL there",), database(AWAY)),
    Mistake("keys create --name x --expires-in soon", USAGE, ("--expires-in", "'soon'", "90d")),
    Mistake("keys create --name x --scopes all", USAGE, ("--scopes", "'all'", "score,read,webhooks")),
    Mistake("keys create", USAGE, ("Missing option '--name'",)),
    Mistake("tenants list", UNAVAILABLE, ("no such file",)),
    Mistake("tenants list --data /proc", USAGE, ("--data is '/proc'",)),
    Mistake("tenants set acme --weight heavy", USAGE, ("--weight", "'heavy'")),
    Mistake("tenants changes --limit 10001", USAGE, ("--limit", "a whole number from 1 to 10000")),
    Mistake("tenants set acme --requests-per-second many", USAGE, ("--requests-per-second", "'many'")),
    Mistake("check --data nowhere", USAGE, ("--data is 'nowhere'",)),
    Mistake("webhooks secret show", UNAVAILABLE, ("no such file",)),
    Mistake("webhooks secret rotate --data nowhere", USAGE, ("--data is 'nowhere'",)),
    # The API.
    Mistake("api --port many", USAGE, ("--port", "'many'")),
    Mistake("api --port 0", USAGE, ("SCORELINE_MAX_ITEMS is 'many'",), {"MAX_ITEMS": "many"}),
    Mistake(
        "api --port 0", USAGE, ("SCORELINE_DATABASE_URL is 'mysql://u:***@h/x'",), database("mysql://u:s3cret@h/x")
    ),
    Mistake("api --port 0", USAGE, ("SCORELINE_REDIS_URL is 'http://:***@h'",), {"REDIS_URL": "http://:s3cret@h"}),
    Mistake("api --port 0", USAGE, ("SCORELINE_MODEL is '/no/model'", "does not exist"), {"MODEL": "/no/model"}),
    Mistake("api --port 0", USAGE, ("SCORELINE_TEMPLATE is 'polite'", "yes-no"), {"TEMPLATE": "polite"}),
    Mistake("api --port 0", USAGE, ("SCORELINE_TEMPLATE is '/no.toml'", "No such file"), {"TEMPLATE": "/no.toml"}),
    Mistake("api --port {busy}", FAILED, ("127.0.0.1 port {busy} can't be used: Address already in use", "--port")),
    Mistake("api --port 0 --host 192.0.2.1", FAILED, ("192.0.2.1", "SCORELINE_HOST")),
    Mistake("api --port 0 --processes none", USAGE, ("--processes", "'none'")),
    # The worker and the deliverer.
    Mistake("worker", USAGE, ("SCORELINE_DTYPE is 'int4': it must be auto, bfloat16 or float32",), {"DTYPE": "int4"}),
    Mistake("worker", USAGE, ("SCORELINE_DATABASE_URL is 'mysql://u:***@h/x'",), database("mysql://u:s3cret@h/x")),
    Mistake("worker", USAGE, ("SCORELINE_REDIS_URL is 'unix:///run/redis'",), {"REDIS_URL": "unix:///run/redis"}),
    Mistake("worker", USAGE, ("SCORELINE_MODEL is '/dev/null'", "is a file"), {"MODEL": "/dev/null"}),
    Mistake("worker", FAILED, ("JAX_PLATFORMS is 'cuda'",), {"JAX_PLATFORMS": "cuda"}),
    Mistake("deliver", USAGE, ("SCORELINE_DELIVERY_POLL_SECONDS is '0'",), {"DELIVERY_POLL_SECONDS": "0"}),
    Mistake("deliver", USAGE, ("SCORELINE_WEBHOOK_CA_FILE is '/no.pem'", "PEM"), {"WEBHOOK_CA_FILE": "/no.pem"}),
    Mistake("deliver", USAGE, ("SCORELINE_DATABASE_URL is 'no url'",), database("no url")),
    # Everything in one terminal.
    Mistake("up --port 0", USAGE, ("SCORELINE_LEASE_SECONDS is 'long'",), {"LEASE_SECONDS": "long"}),
    Mistake("up --port {busy}", FAILED, ("port {busy} can't be used: Address already in use", "--port")),
    Mistake("up --port 0 --data /proc/no", FAILED, ("the data directory /proc/no can't be used",)),
    Mistake("up --port 0 --model", USAGE, ("--model",)),
    Mistake("demo", USAGE, ("SCORELINE_MAX_LABELS is 'many'",), {"MAX_LABELS": "many"}),
    Mistake("compile --target v0", USAGE, ("v0", "v6e:1x1")),
    # TLS where the other side has none, and servers that are silent: how long they are waited for is bounded.
    Mistake("migrate", UNAVAILABLE, ("correct sslmode and the certificates",), database(f"{PRESENT}?sslmode=require")),
    Mistake(
        "keys list", UNAVAILABLE, ("correct sslmode and",), database(f"{PRESENT}?sslmode=verify-full&sslrootcert=/no")
    ),
    Mistake("migrate", UNAVAILABLE, ("timeout expired; check the network",), database(SILENT)),
    Mistake("check", UNAVAILABLE, ("timeout expired; check the network",), database(f"{SILENT}?sslmode=require")),
    Mistake("serve", USAGE, ("No such command 'serve'", "`scoreline --help`")),
]


CLOSED, TAKEN, PLAIN = "127.0.0.1:{closed}", "127.0.0.1:{busy}", "127.0.0.1:{redis}"
WITHOUT_REDIS = [
    # These processes serve on, so they say what is wrong and do not end.
    Mistake("api --port 0", 0, (NOTICES, "Connection refused; start Redis there"), redis(f"redis://:s3cret@{CLOSED}")),
    Mistake("api --port 0", 0, (NOTICES, "whether Redis listens there"), redis(f"redis://:s3cret@{TAKEN}")),
    Mistake("api --port 0", 0, (NOTICES, "write redis:// instead"), redis(f"rediss://:s3cret@{PLAIN}")),
    Mistake("api --port 0", 0, (NOTICES, "correct the user and"), redis(f"redis://user:s3cret@{PLAIN}")),
    Mistake("worker", 0, (ON_ITS_OWN, "Connection refused; start Redis there"), redis(f"redis://:s3cret@{CLOSED}")),
    Mistake("worker", 0, (ON_ITS_OWN, "whether Redis listens there"), redis(f"redis://:s3cret@{TAKEN}")),
    Mistake("worker", 0, (ON_ITS_OWN, "write redis:// instead"), redis(f"rediss://:s3cret@{PLAIN}")),
    Mistake("worker", 0, (ON_ITS_OWN, "correct the number"), redis(f"redis://:s3cret@{PLAIN}/99")),
]


@pytest.fixture(scope="module")
def ports(postgres: PostgresServer, redis_server: RedisServer) -> Iterator[dict[str, int]]:
    """A port that somebody listens at and never answers, one where nobody does, and those of servers without TLS."""
    servers = {"postgresql": postgres.port, "redis": redis_server.port}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield servers | {"busy": taken.getsockname()[1], "closed": free_port()}


def command_of(mistake: Mistake, ports: dict[str, int]) -> list[str]:
    program = "import sys; sys.argv[0] = 'scoreline'; from scoreline.command import main; main()"
    return [sys.executable, "-P", "-c", program, *mistake.command.format(**ports).split()]


def environment_of(mistake: Mistake, ports: dict[str, int]) -> dict[str, str]:
    given = {"MODEL": str(DEMONSTRATION_MODEL), "BOOTSTRAP_KEY": KEY} | mistake.variables
    if "--model" in mistake.command or mistake.command.startswith("up"):
        del given["BOOTSTRAP_KEY"]
    known = {name: value for name, value in os.environ.items() if not name.startswith("SCORELINE_")}
    named = {name if name.startswith("JAX") else f"SCORELINE_{name}": value for name, value in given.items()}
    return known | {"PYTHONPATH": str(ROOT)} | {name: value.format(**ports) for name, value in named.items()}


STARTED = (QUICK[0], *(mistake for mistake in SLOW if "JAX_PLATFORMS" in mistake.variables))
"""Python is started for these. The others are forked from a process that has imported the service.

JAX reads its variables when it is imported.
"""


def ended_by(mistake: Mistake, ports: dict[str, int], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    environment = environment_of(mistake, ports)
    if mistake in STARTED:
        command = command_of(mistake, ports)
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    words = mistake.command.format(**ports).split()
    return run("scoreline", *words, imports=(*SERVER, *WORKER), environment=environment, folder=folder)


@pytest.mark.parametrize("mistake", [*QUICK, *(pytest.param(one, marks=pytest.mark.slow) for one in SLOW)], ids=str)
def test_a_mistake_is_one_line(mistake: Mistake, ports: dict[str, int], tmp_path: Path) -> None:
    ended = ended_by(mistake, ports, tmp_path)
    everything = ended.stdout + ended.stderr
    assert ended.returncode == mistake.code, everything
    assert "Traceback" not in everything
    assert "s3cret" not in everything
    lines = ended.stderr.splitlines()
    logged = [json.loads(line) for line in lines if line.startswith("{")]
    [said] = [line for line in lines if not line.startswith("{")] or [
        line["reason"] for line in logged if line["event"] == "can't start"
    ]
    for words in mistake.says:
        assert words.format(**ports) in said
    assert list(tmp_path.iterdir()) == [], "nothing was made"


@pytest.mark.slow
@pytest.mark.parametrize("mistake", WITHOUT_REDIS, ids=str)
def test_a_process_without_redis_says_why_and_serves_on(
    mistake: Mistake, ports: dict[str, int], sqlite_url: str, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    # A worker whose scores are made up: it listens to Redis as the real one does, and compiles nothing before.
    stand_in = ("-m", "tests.scoreline.stand_in_worker")

    def reasons() -> list[str]:
        """What it has logged that is about Redis."""
        lines = [json.loads(line) for line in output.read_text().splitlines() if line.startswith("{")]
        return [line["event"] for line in lines if "SCORELINE_REDIS_URL" in line["event"]]

    words = mistake.command.format(**ports).split()
    process = start(
        *(stand_in if mistake.command == "worker" else ("scoreline", *words)),
        imports=(*SERVER, *WORKER),
        log=output,
        environment=environment_of(mistake, ports) | {"SCORELINE_DATABASE_URL": sqlite_url},
        folder=tmp_path,
    )
    try:
        wait_until(lambda: reasons() or process.poll() is not None, "it says why it has no Redis", 60.0)
        assert process.poll() is None, output.read_text()
        process.terminate()
        assert process.wait(30) == mistake.code, output.read_text()
    finally:
        process.kill()
        process.wait()
    for said in mistake.says:
        assert said in reasons()[0]
    log = output.read_text()
    assert "s3cret" not in log
    assert "Traceback" not in log


@pytest.mark.slow
def test_what_can_not_be_printed_is_one_line(sqlite_url: str, tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "operations.keys", "create", "--name", "x"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "SCORELINE_DATABASE_URL": sqlite_url},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert ended.returncode == FAILED
    assert ended.stderr.splitlines()[-1] == (
        "scoreline: standard output can't be written: No space left on device; what was to be printed is lost"
    )
    assert "Traceback" not in ended.stderr
    assert "Exception" not in ended.stderr
