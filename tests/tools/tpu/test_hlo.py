"""Reading the text of an optimized HLO module."""

import pytest

from tools.tpu.hlo import ArrayType, Module

CONFIG = 'backend_config={"flag_configs":[],"window_config":{"estimated_cycles":"%s","iteration_bounds":["1"]}}'

TEXT = f"""HloModule jit_step, is_scheduled=true, entry_computation_layout={{(f32[8]{{0}})->f32[8]{{0}}}}

FileNames
1 "model/programs.py"

%fused_computation (param_0.2: bf16[16,8]) -> bf16[8,16] {{
  %param_0.2 = bf16[16,8]{{1,0:T(8,128)(2,1)}} parameter(0)
  ROOT %transpose.1 = bf16[8,16]{{1,0:T(8,128)(2,1)}} transpose(%param_0.2), dimensions={{1,0}}
}}

ENTRY %main.2 (a: bf16[16,8], b: s32[]) -> (bf16[8,16], f32[8]) {{
  %a = bf16[16,8]{{1,0:T(8,128)(2,1)S(1)}} parameter(0), sharding={{replicated}}, metadata={{op_name="arguments[0]"}}
  %b = s32[]{{:T(128)}} parameter(1)
  %five = s32[] constant(5)
  %pair = (bf16[16,8]{{1,0}}, s32[]{{:T(128)}}, /*index=2*/f32[8]{{0}}) tuple(%a, %b, /*index=2*/%c)
  %fusion = bf16[8,16]{{1,0}} fusion(%a), kind=kLoop, calls=%fused_computation, {CONFIG % 3400}
  %kernel.1 = (bf16[8,16]{{1,0:T(8,128)(2,1)}}, f32[8]{{0}}) custom-call(%fusion, f32[8]{{0}} %b), \
custom_call_target="tpu_custom_call", frontend_attributes={{kernel_metadata={{
"xprof_metadata":"{{\\"block_q\\": 1024}}"
}}}}, metadata={{op_name="jit(step)/while/body/prefix_blocks/pallas_call" stack_frame_id=12}}, \
backend_config={{"custom_call_config":{{"body":"TUzv"}}}}
  ROOT %result = bf16[8,16]{{1,0}} copy(%fusion), {CONFIG % 77}
}}
"""


def test_computations_and_instructions_have_their_parts() -> None:
    module = Module.parse(TEXT)
    assert module.entry == "main.2"
    assert set(module.computations) == {"fused_computation", "main.2"}
    named = module.named("main.2")
    assert named["fusion"].operands == ("a",)
    assert named["fusion"].called("calls") == "fused_computation"
    assert named["fusion"].cycles == 3400
    assert named["a"].cycles is None
    assert named["a"].results == (ArrayType("bf16", (16, 8), memory=1),)
    assert named["five"].operands == ("5",)
    assert module.root("main.2").opcode == "copy"
    assert module.root("fused_computation").opcode == "transpose"


def test_a_computation_of_another_core_of_the_chip_ends_where_it_does() -> None:
    apart = TEXT.replace("dimensions={1,0}\n}", 'dimensions={1,0}\n}, execution_thread="sparsecore"')
    assert apart != TEXT
    assert Module.parse(apart) == Module.parse(TEXT)


def test_a_tuple_has_several_results_and_a_scalar_no_dimension() -> None:
    pair = Module.parse(TEXT).named("main.2")["pair"]
    assert pair.operands == ("a", "b", "c")
    assert pair.results == (ArrayType("bf16", (16, 8)), ArrayType("s32", ()), ArrayType("f32", (8,)))
    assert [array.size for array in pair.results] == [128, 1, 8]


def test_what_follows_metadata_with_line_breaks_is_read_on() -> None:
    """Such a line begins with a bracket, as the end of a computation does."""
    module = Module.parse(TEXT)
    kernel = module.named("main.2")["kernel.1"]
    assert kernel.operands == ("fusion", "b")
    assert kernel.kernel == "prefix_blocks"
    assert kernel.config == {"custom_call_config": {"body": "TUzv"}}
    assert module.named("main.2")["result"].cycles == 77


def test_instructions_inside_of_fusions_do_not_run_by_themselves() -> None:
    executed = [instruction.name for _, instruction in Module.parse(TEXT).executed()]
    assert "fusion" in executed
    assert "transpose.1" not in executed


def test_branches_stand_in_the_order_of_the_index() -> None:
    text = """
%yes (a: f32[]) -> f32[] {
  ROOT %a = f32[] parameter(0)
}

%no (b: f32[]) -> f32[] {
  ROOT %b = f32[] parameter(0)
}

ENTRY %main (p: pred[], x: f32[]) -> f32[] {
  %p = pred[] parameter(0)
  %x = f32[] parameter(1)
  %either = f32[] conditional(%p, %x, %x), true_computation=%yes, false_computation=%no
  ROOT %any = f32[] conditional(%p, %x, %x), branch_computations={%no, %yes}
}
"""
    module = Module.parse(text)
    assert [instruction.branches for instruction in module.computations["main"][2:]] == [("no", "yes"), ("no", "yes")]
    assert {computation for computation, _ in module.executed()} == {"main", "no", "yes"}


def test_another_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no ENTRY computation"):
        Module.parse("HloModule nothing\n")
