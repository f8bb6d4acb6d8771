"""The calls of programs that the engine makes for a workload on a device that is not there."""

from collections import Counter
from dataclasses import replace

import pytest

from model.chips.shares import Shares
from model.layers.tpu.gate import GATE
from model.layers.tpu.rotation import QKV
from model.platforms import Platform
from settings.engine import EngineSettings
from tests.model.devices import stand_in
from tools.tpu.frequencies import KERNEL, Visits, frequencies_of
from tools.tpu.programs import WeightlessEngine
from tools.tpu.shapes import QWEN3_06B, QWEN3_8B
from tools.tpu.workloads import MEASURED

CONFIG = replace(QWEN3_06B, context=16_384)
TPU = Platform.of(stand_in("tpu"), memory=31 * 2**30)


def engine(name: str) -> WeightlessEngine:
    settings = EngineSettings().model_copy(update=dict(MEASURED[name].settings))
    return WeightlessEngine(CONFIG, settings, TPU, MEASURED[name].algorithm)


def test_the_calls_of_the_target_are_those_of_full_steps() -> None:
    target = engine("target")
    calls = target.calls(MEASURED["target"].workload.work(CONFIG.vocabulary))
    counts = Counter(type(call.key).__name__ for call in calls)
    assert counts == {"PrefillKey": 1, "ExtendKey": 5, "HeadKey": 5, "GatherKey": 5}
    frequencies, _ = frequencies_of(calls[0], CONFIG, target.block_tokens)
    # A visit brings 512 of the query's 2,000 tokens to one of 8 key heads, and the softmax begins once for 4 visits.
    assert frequencies[f"{KERNEL}/loop0"] == 4 * 8
    assert frequencies[f"{KERNEL}/region0"] == 0.25
    # The kernel turns for two heads at a time: 8 times for queries, 4 for keys and for values. The first norms rows.
    assert [frequencies[f"{QKV}/region{n}"] * 16 for n in range(4)] == [1, 7, 4, 4]
    assert [frequencies[f"{GATE}/region{n}"] * 12 for n in range(2)] == [1, 11]


def test_several_chips_turn_for_their_own_heads() -> None:
    target = engine("target")
    call = target.calls(MEASURED["target"].workload.work(CONFIG.vocabulary))[0]
    frequencies, _ = frequencies_of(call, Shares.of(QWEN3_8B, 4).own, target.block_tokens)
    assert [frequencies[f"{QKV}/region{n}"] * 6 for n in range(4)] == [1, 3, 1, 1]


@pytest.mark.parametrize(("name", "visited"), [("packed_segment", 992), ("packed_dense", 3_200)])
def test_a_packed_sequence_visits_a_third_of_the_tiles_unless_it_is_dense(name: str, visited: int) -> None:
    """500 items of 20 tokens behind 2,000 take a sequence of 8,192 tokens and one of 6,144.

    These have 64 and 48 times 128 rows, and 32 and 24 windows of 256 keys.
    """
    packed = engine(name)
    visits = Visits()
    for call in packed.calls(MEASURED[name].workload.work(CONFIG.vocabulary)):
        visits += frequencies_of(call, CONFIG, packed.block_tokens)[1]
    assert visits == Visits(visited, 64 * 32 + 48 * 24)
