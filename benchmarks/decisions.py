"""What decisions cost, beside other servers of ``/v1/systemone``: ``python -m benchmarks.decisions``.

Every server answers the same requests with the same checkpoint: the shape of Qwen3-0.6B with random weights, a small
tokenizer and Qwen's chat template. It runs alone, with all cores, and answers one request of each kind before it is
timed. ``large`` is a state of 2,000 tokens with 20 questions of about 60; ``small`` is a state of 200 tokens with 3
questions, from 1 and from 64 clients that send the next request when they have their answer. No state comes twice.

``ours`` is ``scoreline up``. ``--transformers`` also measures ``transformers serve``; its packages are looked for where
``PYTHONPATH`` says (``make parity`` installs torch). ``--vllm PATH`` also measures the command ``vllm`` at that path,
with blocks of 32 tokens. The last line is JSON: seconds of the large request, requests per second of the small ones,
and how far the probabilities of two servers lie apart at most.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.checkpoint import write
from benchmarks.shapes import SHAPES
from scoring.tokenizing.tokenization import TextTokenizer
from tests.model.decisions.checkpoints import CHAT_TEMPLATE
from tests.model.reranking.rerankers import write_checkpoint
from tests.services import free_port

START_SECONDS = 900.0
ANSWER_SECONDS = 900.0
WAIT_SECONDS = 300
SEED = 7

Answer = dict[str, float]


def make_checkpoint(directory: Path, shape: str) -> Path:
    """Write a checkpoint of a shape that can be asked for decisions."""
    write_checkpoint(directory, "qwen3-reranker", ["Yes", "No"] * 200)
    write(directory, SHAPES[shape], SEED)
    config = directory / "config.json"
    config.write_text(
        json.dumps(json.loads(config.read_text()) | {"eos_token_id": 0, "max_position_embeddings": 4_096})
    )
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return directory


class Requests:
    """Makes requests whose states have a number of tokens and are all different."""

    def __init__(self, directory: Path) -> None:
        self._tokenizer = TextTokenizer.load(directory)
        self._chance = random.Random(SEED)

    def text(self, tokens: int) -> str:
        """Return a text of about so many tokens."""
        words: list[str] = []
        while len(self._tokenizer.encode(" ".join(words))) < tokens:
            words += self._chance.choices(["garden", "water", "train", "plants", "coast", "fern", "why", "not"], k=8)
        return " ".join(words)

    def make(self, state_tokens: int, questions: int, question_tokens: int) -> dict[str, Any]:
        """Return a request, whose questions are of the three kinds."""
        made: dict[str, Any] = {}
        for n in range(questions):
            about = self.text(question_tokens)
            made[f"q{n}"] = (
                {"type": "noul", "instructions": about},
                {"type": "choice", "instructions": about, "criteria": {"water": None, "train": None, "fern": None}},
                {"type": "score", "instructions": about, "criteria": ["not", "why", "how"]},
            )[n % 3]
        return {"model": "m", "state": self.text(state_tokens), "questions": made}


@contextmanager
def _running(
    command: Sequence[str], port: int, environment: dict[str, str], log: Path
) -> Iterator[tuple[httpx2.Client, subprocess.Popen[bytes]]]:
    """Run a server until the block ends."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=os.environ | environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_SECONDS, trust_env=False) as client:
            yield client, process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _answer(client: httpx2.Client, request: dict[str, Any]) -> Answer:
    """Return the probability of each question's first option, or its mean level."""
    response = client.post("/v1/systemone", json=request)
    response.raise_for_status()
    answers = response.json()["answers"]
    return {
        name: one.get("noul", one.get("score", next(iter(one.get("probabilities", {}).values()), 0.0)))
        for name, one in answers.items()
    }


def _first_answer(client: httpx2.Client, process: subprocess.Popen[bytes], request: dict[str, Any], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            _answer(client, request)
        except (httpx2.HTTPError, OSError) as error:
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit(f"no answer: {error}\n{log.read_text(errors='replace')[-3000:]}") from None
            time.sleep(1)
        else:
            return


def _rate(client: httpx2.Client, requests: Sequence[dict[str, Any]], clients: int) -> float:
    """Return how many requests are answered in a second."""
    waiting = iter(requests)
    lock = threading.Lock()

    def work(_: int) -> None:
        while True:
            with lock:
                request = next(waiting, None)
            if request is None:
                return
            _answer(client, request)

    started = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(work, range(clients)))
    return len(requests) / (time.monotonic() - started)


Command = Callable[[Path, int], tuple[list[str], dict[str, str]]]


def _ours(directory: Path, port: int) -> tuple[list[str], dict[str, str]]:
    data = tempfile.mkdtemp(prefix="decisions-")
    command = [str(Path(sys.executable).with_name("scoreline")), "up", "--port", str(port), "--data", data]
    return command, {"SCORELINE_MODEL": str(directory), "SCORELINE_MODEL_NAME": "m"}


def _transformers(directory: Path, port: int) -> tuple[list[str], dict[str, str]]:
    code = "import sys; from transformers.cli.transformers import main; main()"
    serve = ["serve", str(directory), "--port", str(port), "--dtype", "bfloat16", "--device", "cpu"]
    return [sys.executable, "-c", code, *serve], {}


def _vllm(path: str) -> Command:
    def command(directory: Path, port: int) -> tuple[list[str], dict[str, str]]:
        options = ["--dtype", "bfloat16", "--block-size", "32", "--max-model-len", "4096", "--served-model-name", "m"]
        prefixes = ["--enable-prefix-caching", "--port", str(port), "--host", "127.0.0.1"]
        return [path, "serve", str(directory), *options, *prefixes], {"VLLM_CPU_KVCACHE_SPACE": "4"}

    return command


def measure(
    command: Command, directory: Path, requests: dict[str, list[dict[str, Any]]], rounds: int
) -> tuple[dict[str, float], list[Answer]]:
    """Return the figures of a server, and its answers to the large requests."""
    port = free_port()
    arguments, environment = command(directory, port)
    log = Path(tempfile.mkstemp(prefix="decisions-", suffix=".log")[1])
    with _running(arguments, port, environment, log) as (client, process):
        _first_answer(client, process, requests["warm small"][0], log)
        _rate(client, requests["warm small"], 16)
        _answer(client, requests["warm large"][0])
        seconds, answers = [], []
        for request in requests["large"][:rounds]:
            started = time.monotonic()
            answers.append(_answer(client, request))
            seconds.append(time.monotonic() - started)
        figures = {"large_seconds": statistics.median(seconds)}
        for clients in (1, 64):
            figures[f"small_{clients}_per_second"] = _rate(client, requests[f"small {clients}"], clients)
        return figures, answers


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions", description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--rounds", type=int, default=3, help="large requests that are timed")
    parser.add_argument("--small", type=int, default=128, help="small requests from 64 clients; an eighth from one")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--vllm", help="path of the command")
    options = parser.parse_args()
    systems: dict[str, Command] = {"ours": _ours}
    if options.vllm:
        systems["vllm"] = _vllm(options.vllm)
    if options.transformers:
        systems["transformers"] = _transformers
    with tempfile.TemporaryDirectory() as folder:
        directory = make_checkpoint(Path(folder), options.shape)
        make = Requests(directory).make
        requests = {
            "warm small": [make(200, 3, 30) for _ in range(32)],
            "warm large": [make(2_000, 20, 60)],
            "large": [make(2_000, 20, 60) for _ in range(options.rounds)],
            "small 1": [make(200, 3, 30) for _ in range(max(1, options.small // 8))],
            "small 64": [make(200, 3, 30) for _ in range(options.small)],
        }
        found = {}
        for name, command in systems.items():
            # One large request of transformers takes minutes.
            rounds = 1 if name == "transformers" else options.rounds
            of_system = requests
            if name == "transformers":
                of_system = {**requests, "warm small": requests["warm small"][:2], "warm large": requests["warm small"]}
                # It knows the model by its folder alone.
                of_system = {
                    kind: [one | {"model": str(directory)} for one in of_kind] for kind, of_kind in of_system.items()
                }
            if name == "ours":
                # Without it, a call that can't be answered within a minute is refused, so that others are in time.
                of_system = {
                    kind: [one | {"timeout": WAIT_SECONDS} for one in of_kind] for kind, of_kind in requests.items()
                }
            found[name] = measure(command, directory, of_system, rounds)
            print(name, found[name][0], file=sys.stderr, flush=True)
    reference = found["ours"][1]
    apart = {
        name: max(abs(one[q] - other[q]) for one, other in zip(reference, answers, strict=False) for q in one)
        for name, (_, answers) in found.items()
        if name != "ours"
    }
    print(json.dumps({name: figures for name, (figures, _) in found.items()} | {"apart": apart}))


if __name__ == "__main__":
    main()
