"""The benchmark of host time scores every item, with programs that take no time."""

import pytest

from benchmarks.host_time import instant_engine, rates, through_the_engine, through_the_queue
from tests.services import PostgresServer
from tools.tpu.workloads import alike


@pytest.mark.slow
def test_every_item_goes_through_the_engine_and_through_the_queue(postgres: PostgresServer) -> None:
    engine, workload, jobs = instant_engine(), alike(300, 30, 20), 10
    of_engine = through_the_engine(engine, workload, jobs, repeat=0)
    of_queue = through_the_queue(engine, postgres, workload, jobs, repeat=0)
    assert set(rates(jobs * workload.items, of_engine)) == {"items_per_s", "items_per_processor_s"}
    assert of_queue.wall > 0
    assert of_queue.worker > 0
