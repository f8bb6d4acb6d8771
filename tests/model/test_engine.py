"""The engine's interface to the scoring loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax.monitoring
import numpy as np
import pytest

from checkpoints.card import ModelCard
from model.buckets import HEAD_ROWS, Buckets
from model.engine import Engine
from model.executable_table import ExecutableTable
from model.layerwise.decoder import LayerwiseDecoder
from model.layerwise.warm_up import Key, core
from model.running.head_runner import FLUSH_TOKENS
from model.score_buffer import EngineError
from scoring.layout import ChunkWork, Continuations, GroupWork, Head, Rows
from tests.model import engines
from tests.model.checkpoints import CONFIGS, sequences, tensors, write
from tests.model.engines import DType, chunk, score
from tests.model.references import SEED

CONFIG = CONFIGS["tied"]
DEMONSTRATION = Path(__file__).parents[2] / "demonstration" / "model"
LABELS = (3, 17, 41)
PREFIX = sequences(CONFIG, 1, (10,))[0]

Loaded = Callable[[str, DType], Engine]


@pytest.fixture
def tied(engine: Loaded) -> Engine:
    return engine("tied", "float32")


def group(*chunks: ChunkWork, prefix: np.ndarray = PREFIX) -> GroupWork:
    return GroupWork("group", prefix, chunks)


def test_a_row_is_scored_after_its_part_of_the_prefix_and_its_own_tokens(tied: Engine) -> None:
    items = sequences(CONFIG, 2, (4, 0, 7))
    ends = [10, 6, 9]
    work = ChunkWork(5, Rows.pack(items, ends), LABELS, Head.LOGPROBS)
    found = score(tied, [group(work)])[5].logprobs
    whole = [np.concatenate([PREFIX[:end], item]) for end, item in zip(ends, items, strict=True)]
    assert found is not None
    np.testing.assert_array_equal(found, engines.logprobs(tied, whole)[:, LABELS])


def test_both_heads_agree_on_the_logits(tied: Engine) -> None:
    items = sequences(CONFIG, 2, (4, 9, 7))
    both = [chunk(n, items, 10, LABELS, head) for n, head in enumerate((Head.LOGPROBS, Head.LOGITS))]
    found = score(tied, [group(*both)])
    np.testing.assert_allclose(found[0].logits, found[1].logits, atol=2e-5)
    assert engines.logprobs_of(found[1]).tobytes() == engines.logprobs_of(found[0]).tobytes()
    differences = found[0].logits - engines.logprobs_of(found[0])
    np.testing.assert_allclose(differences, differences[:, :1].repeat(3, axis=1), atol=2e-5)


def test_log_probabilities_sum_to_one_over_the_vocabulary(tied: Engine) -> None:
    found = engines.logprobs(tied, sequences(CONFIG, 3, (5, 30)))
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1.0, atol=1e-5)


def test_every_chunk_comes_back_once_whatever_its_rows(tied: Engine) -> None:
    chunks = [chunk(n, sequences(CONFIG, n, (1, 2, 3, 4, 0) * (n % 4 * 4)), 10, LABELS) for n in range(9)]
    groups = [group(*chunks[:5]), group(prefix=PREFIX[:0]), group(*chunks[5:])]
    found = [scored.id for scored in tied.score(groups, lambda: None)]
    assert sorted(found) == list(range(9))
    assert {len(part.rows) for part in chunks} == {0, 20, 40, 60}


def test_a_chunk_is_yielded_before_on_step_is_called_for_its_last_step(tied: Engine) -> None:
    per_chunk = FLUSH_TOKENS // 256
    assert per_chunk * (256 // 16) == HEAD_ROWS, "each chunk is as much as a head waits for"
    chunks = [chunk(n, sequences(CONFIG, n, (6,) * HEAD_ROWS), 10, LABELS) for n in range(3)]
    steps: list[None] = []
    seen = [(scored.id, len(steps)) for scored in tied.score([group(*chunks)], lambda: steps.append(None))]
    assert seen == [(n, (n + 1) * per_chunk - 1) for n in range(3)]


def test_on_step_may_end_the_work_and_chunks_finished_before_remain(tied: Engine) -> None:
    chunks = [chunk(n, sequences(CONFIG, n, (6,) * HEAD_ROWS), 10, LABELS) for n in range(3)]
    steps = iter(range(1000))

    def stop() -> None:
        if next(steps) == 7:
            raise InterruptedError

    scoring = tied.score([group(*chunks)], stop)
    assert next(scoring).id == 0
    with pytest.raises(InterruptedError):
        next(scoring)


def test_more_rows_than_a_head_takes_are_all_scored(tied: Engine) -> None:
    rows = sequences(CONFIG, 4, (3,) * (2 * HEAD_ROWS + 5))
    found = engines.logprobs(tied, rows)
    np.testing.assert_array_equal(found[::50], np.concatenate([engines.logprobs(tied, [row]) for row in rows[::50]]))


def test_any_number_of_labels_is_scored(tied: Engine) -> None:
    rows = sequences(CONFIG, 1, (4, 5))
    for count in (1, 8, 9, 70, 300):
        labels = [n % CONFIG.vocabulary for n in range(count)]
        found = engines.logprobs_of(score(tied, [group(chunk(0, rows, 10, labels))])[0])
        assert found.shape == (2, count)
        np.testing.assert_array_equal(found[:, 0], found[:, -1] if labels[-1] == 0 else found[:, 0])
        alone = engines.logprobs_of(score(tied, [group(chunk(0, rows, 10, [0]))])[0])
        np.testing.assert_allclose(found[:, :1], alone, atol=1e-5)


def test_a_sequence_as_long_as_the_context_is_scored_and_a_longer_one_refused(tied: Engine) -> None:
    fits, too_long = sequences(CONFIG, 1, (CONFIG.context, CONFIG.context + 1))
    assert np.isfinite(engines.logprobs(tied, [fits])).all()
    with pytest.raises(EngineError, match=r"chunk 0, row 0: 1025 tokens behind 0 .* the context is 1024"):
        engines.logprobs(tied, [too_long])


def test_a_sequence_without_tokens_is_refused(tied: Engine) -> None:
    with pytest.raises(EngineError, match="chunk 3, row 1: 0 tokens behind 0"):
        score(tied, [group(ChunkWork(3, Rows.pack([[1], []], [0, 0]), LABELS, Head.LOGITS))])


def test_a_row_that_sees_more_than_the_prefix_is_refused(tied: Engine) -> None:
    with pytest.raises(EngineError, match="chunk 3, row 0: 1 tokens behind 11 of a prefix of 10"):
        score(tied, [group(ChunkWork(3, Rows.pack([[1]], [11]), LABELS, Head.LOGITS))])


@pytest.mark.parametrize("head", Head)
def test_a_score_that_is_not_a_number_is_never_answered(head: Head, tmp_path: Path) -> None:
    weights = tensors(CONFIG, SEED)
    weights["model.layers.1.mlp.down_proj.weight"][0, 0] = np.nan
    broken = engines.load(write(tmp_path, CONFIG, weights), "float32")
    with pytest.raises(EngineError, match=r"chunk 0, row 0: a score is NaN or \+inf"):
        score(broken, [group(chunk(0, sequences(CONFIG, 1, (4,)), 10, LABELS, head))])


@pytest.mark.usefixtures("unchecked_programs")  # NumPy finds no log-probability either
def test_an_infinite_logit_is_never_answered(tmp_path: Path) -> None:
    weights = tensors(CONFIG, SEED)
    # Whichever sign the first value of the hidden state has, one of these two labels has a logit of +inf.
    weights["model.norm.weight"][0] = 1e6
    weights["model.embed_tokens.weight"][LABELS[0], 0] = 3e38
    weights["model.embed_tokens.weight"][LABELS[1], 0] = -3e38
    broken = engines.load(write(tmp_path, CONFIG, weights), "float32")
    work = ChunkWork(0, Rows.pack([[50], [51, 52]], [0, 0]), LABELS, Head.LOGITS)
    with pytest.raises(EngineError, match=r"chunk 0, row 0: a score is NaN or \+inf"):
        score(broken, [group(work)])


@pytest.fixture
def calls() -> int:
    """How many calls of ten requests are made after the warm-up."""
    return 100


@pytest.fixture
def dtype() -> DType:
    """The dtype of the engine that is warmed up."""
    return "bfloat16"


@pytest.mark.slow
@pytest.mark.compiles
def test_nothing_is_compiled_after_the_warm_up(calls: int, dtype: DType) -> None:
    # Sizes of which there are few, since each is compiled.
    demonstration = engines.load(DEMONSTRATION, dtype, step_tokens=128, max_multi_item_seq_len=512)
    progress: list[tuple[int, int, str]] = []
    demonstration.warm_up(lambda *told: progress.append(told))
    total = progress[-1][1]
    assert [told[:2] for told in progress] == [(n, total) for n in range(1, total + 1)]
    demonstration.warm_up_rest(lambda *told: progress.append(told))
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        random = np.random.default_rng(0)
        requests = [drawn(random, demonstration.card, n) for n in range(10 * calls)]
        for few in np.array_split(np.arange(len(requests)), calls):
            list(demonstration.score([requests[n] for n in few], lambda: None))
        assert compiled == []
        score(demonstration, [group(chunk(0, [PREFIX], 10, [1] * 257))])
        assert compiled, "the listener would have heard a compilation"
    finally:
        jax.monitoring.clear_event_listeners()  # type: ignore[no-untyped-call]


def drawn(random: np.random.Generator, card: ModelCard, id: int) -> GroupWork:
    """A random request, short ones more often than long ones, up to the context."""

    def up_to(most: int) -> int:
        return int(np.exp(random.uniform(0, np.log(most + 1)))) - int(random.random() < 0.2)

    longest = card.context_length if random.random() < 0.05 else 100
    prefix = up_to(longest)
    lengths = [min(up_to(longest), card.context_length - prefix) for _ in range(up_to(3))]
    items = [random.integers(0, card.vocabulary, length + (prefix + length == 0), np.int32) for length in lengths]
    labels = random.integers(0, card.vocabulary, max(1, up_to(256)))
    work = chunk(id, items, prefix, labels.tolist(), list(Head)[random.integers(len(Head))])
    if random.random() < 0.3:
        work = with_continuations(random, card, work)
    return GroupWork(f"request {id}", random.integers(0, card.vocabulary, prefix, np.int32), (work,))


def with_continuations(random: np.random.Generator, card: ModelCard, work: ChunkWork) -> ChunkWork:
    """The same items with labels of several tokens, short ones more often than long ones, up to the context."""
    labels = int(random.integers(1, 5))
    kept = np.repeat(work.rows.sequence_lengths, labels)
    lengths = np.minimum(np.exp(random.uniform(0, np.log(100), len(kept))).astype(int), card.context_length - kept)
    targets = [random.integers(0, card.vocabulary, length, np.int32) for length in lengths]
    return replace(work, label_token_ids=(), continuations=Continuations.pack(targets, kept))


def test_a_warm_up_can_be_ended(checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Key] = []
    compile_program = ExecutableTable._compile

    def compile_and_note(self: ExecutableTable[LayerwiseDecoder], key: Key) -> jax.stages.Compiled:
        begun.append(key)
        return compile_program(self, key)

    monkeypatch.setattr(ExecutableTable, "_compile", compile_and_note)
    engine = engines.load(checkpoint("tied"), "float32")

    def stop(done: int, total: int, program: str) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        engine.warm_up(stop)
    assert len(begun) < len(core(Buckets.of(256), 8)) // 2


def test_the_engine_reports_its_device_dtype_and_fingerprint(tied: Engine, engine: Loaded) -> None:
    assert tied.device.startswith("cpu")
    assert tied.dtype == "float32"
    assert len(tied.weights_fingerprint) == 64
    assert tied.weights_fingerprint == engine("tied", "bfloat16").weights_fingerprint
    assert tied.weights_fingerprint != engine("untied", "float32").weights_fingerprint
