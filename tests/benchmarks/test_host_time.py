"""The benchmark of host time scores every item, with programs that take no time."""

import pytest

from benchmarks.host_time import made_up_engine, rates, through_the_engine, through_the_queue
from benchmarks.own_device import OwnDevice
from tests.services import PostgresServer
from tools.tpu.workloads import alike


@pytest.mark.slow
def test_every_item_goes_through_the_engine_and_through_the_queue(postgres: PostgresServer) -> None:
    engine, workload, jobs = made_up_engine(), alike(300, 30, 20), 10
    of_engine = through_the_engine(engine, workload, jobs, repeat=0)
    of_queue = through_the_queue(engine, postgres, workload, jobs, repeat=0)
    assert set(rates(jobs * workload.items, of_engine)) == {"items_per_s", "items_per_processor_s"}
    assert of_queue.wall > 0
    assert of_queue.worker > 0


@pytest.mark.slow
def test_a_device_of_its_own_is_busy_for_as_long_as_its_programs_take(postgres: PostgresServer) -> None:
    device = OwnDevice(0.004)
    engine, workload = made_up_engine(device), alike(300, 30, 20)
    of_queue = through_the_queue(engine, postgres, workload, 20, repeat=1, device=device, call_seconds=0.02)
    assert of_queue.steps >= 10
    assert of_queue.busy >= of_queue.steps * 0.004
    assert of_queue.busy + of_queue.idle <= of_queue.wall + 0.1
