"""An API on a real socket, and a stand-in for the scoring worker that works on the real store."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from api.application import create_app
from api.budget import Budget
from api.server.server import Server
from api.server.starting import Starting
from bell.interfaces import WorkerBell
from bell.local import LocalBell
from checkpoints.card import ModelCard
from checkpoints.files import read_model_card
from jobs.queue.claims.claim import claim
from jobs.queue.finish import finish
from jobs.queue.lease import abandon
from jobs.queue.provenance import record_provenance
from jobs.queue.worker_registry import register, touch
from jobs.store.database import Database, StorageUnavailable
from jobs.store.provenance import Provenance
from jobs.store.records import WorkerRecord
from scoring.layout import ChunkWork, Continuations, GroupWork, LabelScores, ScoredChunk, TopTokens
from scoring.tokenizing.tokenization import TextTokenizer
from settings.api import ApiSettings
from settings.bell import BellSettings
from settings.keys import KeySettings
from settings.limits import LimitSettings
from settings.scoring import ScoringSettings
from settings.store import StoreSettings
from settings.telemetry import TelemetrySettings
from settings.webhooks import WebhookSettings
from tests.api import tiny_model
from tests.packed_rows import whole_sequences

DEADLINE_SECONDS = 60.0

KEY = "bootstrap-key-of-the-tests-" + "0" * 16
"""The bootstrap key, with which tests call as the default tenant."""

UNKNOWN_KEY = "sk_sl_" + "a" * 16 + "_" + "a" * 52
"""A key of this service that nobody has made. Where no key is required, other credentials count as none."""

Json = dict[str, Any]


def eventually(condition: Callable[[], object], what: str) -> None:
    """Return when the condition holds; fail if it does not within the deadline.

    What takes longer is looked at less often: each look may be a request, which takes processor time.
    """
    deadline, pause = time.monotonic() + DEADLINE_SECONDS, 0.01
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(pause)
        pause = min(1.5 * pause, 0.1)


def score_chunk(group: GroupWork, chunk: ChunkWork) -> ScoredChunk:
    """Score a chunk with the made-up model."""
    labels = list(chunk.label_token_ids)
    sequences = whole_sequences(group.prefix, chunk.rows)
    if chunk.continuations is not None:
        return _score_continuations(chunk, chunk.continuations, sequences)
    logits = np.stack([tiny_model.logits(sequence)[labels] for sequence in sequences])
    logprobs = np.stack([tiny_model.logprobs(sequence)[labels] for sequence in sequences])
    of_vocabulary = [tiny_model.logprobs(sequence).max() for sequence in sequences]
    scores = LabelScores(logits, logprobs, np.array(of_vocabulary, np.float32) if chunk.top else None)
    return ScoredChunk(chunk.id, scores, cached_tokens=0)


def _score_continuations(chunk: ChunkWork, continuations: Continuations, rows: list[list[int]]) -> ScoredChunk:
    assert not chunk.label_token_ids
    kept = continuations.kept.tolist()
    ends = np.cumsum(continuations.lengths)
    targets = [part.tolist() for part in np.split(continuations.tokens, ends)[: len(continuations)]]
    before = [rows[n // chunk.columns][: kept[n]] for n in range(len(continuations))]
    of_each = [tiny_model.target_logprobs(*one) for one in zip(before, targets, strict=True)]
    sums = np.array([one.sum(dtype=np.float64) for one in of_each]) / continuations.divisors
    values = sums.astype(np.float32).reshape(len(rows), chunk.columns)
    greedy = np.array([tiny_model.is_greedy(*one) for one in zip(before, targets, strict=True)], np.bool_)
    return ScoredChunk(
        chunk.id,
        LabelScores(values, values),
        cached_tokens=0,
        token_logprobs=np.concatenate([np.zeros(0, np.float32), *of_each]) if chunk.keep_targets else None,
        greedy=greedy if chunk.keep_targets else None,
        top=_top(before, targets) if chunk.keep_targets and chunk.top else None,
    )


def _top(before: list[list[int]], targets: list[list[int]]) -> TopTokens:
    """The most probable token in the place of each target."""
    places = [[*one, *own[:n]] for one, own in zip(before, targets, strict=True) for n in range(len(own))]
    over_vocabulary = [tiny_model.logprobs(place) for place in places]
    return TopTokens(
        np.array([one.argmax() for one in over_vocabulary], np.int32),
        np.array([one.max() for one in over_vocabulary], np.float32),
    )


class Gate(threading.Event):
    """While it is set, a worker claims. When it has been cleared, no claim is under way, and none begins."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """wake: what wakes the worker."""
        super().__init__()
        self.claiming = threading.Lock()  # held while the worker claims
        self._wake = wake

    def set(self) -> None:
        super().set()
        self._wake()

    def clear(self) -> None:
        super().clear()
        with self.claiming:
            pass


class StandInWorker(threading.Thread):
    """A thread that claims, scores and finishes chunks like a worker."""

    def __init__(self, store: StoreSettings, card: ModelCard, bell_socket: str) -> None:
        super().__init__(name="stand-in worker", daemon=True)
        self._rung = threading.Event()
        self.gate = Gate(self._rung.set)
        self.gate.set()
        self.fails = False  # whether every batch fails
        self.budget = 100_000  # tokens of a claim
        self.score_chunk = score_chunk
        self.provenance: Provenance | None = None  # of its scores, if it records any
        self.after_batch: Callable[[], None] = lambda: None  # called when a batch is finished
        self._database = Database.open(store)
        self._card = card
        self._stopped = threading.Event()
        self._bell = LocalBell(bell_socket, [card.name], self._rung.set)
        self.announcing_bell: WorkerBell = self._bell
        self._id = f"stand-in-{uuid.uuid4()}"
        register(self._database, WorkerRecord(self._id, card, "made-up", "none", "float32"))

    def run(self) -> None:
        """Work until stopped."""
        listening = threading.Thread(target=self._bell.run, args=(lambda: None,), daemon=True)
        listening.start()
        while not self._stopped.is_set():
            self._rung.wait(0.5)
            self._rung.clear()
            try:
                touch(self._database, self._id)
                while self._work():
                    pass
            except StorageUnavailable:
                continue
        self._bell.stop()
        listening.join(DEADLINE_SECONDS)
        self._database.close()

    def stop(self) -> None:
        """Stop and wait for the thread."""
        self._stopped.set()
        self._rung.set()
        self.join(DEADLINE_SECONDS)
        assert not self.is_alive()

    def _work(self) -> bool:
        with self.gate.claiming:
            claimed = claim(self._database, self._id, self._card, self.budget) if self.gate.is_set() else None
        if claimed is None:
            return False
        if self.fails:
            self.announcing_bell.announce(abandon(self._database, claimed.batch_id, "the engine failed").job_ids)
            return True
        scored = [claimed.whole(self.score_chunk(group, chunk)) for group in claimed.groups for chunk in group.chunks]
        provenances = {}
        if self.provenance is not None:
            provenances = dict.fromkeys(claimed.chunk_ids, record_provenance(self._database, self.provenance))
        finished = finish(self._database, claimed.batch_id, scored, provenances=provenances)
        self.announcing_bell.announce(finished.job_ids, finished.results)
        self.after_batch()
        return True


class RunningApi:
    """An API server in a thread, and a client for it."""

    def __init__(self, model_directory: Path, database_url: str, folder: Path, **overrides: Any) -> None:
        def of(slice_type: type[Any], **values: Any) -> Any:
            fields = slice_type.model_fields
            return slice_type(**values | {name: value for name, value in overrides.items() if name in fields})

        folder.mkdir(parents=True, exist_ok=True)
        self.bell = of(BellSettings, bell_socket=str(folder / "bell"))
        self.store: StoreSettings = of(StoreSettings, database_url=database_url, sweep_seconds=0.5)
        self.scoring: ScoringSettings = of(ScoringSettings, model=str(model_directory), model_name="tiny")
        self.api: ApiSettings = of(ApiSettings, batch_poll_seconds=0.2)
        self.app = create_app(
            api=self.api,
            limits=of(LimitSettings),
            scoring=self.scoring,
            store=self.store,
            bell=self.bell,
            webhooks=of(WebhookSettings),
            keys=of(KeySettings, bootstrap_key=KEY),
            telemetry=of(TelemetrySettings),
            tracer=overrides.get("tracer"),
        )
        # The socket is bound here, so that its port is known and reserved.
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = Server(
            self.app,
            shutdown_seconds=overrides.get("shutdown_seconds", 5),
            drain_seconds=self.api.drain_seconds,
            starting=Starting([self._socket]) if overrides.get("is_alone") else None,
        )
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self.client = self.client_with(KEY)

    def client_with(self, key: str | None) -> httpx2.Client:
        """Return a client with an API key, or without one."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        # The server has no TLS, and reading all authorities would take as long as starting it.
        return httpx2.Client(base_url=self.url, timeout=DEADLINE_SECONDS, headers=headers, verify=False)

    @property
    def budget(self) -> Budget:
        """What the open requests hold together."""
        given = [one.kwargs.get("budget") for one in self.app.user_middleware]
        (budget,) = [one for one in given if isinstance(one, Budget)]
        return budget

    def start(self) -> None:
        """Start the server, and return when it serves."""
        self._thread.start()
        eventually(lambda: self._server.started or not self._thread.is_alive(), "the server starts")
        assert self._server.started

    def tell_to_stop(self) -> None:
        """Begin to shut down, as a signal would, and wait for nothing."""
        self._server.should_exit = True

    def end_draining(self) -> None:
        """Have a server that was told to stop take no more requests."""
        self._server.force_exit = True

    def stop(self) -> None:
        """Shut down, and wait until the server has ended."""
        self.client.close()
        self.tell_to_stop()
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive()

    def worker(self, bell_socket: str | None = None) -> StandInWorker:
        """Return a worker of the model, not started. bell_socket: another socket than that of this server."""
        directory = Path(self.scoring.model)
        tokenizer = TextTokenizer.load(directory)
        card = read_model_card(directory, "tiny", self.scoring.multi_item_scoring_delimiter, tokenizer)
        return StandInWorker(self.store, card, bell_socket or self.bell.bell_socket)

    def score(self, **body: Any) -> Json:
        """Call ``POST /v1/score``, which must answer with 200."""
        response = self.client.post("/v1/score", json=body)
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer

    def submit(self, headers: dict[str, str] | None = None, **body: Any) -> Json:
        """Call ``POST /v1/jobs``, which must answer with 202."""
        response = self.client.post("/v1/jobs", json=body, headers=headers)
        assert response.status_code == 202, response.text
        job: Json = response.json()
        return job

    def wait(self, job_id: str) -> Json:
        """Wait until a job has ended, and return it."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            job: Json = self.client.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=10"}).json()
            if job["status"] not in ("receiving", "queued", "running"):
                return job
        raise AssertionError(f"{job_id} never ended: {job}")


@contextmanager
def running_api(
    model_directory: Path, database_url: str, folder: Path, *, with_worker: bool = True, **overrides: Any
) -> Iterator[tuple[RunningApi, StandInWorker | None]]:
    """Run a server and, by default, a worker. overrides: values for the settings."""
    api = RunningApi(model_directory, database_url, folder, **overrides)
    api.start()
    worker = None
    try:
        if with_worker:
            worker = api.worker()
            worker.start()
        yield api, worker
    finally:
        if worker is not None:
            worker.stop()
        api.stop()
