"""``scoreline up`` as a user runs it: it starts, prints how to use it, and ends without leaving anything behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from api.text_process.body_reader import LONG_BYTES
from scoreline.client import Client, ScorelineError
from scoreline.server_process import DEMONSTRATION_MODEL
from tests.api.delivering import verified
from tests.scoreline.running import REAL, ROOT, CommandUp, gone, scoreline
from tests.services import wait_until
from tests.webhooks.receivers import Receiver, status

StartUp = Callable[..., CommandUp]


@pytest.fixture(scope="module")
def started(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartUp]:
    """Return a function that gives the service of all tests, and starts another once a test has stopped it."""
    ups: list[CommandUp] = []

    def running() -> CommandUp:
        if not ups or ups[-1].process.poll() is not None:
            folder = tmp_path_factory.mktemp("up")
            ups.append(CommandUp(model_directory, folder, SCORELINE_WEBHOOK_ALLOWED_NETWORKS="127.0.0.0/8"))
            ups[-1].wait_until_ready()
        return ups[-1]

    yield running
    for up in ups:
        up.close()


@pytest.fixture
def running_up(started: StartUp) -> CommandUp:
    """A service that runs."""
    return started()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_printed_curl_command_works_unchanged(running_up: CommandUp) -> None:
    command = next(line for line in running_up.output.splitlines() if line.strip().startswith("curl"))
    answer = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=True, text=True)
    assert len(json.loads(answer.stdout)["scores"]) == 2, answer.stdout


def signal_all(up: CommandUp, stop: signal.Signals, children: list[int]) -> None:
    """Send a signal to the group of processes, as a terminal does."""
    # The children get theirs from their parent, once.
    assert all(os.getpgid(child) != up.process.pid for child in children)
    os.killpg(up.process.pid, stop)


def assert_stops_cleanly(up: CommandUp, children: list[int]) -> None:
    """Wait for the end, and look at what is left."""
    started = time.monotonic()
    assert up.process.wait(40) == 0, up.output
    assert time.monotonic() - started < 5.0
    assert "told to stop twice" not in up.output
    assert gone(children)
    assert not (up.data / "bell").exists()
    assert "Traceback" not in up.output


def metrics_of(up: CommandUp) -> str:
    return httpx2.get(f"{up.url}/metrics").text


@pytest.mark.slow
def test_a_folder_with_packages_of_the_same_names_several_processes_and_a_long_path(
    start_up: StartUp, tmp_path: Path
) -> None:
    """The data directory is in the current folder. Its path is longer than that of a Unix socket may be."""
    project = tmp_path / "project"
    for room in ("api", "workers", "jobs"):
        (project / room).mkdir(parents=True)
        (project / room / "__init__.py").write_text("raise RuntimeError('this is not Scoreline')")
    data = "long" * 30
    before = set(Path(tempfile.gettempdir()).glob("scoreline-*"))
    up = start_up("--data", data, "--processes", "2", cwd=project)
    up.wait_until_ready()
    (parent,) = [pid for module, pid in up.children().items() if module == "api"]

    def processes() -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]

    wait_until(lambda: len(processes()) == 2 and up.output.count("  serving  ") >= 1, "both were started")
    with Client(up.url) as client:
        for _ in range(5):
            assert client.wait(client.submit("a", ["b"], label_token_ids=[1]).id, 20).status == "succeeded"
    long = {"query": "a", "items": ["b"], "label_token_ids": [1], "unknown": "x" * LONG_BYTES}
    assert httpx2.post(f"{up.url}/v1/jobs", json=long, timeout=60.0).status_code == 202
    assert (project / data / "scoreline.db").exists()
    children = [*up.children().values(), *processes()]
    signal_all(up, signal.SIGHUP, children)
    assert_stops_cleanly(up, children)
    left = set(Path(tempfile.gettempdir()).glob("scoreline-*")) - before
    assert not [path for path in left if (path / "bell").exists()]


@pytest.mark.slow
def test_jobs_are_kept_over_a_restart_on_a_public_address_which_requires_a_key(
    start_up: StartUp, tmp_path: Path
) -> None:
    data = ("--data", str(tmp_path / "kept"))
    up = start_up(*data)
    up.wait_until_ready()
    with Client(up.url) as client:
        job_id = client.submit("a", ["b"], label_token_ids=[1]).id
        before = client.wait(job_id, 20)
    assert up.end(signal.SIGTERM) == 0

    refused = start_up(*data, "--host", "0.0.0.0")
    assert refused.process.wait(60) == 2
    assert "the api did not start: there is no API key" in refused.output

    key = "bootstrap-key-of-the-terminal-" + "0" * 16
    up = start_up(*data, "--host", "0.0.0.0", SCORELINE_BOOTSTRAP_KEY=key)
    up.wait_until_ready()
    assert "Authorization: Bearer $SCORELINE_BOOTSTRAP_KEY" in up.output
    assert key not in up.output
    with Client(up.url, api_key="") as nobody, pytest.raises(ScorelineError) as error:
        nobody.models()
    assert (error.value.code, error.value.status) == ("invalid_api_key", 401)
    with Client(up.url, api_key=key) as client:
        assert client.get(job_id) == before
        assert client.score("a", ["b"], label_token_ids=[1]).scores

    children = list(up.children().values())
    assert len(children) == 3
    up.process.kill()
    up.process.wait()
    wait_until(lambda: gone(children), "its processes are gone", 5.0)


@pytest.mark.parametrize("given", ["0", "many"])
def test_what_is_no_number_of_processes_is_refused(start_up: StartUp, given: str) -> None:
    up = start_up("--processes", given)
    assert up.process.wait(20) == 2
    assert "neither a number from 1 on nor" in up.output


def test_webhooks_are_delivered_and_signed_with_the_secret_that_the_command_shows(running_up: CommandUp) -> None:
    with Receiver(status(200)) as receiver, Client(running_up.url) as client:
        job = client.submit("a", ["b"], label_token_ids=[1], webhook={"url": receiver.url()})
        wait_until(lambda: [one.state for one in client.deliveries(job.id)] == ["delivered"], "the delivery")
        (delivery,) = client.deliveries(job.id)
        client.redeliver(job.id, delivery.id)
        wait_until(lambda: len(receiver.requests) == 2, "the same again")
    database = f"sqlite:///{running_up.data / 'scoreline.db'}"
    shown = scoreline("webhooks", "secret", "show", SCORELINE_DATABASE_URL=database)
    for request in receiver.requests:
        assert verified(shown.stdout.strip(), request)["data"]["id"] == job.id


def test_ctrl_c_while_the_model_loads_stops_at_once(start_up: StartUp) -> None:
    up = start_up(stand_in="loads forever")
    up.wait_until_said("compiling")
    children = list(up.children().values())
    assert len(children) == 3
    started = time.monotonic()
    assert up.end(signal.SIGINT) == 0, up.output
    assert time.monotonic() - started < 5.0
    assert gone(children)


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_a_process_that_does_not_stop(start_up: StartUp) -> None:
    up = start_up(stand_in="ignores signals")
    up.wait_until_ready()
    children = list(up.children().values())
    up.process.send_signal(signal.SIGINT)
    up.wait_until_said("Stopping.")
    started = time.monotonic()
    assert up.end(signal.SIGINT) == 0
    assert time.monotonic() - started < 5.0
    assert gone(children)


@pytest.mark.slow
def test_up_gives_up_on_a_worker_that_keeps_crashing_and_prints_its_error(start_up: StartUp, tmp_path: Path) -> None:
    curse = tmp_path / "curse"
    up = start_up(stand_in=f"crashes while there is:{curse}")
    up.wait_until_ready()
    children = up.children()
    curse.touch()
    os.kill(children["tests.scoreline.stand_in_worker"], signal.SIGKILL)
    assert up.process.wait(40) == 1
    assert "scoreline: the worker keeps crashing: Segmentation fault, or the like" in up.output
    assert gone(list(children.values()))


def test_the_reason_of_a_worker_that_refuses_to_start_is_printed(start_up: StartUp) -> None:
    up = start_up(stand_in="refuses")
    assert up.process.wait(40) == 1
    last = up.output.splitlines()[-1]
    assert len(up.output.splitlines()) == 2, "that it starts, and that it did not"
    assert last == "scoreline: the worker did not start: the checkpoint is not to my taste"
    assert "Traceback" not in up.output
    assert up.children() == {}


def test_a_port_in_use_is_one_clear_line(start_up: StartUp) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        up = start_up("--port", str(taken.getsockname()[1]))
        assert up.process.wait(20) == 1
    assert re.fullmatch(
        r"scoreline: 127.0.0.1 port \d+ can't be used: Address already in use; name another one with --port",
        up.output.splitlines()[-1],
    )
    assert "Traceback" not in up.output


def test_a_data_directory_in_use_is_one_clear_line_and_its_owner_keeps_running(
    running_up: CommandUp, start_up: StartUp
) -> None:
    second = start_up("--data", str(running_up.data))
    assert second.process.wait(20) == 1
    line = second.output.splitlines()[-1]
    assert line.startswith("scoreline: the data directory")
    assert f"process {running_up.process.pid}" in line
    with Client(running_up.url) as client:
        assert client.models()[0].live_workers == 1


def test_a_killed_worker_is_restarted_and_a_signal_stops_everything_once_an_open_call_has_its_scores(
    running_up: CommandUp,
) -> None:
    up = running_up
    assert len(up.children()) == 3
    first = up.worker
    os.kill(first, signal.SIGKILL)
    up.wait_until_said("it is started again")
    with Client(up.url) as client, ThreadPoolExecutor(1) as pool:
        assert client.wait(client.submit("a", ["b"], label_token_ids=[1]).id, 30).status == "succeeded"
        assert up.worker != first
        children = list(up.children().values())
        with up.worker_frozen():
            call = pool.submit(client.score, "a", ["b"], label_token_ids=[1])
            wait_until(lambda: "scoreline_awaited_jobs 1.0" in metrics_of(up), "the call waits")
            signal_all(up, signal.SIGINT, children)
            wait_until(lambda: httpx2.get(f"{up.url}/livez").status_code == 503, "the API stops")
            refused = httpx2.get(f"{up.url}/v1/models")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_stopping")
        assert call.result(30).scores
    assert_stops_cleanly(up, children)


@pytest.mark.parametrize("data", ["/proc/nowhere", "/dev/null/x"])
def test_a_data_directory_that_can_not_be_made_is_one_clear_line(start_up: StartUp, data: str) -> None:
    up = start_up("--data", data)
    assert up.process.wait(20) == 1
    assert up.output.splitlines()[-1].startswith(f"scoreline: the data directory {data} can't be used: ")
    assert "Traceback" not in up.output


def test_a_file_of_models_beside_a_model_and_one_that_is_wrong_are_one_clear_line(
    start_up: StartUp, tmp_path: Path
) -> None:
    file = tmp_path / "models.toml"
    both = start_up("--models", str(file))
    assert both.process.wait(30) == 2
    assert both.output.splitlines()[-1].endswith("are both given: the file has all models that are served")
    wrong = CommandUp(None, tmp_path / "wrong", "--models", str(file))
    assert wrong.process.wait(30) == 2
    assert wrong.output.splitlines()[-1] == f"scoreline: {file} can't be read: No such file or directory"


@pytest.mark.slow
def test_a_file_of_models_is_served_by_one_worker(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text("".join(f"[models.{name}]\nmodel = '{DEMONSTRATION_MODEL}'\n" for name in ("triage", "rerank")))
    up = CommandUp(None, tmp_path, "--models", str(file), command=REAL)
    try:
        up.wait_until_ready(180.0)
        assert "serving triage, rerank." in up.output
        with Client(up.url) as client:
            for name in ("triage", "rerank"):
                scored = client.score("Is it good?", ["Yes, it is.\nAnswer:"], labels=[" yes"], model=name)
                assert scored.model == name
    finally:
        up.close()


def test_a_missing_model_directory_is_one_clear_line(start_up: StartUp) -> None:
    up = start_up("--model", "/nowhere/at/all")
    assert up.process.wait(30) == 2
    said = "did not start: SCORELINE_MODEL is '/nowhere/at/all': model directory /nowhere/at/all does not exist;"
    assert said in up.output.splitlines()[-1]
    assert up.children() == {}


EACH_COMMAND = """
import contextlib, io, json, sys
from scoreline.command import main

for command in json.loads(sys.argv[1]):
    sys.argv = ["scoreline", *command.split()]
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, output.getvalue(), errors.getvalue()]))
"""
"""A program that runs commands one after the other, and prints how each has ended and what it has printed."""


def ends_of(commands: list[str], folder: Path, before: str = "") -> list[tuple[int, str, str]]:
    """Return the exit code, the output and the errors of commands. folder: where Python finds the package.

    before: what Python does before it imports the package.
    """
    run = subprocess.run(
        [sys.executable, "-P", "-c", before + EACH_COMMAND, json.dumps(commands)],
        env=os.environ | {"PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        check=True,
        text=True,
    )
    return [tuple(json.loads(line)) for line in run.stdout.splitlines()]


def test_without_a_checkout_the_server_commands_say_so(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scoreline", tmp_path / "scoreline")
    commands = ["up", "api", "worker", "deliver", "migrate", "demo", "keys list"]
    for command, (code, output, errors) in zip(commands, ends_of(commands, tmp_path), strict=True):
        assert (code, output) == (1, ""), command
        (line,) = errors.splitlines()
        assert line.startswith("scoreline: the server is not installed here"), command


def test_without_its_packages_the_service_says_what_to_install_before_it_starts() -> None:
    commands = ["up", "demo"]
    for code, output, errors in ends_of(commands, ROOT, "import sys; sys.modules['jax'] = None"):
        assert (code, output) == (1, "")
        (line,) = errors.splitlines()
        assert line.startswith("scoreline: packages of the server are not installed here: jax. Install them first: pip")


def test_a_process_that_watches_its_parent_ends_with_it() -> None:
    """The way used on systems whose kernel can't end a child with its parent."""
    watching = (
        # The parent is asked for first: once the id is printed, it may be killed.
        "import os; from scoreline.child import _watch; parent = os.getppid(); "
        "print(os.getpid(), flush=True); _watch(parent)"
    )
    parent = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            f"import subprocess, sys; subprocess.run([sys.executable, '-c', {watching!r}])",
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    wait_until(lambda: gone([child]), "the child is gone")
