"""``scoreline up``: the embedded service in the foreground of a terminal."""

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
from scoreline.progress_display import Narrator

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

EXAMPLE = {
    "query": "Query: how do I care for indoor plants?\n",
    "items": [
        "Document: Water the fern once a week and keep it out of the sun.\nRelevant:",
        "Document: The train to the coast leaves at nine.\nRelevant:",
    ],
    "apply_softmax": True,
}
LABELS = (" yes", " no")


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Count the signals that ask this process to stop, instead of being ended by them."""
    stop = StopRequest()

    def count(_number: int, _frame: object) -> None:
        stop.count += 1

    before = {number: signal.signal(number, count) for number in STOP_SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def up(settings: EmbeddedSettings, console: Console) -> None:
    """Run the service until told to stop. Raises CommandError."""
    narrator = Narrator(console)
    with stop_signals() as stop:
        with running(settings, stop, narrator) as service:
            if not stop:
                greet(service, narrator)
                narrator.shows = lambda line: line.is_news
                service.run()
                narrator.say()
            narrator.say("Stopping.")
        narrator.say(f"Stopped. Jobs and scores are kept in {settings.data}.")


@contextmanager
def running(settings: EmbeddedSettings, stop: StopRequest, narrator: Narrator) -> Iterator[EmbeddedService]:
    """The service, ready, unless it is told to stop before it is."""
    service = EmbeddedService(settings, stop, narrator.line)
    try:
        narrator.begin(f"Starting Scoreline with the model {settings.model}")
        try:
            service.start()
            service.wait_until_ready()
        except StartError as error:
            narrator.end()
            narrator.show(error.role, error.said)
            raise
        finally:
            narrator.end()
        yield service
    finally:
        service.close()


def greet(service: EmbeddedService, narrator: Narrator) -> None:
    """Say where the service is and how to try it, as far as whoever started it may. Raises ScorelineError."""
    url = service.url
    ready = Text.assemble("\nScoreline is ready at ", (url, "bold green"))
    described = f"The interface is described at {url}/docs. Ctrl-C stops it.\n"
    try:
        with Client(url, api_key=service.api_key) as client:
            model = client.models()[0]
            labels = [client.tokenize(label) for label in LABELS]
    except ScorelineError as error:
        # No key is in the environment, or one that may not do this, or not now: there are others.
        if error.status not in (401, 403, 429):
            raise
        why = "for those who have a key" if error.status == 401 else f"but here it says: {error.message}"
        narrator.say(ready + Text(f", {why}."))
        narrator.say(described)
        return
    # Another tokenizer may need several tokens for a label's text; then the example names ids.
    single = all(len(tokens) == 1 for tokens in labels)
    example = EXAMPLE | ({"labels": LABELS} if single else {"label_token_ids": [tokens[-1] for tokens in labels]})
    narrator.say(ready + Text(f", serving {model.id}."))
    narrator.say(described)
    narrator.say("Try it:\n")
    body = shlex.quote(json.dumps(example))
    key = f'-H "Authorization: Bearer ${service.key_variable}" ' if service.key_variable else ""
    narrator.say(f"  curl -s {url}/v1/score {key}-H 'Content-Type: application/json' -d {body}\n")
