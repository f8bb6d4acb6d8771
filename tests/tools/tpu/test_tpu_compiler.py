"""Compiling for a TPU that is not there: needs libtpu (make compile)."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from flax import nnx
from jax import Array, lax
from jax.experimental import pallas as pl

from demonstration.saving import config_fields
from model.architecture.projections import Norm
from model.chips.mesh import Chips
from model.platforms import Platform
from model.programs.label_head import lm_head
from model.whole_steps.prefill import PrefillKey
from scoreline.server_process import environment
from scoring.layout import Head
from settings.engine import EngineSettings
from tools.tpu.compiler import Compiler, shape
from tools.tpu.cost import UnknownFrequencyError, cycles, parts, sent_bytes
from tools.tpu.kernels import Schedules, kernel_cycles
from tools.tpu.programs import WeightlessEngine
from tools.tpu.shapes import NAMED_SHAPES
from tools.tpu.targets import target_named

pytestmark = pytest.mark.compile

V6E = target_named("v6e:1x1")


def test_a_large_product_reaches_87_percent_of_the_peak_by_the_estimate(compiler: Compiler) -> None:
    product = compiler.calibration(4_096)
    share = 2 * 4_096**3 / (cycles(product.module, {}) / V6E.clock) / V6E.peak
    assert 0.85 < share < 0.9
    assert product.argument_bytes == 2 * 4_096**2 * 2
    assert product.output_bytes == 4_096**2 * 2


def layers(count: Any, weights: Array, rows: Array) -> Array:
    computed: Array = lax.fori_loop(0, count, lambda _, hidden: jnp.tanh(hidden @ weights), rows)
    return computed


MATRICES = (shape((1_024, 1_024), jnp.bfloat16),) * 2


def test_a_loop_counts_as_often_as_it_turns(compiler: Compiler) -> None:
    few, many = (cycles(compiler.compile(lambda w, x, n=n: layers(n, w, x), MATRICES).module, {}) for n in (8, 40))
    assert 4.5 < many / few < 5.5
    computed = compiler.compile(layers, (shape((), jnp.int32), *MATRICES)).module
    assert cycles(computed, {"while": 40}) == pytest.approx(many, rel=0.1)
    with pytest.raises(UnknownFrequencyError, match="'while'"):
        cycles(computed, {})


def test_copies_of_large_arrays_are_found(compiler: Compiler) -> None:
    """A transposed array is a copy, rows of it are none, and a donated array is written in place."""
    table, ids = shape((1_024, 40_960), jnp.bfloat16), shape((256,), jnp.int32)
    arrays = {"embedding": table.shape}
    turned = compiler.compile(lambda table: table.T, (table,))
    rows = compiler.compile(lambda table, ids: table[ids], (table, ids))
    assert [copy.partition(":")[0] for copy in turned.copies(arrays)] == ["embedding"]
    assert rows.copies(arrays) == ()

    def write(table: Array, row: Array, at: Array) -> Array:
        return lax.dynamic_update_slice(table, row, (at, 0))

    arguments = table, shape((1, 40_960), jnp.bfloat16), shape((), jnp.int32)
    kept, donated = (compiler.compile(write, arguments, numbers) for numbers in ((), (0,)))
    assert kept.copies(arrays) != ()
    assert donated.copies(arrays) == ()
    assert donated.output_bytes < 1_000 < kept.output_bytes


def test_a_head_that_reads_a_few_columns_of_its_kernel_does_not_copy_it(compiler: Compiler) -> None:
    config = replace(NAMED_SHAPES["qwen3-8b"], width=512, vocabulary=50_000)
    norm = nnx.eval_shape(lambda: Norm(config.width, (), config, "bfloat16"))
    program = lm_head(Head.LOGITS, nnx.graphdef(norm), as_rows=False, by_tiles=True)
    kernel = shape((config.width, config.vocabulary), jnp.bfloat16)
    hidden, labels = shape((128, config.width), jnp.float32), shape((8,), jnp.int32)
    compiled = compiler.compile(program, (shape((config.width,), jnp.bfloat16), kernel, hidden, labels))
    assert compiled.copies({"head": kernel.shape}) == ()


def scaled(rows: Array, turns: Array | int) -> Array:
    """A kernel whose grid visits blocks of 256 rows, and that does more in the last of every ``turns`` steps."""

    def kernel(block: Any, out: Any) -> None:
        out[...] = jnp.tanh(block[...])

        @pl.when(pl.program_id(1) == turns - 1)
        def last() -> None:
            out[...] = jnp.exp(out[...])

    spec = pl.BlockSpec((256, 512), lambda step, _: (step, 0))
    grid = (len(rows) // 256, turns)
    call = pl.pallas_call(kernel, out_shape=rows, grid=grid, in_specs=[spec], out_specs=spec, name="scaled")
    computed: Array = call(rows)
    return computed


def test_the_schedule_of_a_kernel_is_estimated_by_its_grid_and_regions(compiler: Compiler) -> None:
    def compiled(steps: int, turns: int) -> tuple[Any, dict[str, int]]:
        program = compiler.compile(lambda rows: scaled(rows, turns), (shape((steps * 256, 512), jnp.float32),))
        return program.module, dict(program.custom_calls)

    found = [compiled(steps, 4) for steps in (4, 40)]
    schedules = Schedules(V6E)
    schedules.add([module for module, _ in found])

    def estimate(module: Any, share: float) -> float:
        frequencies = {"scaled/region0": share}
        return cycles(module, frequencies, lambda call: kernel_cycles(schedules.of(module), frequencies, call))

    assert all(calls["scaled"] == 1 for _, calls in found)
    (few, _), (many, _) = found
    assert estimate(few, 0.0) < estimate(few, 0.25) < estimate(few, 1.0)
    assert 7 < estimate(many, 0.25) / estimate(few, 0.25) < 10


FourChips = tuple[Compiler, Platform]


@pytest.fixture(scope="module")
def four_chips(compiler: Compiler) -> FourChips:
    """A compiler for four chips of a v6e that compute one model, and their platform."""
    target = target_named("v6e:2x2")
    four = Compiler(target)
    return four, Platform.of(four.devices[0], memory=int(target.usable_memory), chips=Chips.of(four.devices))


@pytest.mark.timeout(600)
def test_a_model_is_divided_among_four_chips(four_chips: FourChips) -> None:
    four, platform = four_chips
    config = replace(NAMED_SHAPES["qwen3-0.6b"], layers=3, vocabulary=50_000, context=16_384)
    engine = WeightlessEngine(config, EngineSettings(), platform)
    program = engine.program(PrefillKey())
    prefill = four.compile(program.function, program.arguments, program.donated)
    assert prefill.custom_calls["scoreline_attention"] == 2, "one in the loop, and one in the last layer"
    assert prefill.copies(engine.arrays) == ()
    whole = WeightlessEngine(config, EngineSettings(), replace(platform, chips=None))
    # The head's norm is no argument of a step, and tables of a step are no weights.
    assert prefill.argument_bytes == pytest.approx(engine.resident_bytes, rel=0.01)
    assert engine.resident_bytes == pytest.approx(whole.resident_bytes / 4, rel=0.01)
    sent = [part for part in parts(prefill.module, {"while": 2}) if sent_bytes(part.instruction) is not None]
    assert sum(part.times for part in sent) == 1 + 2 * config.layers, "the embedding, and twice in a layer"


@pytest.mark.timeout(600)
def test_recurrent_layers_are_divided_among_four_chips(four_chips: FourChips) -> None:
    four, platform = four_chips
    shape = NAMED_SHAPES["qwen3.5-4b"]
    recurrence = shape.recurrence
    assert recurrence is not None
    kinds = recurrence._replace(layers=(True, True, False))
    # Steps of a quarter of the usual tokens compile in less than half of the time.
    settings = EngineSettings(step_tokens=512)
    engine = WeightlessEngine(
        replace(shape, layers=3, vocabulary=50_000, context=2_048, recurrence=kinds), settings, platform
    )
    program = engine.program(PrefillKey())
    prefill = four.compile(program.function, program.arguments, program.donated)
    # The keys and values of one layer with attention fit into fast memory, which is a copy.
    kept = {name: engine.arrays[name] for name in ("kept inputs", "states")}
    assert prefill.copies(kept) == ()
    assert prefill.argument_bytes == pytest.approx(engine.resident_bytes, rel=0.01)
    sent = [part for part in parts(prefill.module, {"while": 2}) if sent_bytes(part.instruction) is not None]
    assert sum(part.times for part in sent) == 1 + 2 * 3, "the embedding, and twice in a layer"


def command(target: str, model: str, *workloads: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Compile a model by the command. settings: variables of its environment."""
    arguments = ["--target", target, "--model", model, "--workloads", *workloads]
    return subprocess.run(
        [sys.executable, "-m", "tools.tpu", *arguments],
        env=environment() | settings,
        text=True,
        capture_output=True,
        check=False,
    )


def compiled(model: Path, *workloads: str, **settings: str) -> tuple[dict[str, Any], str]:
    """Compile a model for a v6e by the command. Return its last line, and the table."""
    done = command("v6e:1x1", str(model), *workloads, **settings)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found, done.stderr


@pytest.mark.usefixtures("libtpu")
def test_a_model_that_leaves_no_room_for_its_context_does_not_fit() -> None:
    done = command("v5e", "qwen3-8b")
    assert done.returncode == 1
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["fits"] is False
    assert found["programs"] == []
    assert "the device has room for what is kept of 0 tokens beside the weights" in done.stderr


def cut(shape: str, folder: Path, context: int) -> Path:
    """Write the configuration of a shape with few layers and a small vocabulary, which compiles sooner."""
    config = replace(NAMED_SHAPES[shape], layers=2, vocabulary=50_000, context=context)
    (folder / "config.json").write_text(json.dumps(config_fields(config)))
    return folder


def steps(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The programs of steps."""
    return [program for program in found["programs"] if program["name"].startswith(("extend", "prefill"))]


@pytest.mark.matrix  # the kernel for such heads is always compiled, in test_kernels.py
@pytest.mark.usefixtures("libtpu")
@pytest.mark.timeout(600)
def test_a_model_with_narrow_heads_is_compiled_with_the_kernel(tmp_path: Path) -> None:
    found, table = compiled(cut("llama-3.2-1b", tmp_path, 1_024), "target")
    assert found["fits"] is True
    assert found["workloads"] == {}
    assert "comes to 87% of the peak" in table
    assert "longer than the context of 1024 tokens" in table
    assert len(steps(found)) == 3
    for program in steps(found):
        assert "scoreline_attention" in program["custom_calls"]
        assert program["copies"] == []
        assert program["estimated_us"] is None, "no workload calls it"


@pytest.mark.usefixtures("libtpu")
@pytest.mark.timeout(600)
def test_a_model_with_wide_heads_is_estimated_with_the_kernels(tmp_path: Path) -> None:
    # Steps of a quarter of the usual tokens compile sooner.
    found, table = compiled(cut("qwen3-0.6b", tmp_path, 4_096), "target", SCORELINE_STEP_TOKENS="512")
    assert found["fits"] is True
    assert len(steps(found)) == 3
    for program in steps(found):
        assert {"scoreline_attention", "scoreline_qkv"} <= program["custom_calls"].keys()
        assert program["copies"] == []
        assert program["temporary_bytes"] < 50e6
        assert 0 < program["needed_bytes"] < found["usable_bytes"]
    # No workload of this command reads items at several positions each, and two programs are only checked.
    uncalled = {"extend, read everywhere", "check of attention", "check of positions"}
    called = [program for program in found["programs"] if program["name"] not in uncalled]
    assert len(called) == len(found["programs"]) - len(uncalled)
    assert all(program["estimated_us"] > 0 for program in called)
    assert "copies the" not in table
    assert found["workloads"]["target"]["estimated_ms"] > 0
