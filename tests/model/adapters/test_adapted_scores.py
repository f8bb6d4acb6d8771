"""Groups that name an adapter get the scores of the model into which it is merged, whatever else is computed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.algorithms import EngineOptions, planned_by
from model.checks.known_answer import KnownAnswerError
from model.engine import Engine
from scoring.layout import AdapterError, ChunkWork, Continuations, GroupWork, Head, Rows
from tests.model import engines
from tests.model.adapters.folders import random_adapter
from tests.model.checkpoints import EVERY, sequences
from tests.model.engines import chunk
from tests.model.references.gates import FLOAT32_LOGPROBS
from tests.model.whole_steps.conftest import WHOLE_STEPS

LABELS = (3, 17, 41)
NAME, STEP = "qwen2 tied", 64
"""What most tests have, so that they share programs."""
FAMILIES = (
    NAME,
    pytest.param("qwen35", marks=pytest.mark.slow),
    *(pytest.param(name, marks=pytest.mark.matrix) for name in ("phi3", "gemma3", "granite4")),
)


def groups(name: str, adapter: str | None = None) -> list[GroupWork]:
    """Items behind a prefix of several steps, a lone item, and items with labels of several tokens."""
    config = EVERY[name]
    long, short, *items = sequences(config, 5, (300, 7, 1, 2, 9, 40, 90))
    labels = [[5, 6], [7], [8, 9, 10]] * 2
    continuations = Continuations.pack(labels, [len(short) + len(item) for item in items[:2] for _ in range(3)])
    of_several = ChunkWork(2, Rows.pack(items[:2], [len(short)] * 2), (), Head.LOGPROBS, continuations)
    return [
        GroupWork("tenant", long, (chunk(0, items, len(long), LABELS), chunk(1, items[:1], 100, LABELS)), adapter),
        GroupWork("tenant", short, (of_several,), adapter),
        GroupWork("tenant", np.zeros(0, np.int32), (chunk(3, items, 0, LABELS),), adapter),
    ]


def scores(engine: Engine, work: Sequence[GroupWork]) -> dict[int, np.ndarray]:
    found = {scored.id: scored.scores.logprobs for scored in engine.score(work, lambda: None)}
    assert all(values is not None for values in found.values())
    return found  # type: ignore[return-value]


def most_apart(one: dict[int, np.ndarray], other: dict[int, np.ndarray]) -> float:
    return max(float(np.abs(one[number] - other[number]).max()) for number in one)


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_are_those_of_the_merged_model(name: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    random_adapter(tmp_path / "mine", EVERY[name], 1)
    engine = engines.load(checkpoint(name), "float32", adapters=tmp_path, step_tokens=STEP)
    merged = engines.load(checkpoint(name), "float32", adapter=tmp_path / "mine", step_tokens=STEP)
    expected, alone = scores(merged, groups(name)), scores(engine, groups(name))
    assert most_apart(alone, expected) > 100 * FLOAT32_LOGPROBS
    algorithms = ["serial", "prefill_extend", *(["packed"] if EVERY[name].recurrence is None else [])]
    for algorithm in algorithms:
        with planned_by(EngineOptions(algorithm)):  # type: ignore[arg-type]
            assert most_apart(scores(engine, groups(name, "mine")), expected) <= FLOAT32_LOGPROBS, algorithm
    (scored, *_) = engine.score(groups(name, "mine"), lambda: None)
    assert scored.adapter == ("mine", merged.weights_fingerprint)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [NAME, *(pytest.param(name, marks=pytest.mark.matrix) for name in ("llama", "qwen35"))]
)
def test_whole_steps_compute_the_same_as_programs_by_layer(
    name: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    random_adapter(tmp_path / "mine", EVERY[name], 1)
    by_layer = engines.load(checkpoint(name), "float32", adapters=tmp_path, step_tokens=STEP)
    whole = engines.load(checkpoint(name), "float32", adapters=tmp_path, step_tokens=STEP, platform=WHOLE_STEPS)
    found = scores(whole, groups(name, "mine"))
    assert most_apart(found, scores(by_layer, groups(name, "mine"))) <= FLOAT32_LOGPROBS
    assert most_apart(found, scores(whole, groups(name))) > 100 * FLOAT32_LOGPROBS


@pytest.mark.parametrize("whole_steps", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_bits_do_not_depend_on_other_adapters(
    whole_steps: bool, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    for number, rank in enumerate((4, 4, 12)):
        random_adapter(tmp_path / f"a{number}", EVERY[NAME], number, rank)
    platform = WHOLE_STEPS if whole_steps else None
    engine = engines.load(checkpoint(NAME), "float32", adapters=tmp_path, platform=platform, step_tokens=STEP)
    alone, mixed = dict[int, np.ndarray](), list[GroupWork]()
    for number, adapter in enumerate((None, "a0", "a1", "a2")):
        work = [
            replace(group, chunks=tuple(replace(one, id=10 * number + one.id) for one in group.chunks))
            for group in groups(NAME, adapter)
        ]
        alone |= scores(engine, work)
        engine.prefix_cache.clear()
        mixed += work
    order = np.random.default_rng(0).permutation(len(mixed))
    found = scores(engine, [mixed[place] for place in order])
    assert all(np.array_equal(found[number].view(np.int32), alone[number].view(np.int32)) for number in alone)
    of_first = [found[10 * number] for number in range(4)]
    assert all(np.abs(one - of_first[0]).max() > 0.01 for one in of_first[1:])


def test_an_adapter_comes_changes_and_goes_while_others_are_served(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    engine = engines.load(checkpoint(NAME), "float32", adapters=tmp_path, step_tokens=STEP)
    with pytest.raises(AdapterError, match="there is no adapter 'late' any more"):
        scores(engine, groups(NAME, "late"))
    late = random_adapter(tmp_path / "late", EVERY[NAME], 1)
    first = scores(engine, groups(NAME, "late"))
    shutil.rmtree(late)
    random_adapter(late, EVERY[NAME], 2)
    changed = engine.score(groups(NAME, "late"), lambda: None)
    begun = next(changed)
    shutil.rmtree(late)  # in the midst of work that names it
    found = {scored.id: scored.scores.logprobs for scored in (begun, *changed)}
    assert np.abs(found[0] - first[0]).max() > 0.01
    with pytest.raises(AdapterError, match="any more"):
        scores(engine, groups(NAME, "late"))
    assert list(engine.forward.decoders._found) == [None]
    scores(engine, groups(NAME))


def test_adapters_of_one_kind_share_their_programs(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        random_adapter(tmp_path / f"a{number}", EVERY[NAME], number, rank=3 + number)
    engine = engines.load(checkpoint(NAME), "float32", adapters=tmp_path, step_tokens=STEP)
    scores(engine, groups(NAME, "a0"))
    monkeypatch.setattr("model.executable_table.ExecutableTable._compile", lambda *_: pytest.fail("compiled again"))
    scores(engine, groups(NAME, "a1"))
    scores(engine, groups(NAME, "a2"))


def test_programs_that_no_adapter_has_any_more_make_room(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.adapted_decoders.MAX_SHELVED", 1)
    engine = engines.load(checkpoint(NAME), "float32", adapters=tmp_path, step_tokens=STEP)
    _, second = (random_adapter(tmp_path / f"a{rank}", EVERY[NAME], rank, rank=rank) for rank in (2, 24))
    before = scores(engine, groups(NAME, "a2"))
    scores(engine, groups(NAME, "a24"))
    assert len(engine.forward.decoders._tables) == 2
    shutil.rmtree(second)
    scores(engine, groups(NAME, "a2"))
    assert len(engine.forward.decoders._tables) == 1, "of the adapter that is there"
    assert (scores(engine, groups(NAME, "a2"))[0] == before[0]).all()


@pytest.mark.parametrize("whole_steps", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_programs_that_leave_the_adapter_out_are_seen_before_they_are_used(
    whole_steps: bool, checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_adapter(tmp_path / "mine", EVERY[NAME], 1)
    platform = WHOLE_STEPS if whole_steps else None
    engine = engines.load(checkpoint(NAME), "float32", adapters=tmp_path, platform=platform, step_tokens=STEP)
    monkeypatch.setattr("model.architecture.projections.LowRank.__call__", lambda self, values: 0.0)
    for _ in range(2):  # What was refused once is not taken the next time.
        with pytest.raises(KnownAnswerError):
            scores(engine, groups(NAME, "mine"))
    assert list(engine.forward.decoders._found) == [None]


@pytest.mark.parametrize(
    ("name", "modules", "says"),
    [
        ("llama", ("lm_head",), "lm_head"),
        ("qwen3 moe", ("gate_proj",), r"experts\.0\.gate_proj"),
        ("qwen3 moe", ("gate",), r"mlp\.gate"),
        ("gpt-oss", ("router",), r"mlp\.router"),
    ],
)
def test_what_can_only_be_merged_is_refused_by_name(
    name: str, modules: tuple[str, ...], says: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    engine = engines.load(checkpoint(name), "float32", adapters=tmp_path)
    random_adapter(tmp_path / "mine", EVERY[name], 1, modules=("q_proj", *modules))
    with pytest.raises(AdapterError, match=rf"mine.*can't be served: .*{says}.*SCORELINE_ADAPTERS"):
        scores(engine, groups(name, "mine"))


def test_an_adapter_with_nan_is_left_out_and_the_others_are_served(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    random_adapter(tmp_path / "first", EVERY[NAME], 1, size=float("nan"))
    random_adapter(tmp_path / "second", EVERY[NAME], 2)
    engine = engines.load(checkpoint(NAME), "float32", adapters=tmp_path, step_tokens=STEP)
    engine.warm_up(lambda *_: None)
    with pytest.raises(AdapterError, match=r"first.*can't be served: .*NaN"):
        scores(engine, groups(NAME, "first"))
    assert scores(engine, groups(NAME, "second")).keys() == {0, 1, 2, 3}


def test_a_worker_without_a_folder_of_adapters_says_so(checkpoint: Callable[[str], Path]) -> None:
    engine = engines.load(checkpoint(NAME), "float32")
    with pytest.raises(AdapterError, match="SCORELINE_ADAPTER_FOLDER"):
        scores(engine, groups(NAME, "mine"))


def test_an_adapter_shares_the_weights_of_the_base(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    random_adapter(tmp_path / "mine", EVERY[NAME], 1)
    engine = engines.load(checkpoint(NAME), "float32", adapters=tmp_path, step_tokens=STEP)
    scores(engine, groups(NAME, "mine"))
    base, other = (engine.forward.decoders._found[key].decoder for key in engine.forward.decoders._found)
    where = {leaf.unsafe_buffer_pointer() for layer in base.layers for leaf in layer}
    shared = [leaf for layer in other.layers for leaf in layer if leaf.unsafe_buffer_pointer() in where]
    assert len(shared) == sum(map(len, base.layers))
