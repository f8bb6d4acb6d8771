"""Serve several models with one device: those that fit are loaded at the same time, and others take turns.

A model is loaded when work waits for it. If there is no room, it takes the place of another: at once if nothing waits
for that one, otherwise when that one had its turn. A turn lasts many times as long as a loading, so that two models
with much work each do not keep the worker loading, and models get the same time each.
"""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

import structlog

from checkpoints.files import CheckpointError
from jobs.queue.read import has_waiting
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import WorkerRecord
from settings.errors.endings import in_one_line
from settings.errors.mistakes import SettingError
from workers.engine_loop.claimer import RING_SECONDS
from workers.engine_loop.garbage import GarbageCollector, freeze
from workers.engine_loop.heartbeat import Heartbeat
from workers.engine_loop.loop import ScoringLoop
from workers.engine_loop.models.wanted import Loaded, Wanted
from workers.engine_loop.watchdog import Watchdog

TURN_LOADINGS = 10.0
"""How many times as long as its loading a model stays, while work waits for it and for another without room."""

MOST_TURN_SECONDS = 60.0
"""How long a turn lasts at most: the first loading of a model compiles its programs, and takes longer than others."""

URGENT_LOADINGS = 1.0
"""The same, if the work that waits for the other model is interactive: somebody waits for its answer."""

FOLLOWING_SECONDS = 1.0
"""How often the worker asks the database which models it is to serve, and which of them have work."""

REFUSED_SECONDS, MOST_REFUSED_SECONDS = 30.0, 3_600.0
"""After a model could not be loaded, how long it takes until that is tried again: twice as long each time, because each
trial may cost other models their place."""

log = structlog.stdlib.get_logger("worker")

GRACE_SECONDS = 5.0
"""How long a version is served beside the one that takes its place: APIs learn of it within a second or two."""

Key = tuple[str, int | None]
"""The name and the version of a model."""


class _StoppedError(Exception):
    """The worker was told to stop while it loaded a model."""


@dataclass(eq=False, slots=True)
class Seat:
    """A model and, while it is loaded, its engine. Its loop and its row among the workers stay when it is not."""

    wanted: Wanted
    loop: ScoringLoop | None = None  # None: it was never loaded
    heartbeat: Heartbeat | None = None  # None: it was never loaded, or could not be loaded again
    worker_id: str = ""  # of the row
    loaded: Loaded | None = None
    nbytes: int = 0  # that it takes while it is loaded
    used_seconds: float = 0.0  # of the worker, as its share counts them
    load_seconds: float = 0.0  # that its last loading took
    loaded_at: float = 0.0  # on the monotonic clock
    is_busy: bool = False  # whether its last claim found work, or none was tried since it was loaded
    fingerprint: str = ""  # of the weights that it was first loaded with
    expecting: Future[int] | None = None  # about how much it will take, while its files are looked for
    refused_until: float = 0.0  # on the monotonic clock
    refused: int = 0  # times, one after another
    superseded_at: float = 0.0  # when it was last to be served, on the monotonic clock

    @property
    def key(self) -> Key:
        return self.wanted.card.name, self.wanted.card.version


@dataclass(frozen=True, slots=True, eq=False)
class RotaParts:
    """What a rota makes the loop and the row of a model with."""

    database: Database
    make_loop: Callable[[Loaded, Callable[[], Sequence[ScoringLoop]]], ScoringLoop]
    poll_seconds: float
    budget_bytes: int  # that all loaded models may take together
    largest_bytes: int  # that a model may take which is loaded alone
    watchdog: Watchdog  # of loading


@dataclass(eq=False)
class Rota:
    """Decides which model scores next, and which ones are loaded. :meth:`wake` may be called from any thread."""

    parts: RotaParts
    supply: Callable[[], Sequence[Wanted]]  # reads which models are to be served, those with accepted work included
    clock: Callable[[], float] = time.monotonic
    stopping: threading.Event = field(default_factory=threading.Event)
    loadings: int = 0  # so far

    def __post_init__(self) -> None:
        self._seats: dict[Key, Seat] = {}
        self._woken = threading.Event()
        self._garbage = GarbageCollector()
        self._followed_at = -math.inf
        # What is fetched from a hub must keep no model from scoring.
        self._looking = ThreadPoolExecutor(1, "looking for models")
        self._now = 0.0  # the share of the model that scored last, below which no other begins

    def wake(self) -> None:
        """Look for work now."""
        for seat in list(self._seats.values()):
            if seat.loop is not None:
                seat.loop.wake()
        self._woken.set()

    def stop(self) -> None:
        """Stop after the present engine step."""
        self.stopping.set()
        self.wake()

    def prefix_counts(self) -> Mapping[str, int]:
        """Return the events of the prefix caches of all loaded models."""
        counts: dict[str, int] = {}
        # Another thread may ask, while this one loads and unloads.
        for loaded in [seat.loaded for seat in self._loaded()]:
            for event, count in loaded.prefix_counts.items() if loaded is not None else ():
                counts[event] = counts.get(event, 0) + count
        return counts

    def run(self) -> None:
        """Score until stopped. Raises EngineBrokenError."""
        try:
            while not self.stopping.is_set():
                self._woken.clear()
                self._follow()
                if self._make_way() or self._score():
                    continue
                self._garbage.collect_idle()
                if not self.stopping.is_set():
                    self._woken.wait(self.parts.poll_seconds)
        except _StoppedError:
            log.info("stopped while loading a model")
        finally:
            self._looking.shutdown(wait=False, cancel_futures=True)
            for seat in self._seats.values():
                self._leave(seat)

    def _follow(self) -> None:
        """Learn which models are to be served."""
        now = self.clock()
        if now - self._followed_at < FOLLOWING_SECONDS:
            return
        self._followed_at = now
        try:
            supply = {(one.card.name, one.card.version): one for one in self.supply()}
        except StorageUnavailable:
            return
        for key, wanted in supply.items():
            if key not in self._seats:
                log.info("a model is to be served", model=key[0], version=key[1])
                self._seats[key] = Seat(wanted, used_seconds=self._now)
        for key, seat in list(self._seats.items()):
            if key in supply or self._stands_in(seat, supply):
                seat.superseded_at = now
            elif seat.loop is None or (not seat.is_busy and now - seat.superseded_at >= GRACE_SECONDS):
                log.info("a model is served no more", model=key[0], version=key[1])
                self._leave(seat)
                del self._seats[key]

    def _stands_in(self, seat: Seat, supply: Collection[Key]) -> bool:
        """Return whether a version is served because the one that takes its place was not loaded yet."""
        versions = [key for key in supply if key[0] == seat.key[0]]
        newest = max(versions, key=lambda key: key[1] or 0, default=None)
        return newest is not None and seat.loop is not None and self._seats[newest].loop is None

    def _score(self) -> bool:
        """Let the model score whose turn it is. Return whether one of the loaded models had work."""
        seats = sorted(self._loaded(), key=lambda seat: seat.used_seconds)
        if len(seats) > 1:
            seats.sort(key=lambda seat: not self._waits(seat, interactive_only=True))
        for seat in seats:
            started = self.clock()
            assert seat.loop is not None
            seat.is_busy = seat.loop.turn()
            if seat.is_busy:
                self._now = max(self._now, seat.used_seconds)
                seat.used_seconds = self._now + self.clock() - started
                if len(seats) == 1 and not seat.loop.expects_more:
                    self._woken.wait(min(RING_SECONDS, self.parts.poll_seconds))
                return True
            if self.stopping.is_set():
                return False
        return False

    def _make_way(self) -> bool:
        """Load a model that has work, or that was never loaded, if it is its turn. Return whether one was loaded."""
        now = self.clock()
        absent = [seat for seat in self._seats.values() if seat.loaded is None and now >= seat.refused_until]
        wanting = [seat for seat in absent if self._is_known(seat) and (seat.loop is None or self._waits(seat))]
        free = self.parts.budget_bytes - sum(one.nbytes for one in self._loaded())
        somebody_waits = False
        for seat in sorted(wanting, key=lambda seat: seat.used_seconds):
            # Who needs less must not take the places, one after another, that a larger model waits for.
            room = [] if seat.nbytes <= free else None if somebody_waits else self._room_for(seat, free)
            if room is None:
                somebody_waits = True
                continue
            for other in room:
                self._unload(other)
            self._load(seat)
            return True
        return False

    def _is_known(self, seat: Seat) -> bool:
        """Return whether it is known how much a model takes. Otherwise its files are looked for."""
        if seat.nbytes:
            return True
        if seat.expecting is None:
            seat.expecting = self._looking.submit(seat.wanted.expected_bytes)
            seat.expecting.add_done_callback(lambda _: self._woken.set())
        if not seat.expecting.done():
            return False
        looked, seat.expecting = seat.expecting, None
        try:
            expected = looked.result()
        except (CheckpointError, SettingError) as error:
            self._refuse(seat, in_one_line(error))
            return False
        if expected > self.parts.largest_bytes:
            most = self.parts.largest_bytes
            self._refuse(seat, f"it takes about {expected} bytes of {most} (SCORELINE_WORKER_MODELS_BYTES)")
            return False
        seat.nbytes = expected
        return True

    def _room_for(self, seat: Seat, free: int) -> list[Seat] | None:
        """Return the models to whose place a model may be loaded; None if it is not its turn yet. free: bytes."""
        # Those that have nothing to do make room first, and then the one that has had the most.
        candidates = sorted(self._loaded(), key=lambda one: (one.is_busy, -one.used_seconds))
        room: list[Seat] = []
        while seat.nbytes > free and candidates:
            other = candidates.pop(0)
            if other.is_busy and self._waits(other) and not self._turn_is_over(other, seat):
                return None
            room.append(other)
            free += other.nbytes
        return room

    def _turn_is_over(self, seat: Seat, other: Seat) -> bool:
        is_urgent = self._waits(other, interactive_only=True)
        loadings = URGENT_LOADINGS if is_urgent else TURN_LOADINGS
        loading = max(seat.load_seconds, other.load_seconds)
        turn = max(loading, min(MOST_TURN_SECONDS, loadings * loading))
        return self.clock() - seat.loaded_at >= turn

    def _load(self, seat: Seat) -> None:
        started = self.clock()
        loaded, reason = self._try_to_load(seat)
        if loaded is None:
            self._refuse(seat, reason)
            # An error and the engine that it ended may hold each other, and the next loading needs their memory.
            gc.collect()
            return
        self.loadings += 1
        seat.fingerprint, seat.refused = loaded.worker.weights_fingerprint, 0
        seat.loaded, seat.nbytes = loaded, loaded.nbytes
        seat.loaded_at = self.clock()
        seat.load_seconds = seat.loaded_at - started
        seat.is_busy = True  # as far as is known: it was loaded for its work
        if seat.loop is None:
            seat.loop = self.parts.make_loop(loaded, lambda: self._beside(seat))
            seat.worker_id = loaded.worker.id
        else:
            seat.loop.engine = loaded.engine
        if seat.heartbeat is None:
            seat.heartbeat = self._register(seat, replace(loaded.worker, id=seat.worker_id), seat.loop)
        seat.used_seconds = max(seat.used_seconds, self._now)
        self._unload_what_is_too_much(seat)
        freeze()
        log.info(
            "ready",
            worker_id=seat.worker_id,
            model=seat.key[0],
            version=seat.key[1],
            seconds=round(seat.load_seconds, 3),
            loaded=len(self._loaded()),
        )

    def _try_to_load(self, seat: Seat) -> tuple[Loaded | None, str]:
        """Return the model in memory; or None, and why it is not there."""
        try:
            with self.parts.watchdog.armed():
                loaded = seat.wanted.load(sum(one.nbytes for one in self._loaded()), self._check_loading)
        except (CheckpointError, SettingError) as error:
            return None, in_one_line(error)
        if seat.fingerprint not in ("", loaded.worker.weights_fingerprint):
            return None, "its weights are not those that it was first loaded with: change it in the catalogue, too"
        return loaded, ""

    def _check_loading(self) -> None:
        self.parts.watchdog.feed()
        if self.stopping.is_set():
            raise _StoppedError

    def _register(self, seat: Seat, worker: WorkerRecord, loop: ScoringLoop) -> Heartbeat:
        """Have the worker's row for a model kept fresh, whether or not the model is loaded later on."""

        def ratio() -> float | None:
            return None if seat.loaded is None else seat.loaded.measured_ratio

        heartbeat = Heartbeat(self.parts.database, worker, lambda: loop.tokens_per_second, ratio)
        heartbeat.register(self.stopping)
        return heartbeat

    def _beside(self, seat: Seat) -> Sequence[ScoringLoop]:
        """Return the loops of the other loaded models."""
        return [one.loop for one in self._loaded() if one is not seat and one.loop is not None]

    def _unload_what_is_too_much(self, loaded: Seat) -> None:
        """Keep to the memory, if a model takes more than was expected."""
        for other in sorted(self._loaded(), key=lambda one: (one.is_busy, -one.used_seconds)):
            if other is not loaded and sum(one.nbytes for one in self._loaded()) > self.parts.budget_bytes:
                self._unload(other)

    def _unload(self, seat: Seat) -> None:
        log.info("a model makes room", model=seat.key[0], version=seat.key[1])
        seat.loaded, seat.is_busy = None, False
        if seat.loop is not None:
            seat.loop.engine = None
        # What was frozen is never collected, and the arrays of an engine may be part of a circle.
        gc.unfreeze()
        gc.collect()

    def _leave(self, seat: Seat) -> None:
        """Serve a model no more."""
        if seat.loaded is not None:
            self._unload(seat)
        if seat.loop is not None:
            seat.loop.close()
        self._unregister(seat)

    def _unregister(self, seat: Seat) -> None:
        if seat.heartbeat is not None:
            seat.heartbeat.__exit__()
            seat.heartbeat = None

    def _refuse(self, seat: Seat, reason: str) -> None:
        """Try a model again later. Until then the worker does not count as one that serves it."""
        self._unregister(seat)
        seat.refused_until = self.clock() + min(MOST_REFUSED_SECONDS, REFUSED_SECONDS * 2**seat.refused)
        seat.refused += 1
        log.error("a model can't be loaded", model=seat.key[0], version=seat.key[1], reason=reason)

    def _loaded(self) -> list[Seat]:
        return [seat for seat in list(self._seats.values()) if seat.loaded is not None]

    def _waits(self, seat: Seat, *, interactive_only: bool = False) -> bool:
        with suppress(StorageUnavailable):
            return has_waiting(self.parts.database, seat.wanted.card, interactive_only=interactive_only)
        return False
