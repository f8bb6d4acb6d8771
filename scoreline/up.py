"""``scoreline up``: run the embedded service in the foreground of a terminal."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from scoreline.client import Client, ScorelineError
from scoreline.embedded import EmbeddedService, EmbeddedSettings, StartError, StopRequest
from scoreline.server_process import require_server
from scoreline.terminal.progress_display import ProgressDisplay

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

EXAMPLE: dict[str, object] = {
    "query": "Query: how do I care for indoor plants?\n",
    "items": [
        "Document: Water the fern once a week and keep it out of the sun.\nRelevant:",
        "Document: The train to the coast leaves at nine.\nRelevant:",
    ],
}
DECISION: dict[str, object] = {
    "state": "My parcel has not arrived. I want a refund.",
    "questions": {"refund": {"type": "noul", "instructions": "Is a refund requested?"}},
}
"""What a model with a decision head is asked."""
GREETING_SECONDS = 5.0
"""How long the greeting may be kept waiting: a rate limit would have it wait for a minute."""

LABELS = (" yes", " no")


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Count the signals that ask this process to stop, instead of letting them end it.

    One that was to be ignored from the start, as SIGHUP under nohup, stays ignored.
    """
    stop = StopRequest()

    def count(_number: int, _frame: object) -> None:
        stop.count += 1

    heard = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, count) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def up(settings: EmbeddedSettings, console: Console) -> None:
    """Run the service until told to stop. Raises CommandError."""
    require_server()
    display = ProgressDisplay(console)
    with stop_signals() as stop:
        with running(settings, stop, display) as service:
            if not stop:
                greet(service, display)
                display.shows = lambda line: line.is_worth_showing
                service.run()
                display.print()
            display.print("Stopping.")
        display.print(f"Stopped. Jobs and scores are kept in {settings.data}.")


@contextmanager
def running(settings: EmbeddedSettings, stop: StopRequest, display: ProgressDisplay) -> Iterator[EmbeddedService]:
    """Start the service and close it at the end. It is ready, unless this process was told to stop before that."""
    service = EmbeddedService(settings, stop, display.on_log_line)
    try:
        what = f"the model {settings.model}" if settings.model else f"the models of {settings.models}"
        display.begin(f"Starting Scoreline with {what}")
        try:
            service.start()
            for warning in service.warnings:
                display.print(Text(f"warning: {warning}", style="yellow"))
            service.wait_until_ready()
        except StartError as error:
            display.end()
            display.print_log(error.role, error.log)
            raise
        finally:
            display.end()
        yield service
    finally:
        service.close()


def greet(service: EmbeddedService, display: ProgressDisplay) -> None:
    """Print where the service is, and how to try it if it answers to the key at hand."""
    url = service.url
    ready = Text.assemble("\nScoreline is ready at ", (url, "bold green"))
    documented = f"The interface is described at {url}/docs. Ctrl-C stops it.\n"
    try:
        with Client(url, api_key=service.api_key, retry_seconds=GREETING_SECONDS) as client:
            models = client.models()
            model = models[0]
            labels = [client.tokenize(label) for label in LABELS]
    except ScorelineError as error:
        # The environment has no key, or one that may not do this, or not now. Callers may have others. Whatever else
        # it is, the service is ready, and goes on.
        why = "for those who have a key" if error.status == 401 else f"but here it says: {error.message}"
        display.print(ready + Text(f", {why}."))
        display.print(documented)
        return
    # If a label is several tokens in this model's tokenizer, the example names token ids instead.
    single = all(len(tokens) == 1 for tokens in labels)
    named = {"labels": LABELS} if single else {"label_token_ids": [tokens[-1] for tokens in labels]}
    # A model with classes is asked for all of them.
    path, example = "/v1/score", EXAMPLE if model.classes else EXAMPLE | {"apply_softmax": True} | named
    if model.decides:
        path, example = "/v1/systemone", DECISION
    display.print(ready + Text(f", serving {', '.join(one.id for one in models)}."))
    display.print(documented)
    display.print("Try it:\n")
    body = shlex.quote(json.dumps(example))
    key = f'-H "Authorization: Bearer ${service.key_variable}" ' if service.key_variable else ""
    display.print(f"  curl -s {url}{path} {key}-H 'Content-Type: application/json' -d {body}\n")
