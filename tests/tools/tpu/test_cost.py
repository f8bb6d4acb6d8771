"""Adding up the compiler's estimates."""

import pytest

from tools.tpu.cost import UnknownFrequencyError, cycles, parts, sent_bytes
from tools.tpu.hlo import Module


def estimated(number: int) -> str:
    return f'backend_config={{"window_config":{{"estimated_cycles":"{number}"}}}}'


def loop(condition: str, *, start: str = "%tuple(%zero, %x, %limit)") -> Module:
    """A loop whose body takes 100 cycles, in a program that takes 7 more."""
    return Module.parse(f"""
%fused (inside: f32[8]) -> f32[8] {{
  %inside = f32[8]{{0}} parameter(0)
  ROOT %added = f32[8]{{0}} add(%inside, %inside), {estimated(5_000)}
}}

%less (p0: s32[], p1: s32[]) -> pred[] {{
  %p1 = s32[] parameter(1)
  %p0 = s32[] parameter(0)
  ROOT %lt = pred[] compare(%p0, %p1), direction=LT
}}

%body (state: (s32[], f32[8], s32[])) -> (s32[], f32[8], s32[]) {{
  %state = (s32[], f32[8], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[8]{{0}} get-tuple-element(%state), index=1
  %end = s32[] get-tuple-element(%state), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %more = f32[8]{{0}} fusion(%x), kind=kLoop, calls=%fused, {estimated(100)}
  ROOT %out = (s32[], f32[8], s32[]) tuple(%next, %more, %end)
}}

%condition (state.1: (s32[], f32[8], s32[])) -> pred[] {{
  %state.1 = (s32[], f32[8], s32[]) parameter(0)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
{condition}
}}

ENTRY %main (x: f32[8], limit: s32[]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  %computed = s32[] parameter(1)
  %twelve = s32[] constant(12)
  %zero = s32[] constant(0)
  %tuple = (s32[], f32[8], s32[]) tuple(%zero, %x, {start})
  %while = (s32[], f32[8], s32[]) while(%tuple), condition=%condition, body=%body, metadata={{op_name="jit(f)/while"}}
  %y = f32[8]{{0}} get-tuple-element(%while), index=1
  ROOT %copy = f32[8]{{0}} copy(%y), {estimated(7)}
}}
""")


CONSTANT = "  %n = s32[] constant(28)\n  ROOT %lt.1 = pred[] compare(%i.1, %n), direction=LT"
FUSED = "  %n = s32[] constant(28)\n  ROOT %lt.1 = pred[] fusion(%i.1, %n), kind=kLoop, calls=%less"
CARRIED = "  %n = s32[] get-tuple-element(%state.1), index=2\n  ROOT %lt.1 = pred[] compare(%i.1, %n), direction=LT"


@pytest.mark.parametrize(
    ("condition", "start", "turns"),
    [(CONSTANT, "%computed", 28), (FUSED, "%computed", 28), (CARRIED, "%twelve", 12)],
    ids=["in the condition", "in a fusion", "carried"],
)
def test_the_body_of_a_loop_counts_as_often_as_a_constant_says(condition: str, start: str, turns: int) -> None:
    assert cycles(loop(condition, start=start), {}) == turns * 100 + 7


def test_a_loop_with_a_computed_end_counts_as_often_as_is_given() -> None:
    module = loop(CARRIED, start="%computed")
    assert cycles(module, {"while": 2.5}) == 257
    with pytest.raises(UnknownFrequencyError, match="'while'"):
        cycles(module, {})


def branching(shares: dict[str, float]) -> float:
    return cycles(
        Module.parse(f"""
%skip (a: f32[8]) -> f32[8] {{
  ROOT %a = f32[8]{{0}} parameter(0)
}}

%take (b: f32[8]) -> f32[8] {{
  %b = f32[8]{{0}} parameter(0)
  ROOT %c = f32[8]{{0}} copy(%b), {estimated(40)}
}}

%deeper (d: f32[8]) -> f32[8] {{
  %d = f32[8]{{0}} parameter(0)
  ROOT %e = f32[8]{{0}} call(%d), to_apply=%take
}}

ENTRY %main (i: s32[], x: f32[8]) -> f32[8] {{
  %i = s32[] parameter(0)
  %x = f32[8]{{0}} parameter(1)
  ROOT %y = f32[8]{{0}} conditional(%i, %x, %x), branch_computations={{%skip, %deeper}}, \
metadata={{op_name="jit(f)/jit(g)/cond"}}
}}
"""),
        shares,
    )


def test_a_branch_counts_by_the_share_of_runs_that_take_it() -> None:
    assert branching({"cond/branch1": 0.25}) == 10
    assert branching({"cond/branch0": 1.0, "cond/branch1": 0.0}) == 0


def test_without_a_share_the_longest_branch_is_always_taken() -> None:
    assert branching({}) == 40


def test_kernels_and_fusions_without_an_estimate_are_looked_into() -> None:
    module = Module.parse(f"""
%fused (b: f32[8]) -> f32[8] {{
  %b = f32[8]{{0}} parameter(0)
  ROOT %c = f32[8]{{0}} copy(%b), {estimated(40)}
}}

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  %y = f32[8]{{0}} custom-call(%x), custom_call_target="tpu_custom_call", metadata={{op_name="jit(f)/own/pallas_call"}}
  %z = f32[8]{{0}} custom-call(%y), custom_call_target="AssumeGatherIndicesInBound"
  ROOT %w = f32[8]{{0}} fusion(%z), kind=kLoop, calls=%fused
}}
""")
    found = {part.instruction.name: part.total for part in parts(module, {}, lambda kernel: len(kernel.kernel or ""))}
    assert found == {"y": 3, "c": 40}


def test_gathers_and_updates_in_place_count_by_the_bytes_that_they_read_and_write() -> None:
    module = Module.parse("""
%rows (table: bf16[100,8], ids: s32[4]) -> bf16[4,8] {
  %table = bf16[100,8]{1,0} parameter(0)
  %ids = s32[4]{0} parameter(1)
  ROOT %found = bf16[4,8]{1,0} gather(%table, %ids), offset_dims={1}
}

ENTRY %main (table: bf16[100,8], ids: s32[4], row: f32[1,8], pool: f32[50,8], at: s32[]) -> bf16[4,8] {
  %table.1 = bf16[100,8]{1,0} parameter(0)
  %ids.1 = s32[4]{0} parameter(1)
  %row = f32[1,8]{1,0} parameter(2)
  %pool = f32[50,8]{1,0} parameter(3)
  %at = s32[] parameter(4)
  %written = f32[50,8]{1,0} dynamic-update-slice(%pool, %row, %at, %at)
  ROOT %fused = bf16[4,8]{1,0} fusion(%table.1, %ids.1), kind=kCustom, calls=%rows
}
""")
    found = {part.instruction.name: part.cycles for part in parts(module, {}, cycle_bytes=16)}
    assert found == {"written": 2 * 8 * 4 / 16, "fused": 2 * 4 * 8 * 2 / 16}
    assert cycles(module, {}) == 0


def test_exchanges_between_chips_count_by_the_bytes_that_go_around_the_ring() -> None:
    """Of an array of 400 bytes, each of 4 chips sends 3 of 4 parts, and in an all-reduce it does so twice."""
    module = Module.parse("""
ENTRY %main (x: f32[100], y: f32[25]) -> f32[100] {
  %x = f32[100]{0} parameter(0)
  %y = f32[25]{0} parameter(1)
  %summed = f32[100]{0} all-reduce(%x), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %gathered = f32[100]{0} all-gather(%y), channel_id=2, replica_groups=[1,4]<=[4], dimensions={0}
}
""")
    found = {part.instruction.name: part.cycles for part in parts(module, {}, cycle_ring_bytes=10)}
    assert found == {"summed": 2 * 300 / 10, "gathered": 300 / 10}
    assert [sent_bytes(module.named(module.entry)[name]) for name in ("x", "summed")] == [None, 600]
    assert cycles(module, {}) == 0
