"""A program with wrong results is never used, and a model with wrong results is never served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from model.architecture import weights
from model.attention.contract import causal
from model.buckets import Buckets, LengthBucket
from model.checks import numpy_decoder
from model.checks.expected import ExpectedOutput
from model.checks.known_answer import KnownAnswerError, ModelChecks
from model.checks.known_prompts import known_alone, known_prompt, prompt_states
from model.checks.numpy_states import final_states
from model.engine import Engine
from model.executable_table import ExecutableTable
from model.forward import Extension
from model.layerwise import self_attention
from model.layerwise.decoder import LayerwiseDecoder
from model.layerwise.embed import EmbedKey
from model.layerwise.forward import LayerwiseForward
from model.layerwise.output_mlp import OutputMLPKey
from model.layerwise.packed_attention import PackedAttentionKey
from model.layerwise.prefix_attention import PrefixAttentionKey
from model.layerwise.qkv import QKVKey
from model.layerwise.self_attention import SelfAttentionKey
from model.layerwise.store import StoreKey
from model.layerwise.warm_up import Key, core, rest
from model.programs.gathering import GatherKey
from model.programs.label_head import HeadKey
from model.programs.target_head import TargetHeadKey
from model.running import extending
from scoring.layout import Head
from tests.model import engines, references
from tests.model.checkpoints import CONFIGS, EVERY, tensors, write
from tests.model.engines import PLATFORM, DType
from tests.model.references import SEED
from tests.model.references.gates import FLOAT32_LOGPROBS

BUCKETS = Buckets.of(128)
BLOCKS = 3
KEYS: tuple[Key, ...] = (
    *core(BUCKETS, BLOCKS),
    *rest(BUCKETS, BLOCKS, packed=False, dense=False),
    *(PackedAttentionKey(256, reads, dense) for reads in (0, 64) for dense in (False, True)),
)
Arguments = tuple[Any, ...]
Outputs = list[np.ndarray]
Program = Callable[..., Sequence[Any]]


class Table:
    """The programs of one model in bf16, which has the widest tolerances, and their checks."""

    def __init__(self, directory: Path, name: str, **changes: Any) -> None:
        """changes: of the configuration, which leave the weights as they are."""
        decoder, _ = weights.load(directory, replace(EVERY[name], **changes), "bfloat16")
        self.decoder = LayerwiseDecoder(decoder, PLATFORM, BUCKETS, longest=2)
        self.checks = ModelChecks(self.decoder, PLATFORM)
        self.executables = ExecutableTable(self.decoder, PLATFORM, engines.unchecked)

    def passes(self, key: Key, spoil: Callable[[Program], Program] = lambda program: program) -> bool:
        """Whether the check accepts a program after a change."""
        try:
            self.checks.check(key, spoil(self.executables[key]))  # type: ignore[arg-type]
        except KnownAnswerError as error:
            message = str(error)
        else:
            return True
        assert str(key) in message
        assert f"jax {jax.__version__}" in message
        return False


@pytest.fixture(scope="module")
def table(checkpoint: Callable[[str], Path]) -> Table:
    return Table(checkpoint("tied"), "tied")


def with_outputs(change: Callable[[Outputs], Outputs]) -> Callable[[Program], Program]:
    """Change the outputs of a program."""

    def spoil(program: Program) -> Program:
        return lambda *arguments: change([np.array(output) for output in program(*arguments)])

    return spoil


def with_arguments(change: Callable[[Arguments], Arguments]) -> Callable[[Program], Program]:
    """Change the arguments of a program, which has the effect of another program without compiling one."""

    def spoil(program: Program) -> Program:
        return lambda *arguments: program(*change(arguments))

    return spoil


def _other_heads(outputs: Outputs) -> Outputs:
    return [outputs[0][:, ::-1], *outputs[1:]]


def _later(number: int) -> Callable[[Arguments], Arguments]:
    """Shift argument ``number`` by a row."""
    return lambda arguments: (
        *arguments[:number],
        np.roll(np.asarray(arguments[number]), 1, axis=0),
        *arguments[number + 1 :],
    )


def _one_less(number: int) -> Callable[[Arguments], Arguments]:
    return lambda arguments: (
        *arguments[:number],
        np.maximum(arguments[number] - 1, 0),
        *arguments[number + 1 :],
    )


def _off(number: int, by: tuple[int, ...]) -> Callable[[Arguments], Arguments]:
    return lambda arguments: (
        *arguments[:number],
        arguments[number] + np.array(by, np.int32),
        *arguments[number + 1 :],
    )


LAYER = 11
"""Arrays of a layer of the model under test."""
FAULTS: dict[str, tuple[Key, Callable[[Program], Program]]] = {
    "a position too early": (EmbedKey(64), with_arguments(_one_less(2))),
    "another rotary angle": (QKVKey(64), with_arguments(_later(LAYER + 1))),
    "query heads swapped": (QKVKey(64), with_outputs(_other_heads)),
    "queries of other places": (QKVKey(64, 64), with_arguments(_one_less(LAYER + 3))),
    "a prefix without its last token": (PrefixAttentionKey(64, BLOCKS), with_arguments(_one_less(4))),
    "a prefix without its last token in a larger step": (PrefixAttentionKey(128, BLOCKS), with_arguments(_one_less(4))),
    "a prefix in other blocks": (PrefixAttentionKey(64, BLOCKS), with_arguments(_later(3))),
    "heads of the output swapped": (PrefixAttentionKey(64, BLOCKS), with_outputs(_other_heads)),
    "items that begin a token late": (SelfAttentionKey(8, 64, last=False), with_arguments(_later(1))),
    "the last token does not see itself": (SelfAttentionKey(128, 1, last=True), with_arguments(_one_less(6))),
    "the last token of a short item does not see itself": (
        SelfAttentionKey(8, 64, last=True),
        with_arguments(_one_less(6)),
    ),
    "tokens of another length bucket are changed": (
        SelfAttentionKey(8, 64, last=False),
        with_arguments(lambda a: (*a[:6], np.maximum(a[6], 0))),
    ),
    "an item scored where another is": (SelfAttentionKey(32, 7, last=True), with_arguments(_later(7))),
    "an item scored where one of another length bucket is": (
        SelfAttentionKey(32, 7, last=True),
        with_arguments(_one_less(7)),
    ),
    "the output of other items is lost": (
        SelfAttentionKey(32, 7, last=True),
        with_outputs(lambda outputs: [np.concatenate([outputs[0][:1] * 0, outputs[0][1:]])]),
    ),
    "the output of other tokens is lost": (
        SelfAttentionKey(128, 1, last=False),
        with_arguments(lambda a: (*a[:3], np.where((a[6] >= 0)[:, None, None], a[3], 0), *a[4:])),
    ),
    "attention to the prefix is lost": (
        SelfAttentionKey(32, 7, last=False),
        with_arguments(lambda a: (*a[:4], a[4] - 9, *a[5:])),
    ),
    "ranges that end too early": (PackedAttentionKey(256, 64, dense=False), with_arguments(_one_less(3))),
    "nothing is added": (OutputMLPKey(64), lambda program: lambda *arguments: (arguments[-3],)),
    "another row's attention": (OutputMLPKey(64), with_arguments(_later(LAYER + 1))),
    "another block": (StoreKey(BLOCKS), with_arguments(_off(4, (-1, 0, 0)))),
    "the beginning of another block": (StoreKey(BLOCKS), with_arguments(_off(4, (0, -1, 0)))),
    "a piece that begins a token late in its block": (StoreKey(BLOCKS), with_arguments(_off(4, (0, 0, 1)))),
    "keys stored as values": (StoreKey(BLOCKS), with_arguments(lambda a: (*a[:2], a[3], a[2], a[4]))),
    "another label": (HeadKey(Head.LOGITS, 128, 8), with_arguments(_later(3))),
    "logits as log-probabilities": (HeadKey(Head.LOGPROBS, 128, 8), with_outputs(lambda outputs: outputs[:1] * 2)),
    "only logits": (HeadKey(Head.LOGPROBS, 128, 8), with_outputs(lambda outputs: outputs[:1])),
    "no most probable token": (HeadKey(Head.LOGITS, 128, 8, top=True), with_outputs(lambda outputs: outputs[:2])),
    "a label's log-probability as the highest": (
        HeadKey(Head.LOGPROBS, 128, 8, top=True),
        with_outputs(lambda outputs: [*outputs[:2], outputs[1][:, :1]]),
    ),
    "another token as the most probable one": (
        TargetHeadKey(128, 8, top=True),
        with_outputs(lambda outputs: [*outputs[:2], outputs[2] + 1, outputs[3]]),
    ),
    "the log-probability of another token": (
        TargetHeadKey(128, 8, top=True),
        with_outputs(lambda outputs: [*outputs[:3], outputs[0][:, :1]]),
    ),
}


QUICK = {key for key, _ in FAULTS.values()} | {
    GatherKey(64),
    TargetHeadKey(128, 8),
    HeadKey(Head.LOGPROBS, 128, 256),
    PackedAttentionKey(256, 0, dense=True),
}
"""Programs of every kind. The others are the same in other sizes, and in other pairs of what these have each."""


@pytest.mark.parametrize(
    "key", [key if key in QUICK else pytest.param(key, marks=pytest.mark.matrix) for key in KEYS], ids=str
)
def test_a_wrong_row_of_any_program_is_detected(key: Key, table: Table) -> None:
    def off(outputs: Outputs) -> Outputs:
        outputs[0][1] = outputs[0][2]
        return outputs

    def not_a_number(outputs: Outputs) -> Outputs:
        outputs[-1] = outputs[-1].astype(np.float32)
        outputs[-1][(0,) * outputs[-1].ndim] = np.nan
        return outputs

    assert table.passes(key)
    if isinstance(key, SelfAttentionKey) and key.last and key.rows == 1:
        off = not_a_number
    assert not table.passes(key, with_outputs(off))
    assert not table.passes(key, with_outputs(not_a_number))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_detected(fault: str, table: Table) -> None:
    key, spoil = FAULTS[fault]
    assert not table.passes(key, spoil)


WINDOW_FAULTS: dict[str, tuple[Key, Callable[[Program], Program]]] = {
    "a window that begins a token early in the prefix": (PrefixAttentionKey(64, BLOCKS), with_arguments(_one_less(5))),
    "a window that is a token too short": (SelfAttentionKey(32, 7, last=False), with_arguments(_one_less(7))),
    "a window of the last token that is too short": (SelfAttentionKey(8, 64, last=True), with_arguments(_one_less(8))),
    "angles of the other layers": (EmbedKey(64), with_outputs(lambda outputs: [*outputs[:3], *outputs[1:3]])),
}


@pytest.fixture(scope="module")
def windows(checkpoint: Callable[[str], Path]) -> Table:
    return Table(checkpoint("gemma3"), "gemma3")


@pytest.mark.parametrize("fault", WINDOW_FAULTS)
def test_a_planted_fault_of_a_sliding_window_is_detected(fault: str, windows: Table) -> None:
    key, spoil = WINDOW_FAULTS[fault]
    assert windows.passes(key)
    assert not windows.passes(key, spoil)


@pytest.mark.parametrize(
    "bucket", [pytest.param(BUCKETS.length_buckets[0], marks=pytest.mark.slow), BUCKETS.length_buckets[-1]], ids=str
)
def test_items_that_do_not_see_themselves_are_detected(
    bucket: LengthBucket, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_attention, "causal", lambda length: causal(length) - np.array([0, 1], np.int32))
    key = SelfAttentionKey(bucket.length, bucket.rows, last=False)
    program = jax.jit(key.source(table.decoder).function)
    assert not table.passes(key, lambda _: program)


def test_a_wrong_program_never_enters_the_table(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    right = table.executables[OutputMLPKey(64)]
    spoil = with_outputs(lambda outputs: [outputs[0] * 1.1])
    compiled: list[Key] = []

    def compile_wrong(self: ExecutableTable[LayerwiseDecoder], key: Key) -> Program:
        compiled.append(key)
        return spoil(right)

    monkeypatch.setattr(ExecutableTable, "_compile", compile_wrong)
    checked = ExecutableTable(table.decoder, PLATFORM, table.checks.check)
    for _ in range(2):
        with pytest.raises(
            KnownAnswerError, match=r"OutputMLPKey\(tokens=64\) differs from NumPy's by 0\.\d+ of its size"
        ):
            checked[OutputMLPKey(64)]
    assert compiled == [OutputMLPKey(64)] * 2


@pytest.mark.parametrize("name", EVERY)
def test_the_numpy_decoder_agrees_with_huggingface(name: str, checkpoint: Callable[[str], Path]) -> None:
    decoder, _ = weights.load(checkpoint(name), EVERY[name], "float32")
    model = LayerwiseDecoder(decoder, PLATFORM, BUCKETS, longest=2)
    vocabulary = np.arange(EVERY[name].vocabulary, dtype=np.int32)
    for row, expected in zip(references.rows(name), references.read(name).float32, strict=True):
        positions = np.arange(len(row), dtype=np.int32)
        hidden = final_states(model, row, positions, np.tri(len(row), dtype=np.bool_))[-1:]
        found = (
            numpy_decoder.label_logits(model, hidden, vocabulary)
            - numpy_decoder.over_vocabulary(model, hidden).log_sum_exp
        )
        assert np.abs(found[0] - expected).max() <= FLOAT32_LOGPROBS


@pytest.fixture(scope="module")
def small_step(checkpoint: Callable[[str], Path]) -> Callable[[str, DType], Engine]:
    return lambda name, dtype: engines.load(checkpoint(name), dtype, step_tokens=64)


Loaded = Callable[[str, DType], Engine]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_a_right_model_passes_the_known_prompt(dtype: DType, small_step: Loaded) -> None:
    """In bf16, every family is looked at by tests/model/references."""
    engine = small_step("tied", dtype)
    engine.check_model()
    assert not engine.prefix_cache.blocks.used, "the known prompt's block is free again"


def test_what_rounding_would_not_do_is_detected_in_bfloat16(small_step: Loaded) -> None:
    """What is allowed behind all layers is what NumPy's own numbers differ by if their last places change."""
    forward: Any = small_step("tied", "bfloat16").forward
    decoder = forward._decoder
    known, checks = known_alone(decoder.config.vocabulary), ModelChecks(decoder, PLATFORM)
    states = np.stack([of_row[-1] for of_row in prompt_states(decoder, known.prompts)])
    noise = np.random.default_rng(0).standard_normal(states.shape, np.float32) * np.sqrt(np.mean(states**2))
    checks.compare(known, {"serial": states + 0.01 * noise})
    with pytest.raises(KnownAnswerError, match=r"a known prompt scored by serial differs from NumPy's by 0\.0"):
        checks.compare(known, {"serial": states + 0.06 * noise})


def test_an_error_of_a_tenth_is_detected_whatever_numpys_own_would_be(small_step: Loaded) -> None:
    forward: Any = small_step("tied", "bfloat16").forward
    checks = ModelChecks(forward._decoder, PLATFORM)
    states = np.random.default_rng(0).standard_normal((3, CONFIGS["tied"].width), np.float32)
    wild = ExpectedOutput(states, states_of=forward._decoder, shaken=lambda: -states)
    off = states + 0.2 * np.roll(states, 1, axis=0)
    with pytest.raises(KnownAnswerError, match=r"where 0\.1 is allowed"):
        checks._require("all of it", wild, off)
    checks._require("all of it", replace(wild, of_median=True), off)


def _a_layer_left_out(forward: LayerwiseForward) -> None:
    forward._order = forward._order[1:]


def _layers_in_another_order(forward: LayerwiseForward) -> None:
    harmed = copy(forward.decoders.base.decoder)  # NumPy reads the weights of the other one
    harmed.layers = harmed.layers[::-1]
    forward.decoders._found[None] = forward.decoders.base._replace(decoder=harmed)


def _one_pool_for_all_layers(forward: LayerwiseForward) -> None:
    store = forward._store
    forward._store = lambda layer, *arguments: store(0, *arguments)  # type: ignore[method-assign]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("harm", [_a_layer_left_out, _layers_in_another_order, _one_pool_for_all_layers])
def test_programs_that_do_not_add_up_to_the_model_are_detected(
    harm: Callable[[LayerwiseForward], None], dtype: DType, small_step: Loaded
) -> None:
    engine = small_step("tied", dtype)
    assert isinstance(engine._forward, LayerwiseForward)
    harm(engine._forward)
    with pytest.raises(KnownAnswerError, match="a known prompt scored by "):
        engine.check_model()


@pytest.mark.slow
def test_an_item_behind_one_token_less_is_detected(small_step: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    extension = extending._behind

    def short(*arguments: Any) -> Extension:
        found = extension(*arguments)
        return replace(found, start=found.start - 1)

    monkeypatch.setattr(extending, "_behind", short)
    with pytest.raises(KnownAnswerError, match="a known prompt scored by prefill_extend differs"):
        small_step("tied", "bfloat16").check_model()


def test_weights_that_are_not_numbers_are_detected(tmp_path: Path) -> None:
    harmed = tensors(CONFIGS["tied"], SEED)
    harmed["model.layers.1.mlp.down_proj.weight"][0, 0] = np.nan
    engine = engines.load(write(tmp_path, CONFIGS["tied"], harmed), "float32", step_tokens=64)
    with pytest.raises(KnownAnswerError, match="a known prompt scored by serial differs from NumPy's by inf"):
        engine.check_model()


def test_the_known_prompt_fits_any_vocabulary() -> None:
    for vocabulary in (1, 90, 152_000):
        work = known_prompt(vocabulary)
        assert max(*work.prefix, *work.chunks[0].rows.tokens) < vocabulary
