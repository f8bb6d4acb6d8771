"""The faults of a soak: one after the other, at random from a seed."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

from tests.faults.deployment import FaultyDeployment, Launched
from tests.services import PostgresServer, RedisServer

MOST_SILENT_SECONDS = 6.0
"""The longest freeze of PostgreSQL or Redis. The deadlines of a soak's processes are shorter."""


class Faults:
    """Kills, freezes and restarts the processes of a deployment.

    All in one thread, because the kernel ends a server together with the thread that started it. Freezes last up to
    twice ``lease_seconds``, so some workers are thawed after their batches were given to others.
    """

    def __init__(
        self,
        deployment: FaultyDeployment,
        postgres: PostgresServer | None,
        redis_server: RedisServer,
        *,
        workers: int,
        deliverers: int,
        lease_seconds: float,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self._deployment = deployment
        self._postgres = postgres
        self._redis = redis_server
        self._lease_seconds = lease_seconds
        self._chance = random.Random(f"{seed} faults")
        self._say = say
        self._api = deployment.launch_api()
        self._workers = [self._new_worker() for _ in range(workers)]
        self._deliverers = [deployment.launch_deliverer(wait=False) for _ in range(deliverers)]
        self._frozen: dict[str, float] = {}
        self.counts = Counter[str]()

    def cause(self, seconds: float, pause: float) -> None:
        """Cause one fault after another for so many seconds, with pauses of about ``pause`` seconds."""
        kinds = {
            self._kill_worker: 6,
            self._freeze_worker: 8,
            self._terminate_worker: 2,
            self._restart_redis: 3,
            self._freeze_redis: 2,
            self._flush_redis: 3,
            self._kill_api: 1,
            self._kill_deliverer: 3,
            self._terminate_deliverer: 1,
            self._freeze_deliverer: 2,
        }
        if self._postgres is not None:
            kinds[self._restart_postgres] = 2
            kinds[self._freeze_postgres] = 2
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            (fault,) = self._chance.choices(list(kinds), list(kinds.values()))
            name = fault.__name__.strip("_").replace("_", " ")
            if fault():
                self.counts[name] += 1
                self._say(name)
            time.sleep(self._chance.uniform(0.2, 1.8) * pause)
            self._thaw()

    def settle(self) -> None:
        """Thaw all processes, and check that all of them run."""
        self._thaw(everyone=True)
        self._assert_none_ended()
        self._deployment.wait_for_api()

    def _new_worker(self) -> Launched:
        return self._deployment.launch_worker(mode="slow", for_api=True, wait=False)

    def _kill_worker(self) -> bool:
        return self._replace(Launched.kill)

    def _terminate_worker(self) -> bool:
        def terminate(worker: Launched) -> None:
            worker.thaw()
            worker.terminate()

        return self._replace(terminate)

    def _kill_deliverer(self) -> bool:
        return self._replace_deliverer(Launched.kill)

    def _terminate_deliverer(self) -> bool:
        return self._replace_deliverer(Launched.terminate)

    def _replace_deliverer(self, end: Callable[[Launched], object]) -> bool:
        deliverer = self._chance.choice(self._deliverers)
        if self._frozen.pop(deliverer.name, None) is not None:
            deliverer.thaw()
        end(deliverer)
        self._deliverers[self._deliverers.index(deliverer)] = self._deployment.launch_deliverer(wait=False)
        return True

    def _freeze_deliverer(self) -> bool:
        deliverer = self._chance.choice(self._deliverers)
        if deliverer.name in self._frozen or not deliverer.logged("ready"):
            return False
        deliverer.freeze()
        self._frozen[deliverer.name] = time.monotonic() + self._chance.uniform(0.1, 2.0) * self._lease_seconds
        return True

    def _replace(self, end: Callable[[Launched], object]) -> bool:
        worker = self._working()
        if worker is None:
            return False
        self._frozen.pop(worker.name, None)
        end(worker)
        self._workers[self._workers.index(worker)] = self._new_worker()
        return True

    def _freeze_worker(self) -> bool:
        worker = self._working()
        if worker is None or worker.name in self._frozen:
            return False
        worker.freeze()
        self._frozen[worker.name] = time.monotonic() + self._chance.uniform(0.1, 2.0) * self._lease_seconds
        return True

    def _working(self) -> Launched | None:
        """Return a random worker that is ready; None if no other ready worker would be left."""
        self._assert_none_ended()
        ready = [worker for worker in self._workers if worker.logged("ready")]
        return self._chance.choice(ready) if len(ready) > 1 else None

    def _assert_none_ended(self) -> None:
        for worker in (*self._workers, *self._deliverers):
            if worker.process.poll() is not None:
                raise RuntimeError(f"{worker.name} ended by itself with {worker.process.returncode}:\n{worker.log}")

    def _thaw(self, *, everyone: bool = False) -> None:
        for worker in (*self._workers, *self._deliverers):
            if worker.name in self._frozen and (everyone or self._frozen[worker.name] < time.monotonic()):
                del self._frozen[worker.name]
                worker.thaw()

    def _restart_redis(self) -> bool:
        self._redis.stop()
        time.sleep(self._chance.uniform(0.0, 2.0))
        self._redis.start()
        return True

    def _freeze_redis(self) -> bool:
        with self._redis.frozen():
            time.sleep(self._chance.uniform(0.5, MOST_SILENT_SECONDS))
        return True

    def _freeze_postgres(self) -> bool:
        assert self._postgres is not None
        with self._postgres.frozen():
            time.sleep(self._chance.uniform(0.5, MOST_SILENT_SECONDS))
        return True

    def _flush_redis(self) -> bool:
        self._redis.flush()
        return True

    def _restart_postgres(self) -> bool:
        assert self._postgres is not None
        self._postgres.stop()
        time.sleep(self._chance.uniform(0.0, 2.0))
        self._postgres.start()
        return True

    def _kill_api(self) -> bool:
        self._api.kill()
        self._api = self._deployment.launch_api()
        return True
