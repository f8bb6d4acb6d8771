"""``scoreline demo``: start the service with the demonstration model, print the scores of a few jobs, and stop."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from scoreline.client import Client, Job, TimedOut
from scoreline.embedded import EmbeddedService, EmbeddedSettings, StopRequest
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.server_process import DEMONSTRATION_JOBS, DEMONSTRATION_MODEL, require_server
from scoreline.terminal.progress_display import ProgressDisplay
from scoreline.terminal.tables import column_name, in_one_line, score_table
from scoreline.up import running, stop_signals

JOB_SECONDS = 60.0  # time limit for each job
LOOK_SECONDS = 1.0
"""How long a job is waited for before the next look at signals and processes."""


def demo(console: Console) -> int:
    """Show the jobs of ``examples/demo.json``. Returns the exit status. Raises CommandError, ScorelineError."""
    require_server()
    entries: list[dict[str, Any]] = json.loads(DEMONSTRATION_JOBS.read_text(encoding="utf-8"))
    display = ProgressDisplay(console)
    with tempfile.TemporaryDirectory(prefix="scoreline-demo-") as data, stop_signals() as stop:
        settings = EmbeddedSettings(str(DEMONSTRATION_MODEL), Path(data), port=0, model_name="demonstration")
        with running(settings, stop, display) as service:
            display.shows = lambda line: line.is_problem
            if not stop:
                display.print(f"Scoreline is running at {service.url}, with the demonstration model.")
                _score(entries, service, stop, display, console)
        if stop:
            return ExitCode.INTERRUPTED
    display.print("Scoreline has stopped. To keep it running and to send it jobs of your own:\n")
    display.print(f"  {_command()} up\n")
    return 0


def _score(
    entries: list[dict[str, Any]],
    service: EmbeddedService,
    stop: StopRequest,
    display: ProgressDisplay,
    console: Console,
) -> None:
    """Submit all jobs, then wait for each, unless told to stop."""
    started = time.monotonic()
    with Client(service.url, api_key=service.api_key) as client:
        jobs = [client.submit(**entry["body"], metadata={"title": entry["title"]}) for entry in entries]
        display.print(f"{len(jobs)} jobs are submitted; each was answered with 202 and an id to poll.\n")
        for entry, job in zip(entries, jobs, strict=True):
            ended = _wait(client, job.id, service, stop)
            if ended is None:
                return
            _print_scores(entry, ended, console)
        items = sum(job.total_items for job in jobs)
    display.print(f"{items} items in {len(jobs)} jobs took {time.monotonic() - started:.1f} s.")


def _wait(client: Client, job_id: str, service: EmbeddedService, stop: StopRequest) -> Job | None:
    """Return a job that has ended, or None if told to stop before that. A process that crashes is started again."""
    deadline = time.monotonic() + JOB_SECONDS
    while not stop:
        service.restart_ended()
        try:
            return client.wait(job_id, LOOK_SECONDS)
        except TimedOut:
            if time.monotonic() > deadline:
                raise CommandError(f"{job_id} has not ended after {JOB_SECONDS:g} s", ExitCode.TIMED_OUT) from None
    return None


def _print_scores(entry: Mapping[str, Any], job: Job, console: Console) -> None:
    if job.result is None:
        code, message = job.error or ("no_result", f"it is {job.status}")
        raise CommandError(f"the job “{entry['title']}” did not succeed: {code}: {message}")
    body = entry["body"]
    labels = body["labels"]
    # In a quiz, each row is a question of its own, so its rows keep their order.
    rank_by = None if entry["rank_by"] is None else labels.index(entry["rank_by"])
    table = score_table(body["items"], labels, job.result.scores, rank_by)
    console.print(Text.assemble((entry["title"], "bold"), ("  " + job.id, "dim")), soft_wrap=True)
    console.print(Text.assemble(("query:  ", "dim"), in_one_line(body["query"])), soft_wrap=True)
    if rank_by is not None:
        ranked = Text.assemble(("ranked: ", "dim"), f"by the score of {column_name(labels[rank_by])}")
        console.print(ranked, soft_wrap=True)
    console.print(Padding(table, (0, 0, 1, 2)))


def _command() -> str:
    """Return how to call this command again: by its name if the shell finds it, else by its path."""
    called = Path(sys.argv[0])
    if called.name != "scoreline" or shutil.which("scoreline"):
        return "scoreline"
    return str(called.relative_to(Path.cwd()) if called.is_relative_to(Path.cwd()) else called)
