"""Reading the final schedule of a kernel."""

import pytest

from tools.tpu.bundles import Schedule
from tools.tpu.cost import UnknownFrequencyError

LEGEND = "= control target key start\nLB: loop body\n= control target key end\n\n"


def schedule(bundles: int, marks: dict[int, str]) -> Schedule:
    """A dump in the form that libtpu writes: the text of some bundles, and `nop` in all others."""
    lines = [f" 0x{number:x}   : > {{ {marks.get(number, 'nop')} }}" for number in range(bundles)]
    return Schedule.parse(LEGEND + "\n".join(lines))


LOOP = {
    10: "%1 = smov 0 } /* Start region 153 */",
    209: "%p7_p0 = scmp.ge.s32.totalorder %s30_s17, 128 /* loop exit test */",
    210: "%29 = sbr.rel (!%p7_p0) target = $region153",
}
START = {
    20: "%529 = sbr.rel (%p9_p7) target = $region52",
    65: "%s3 = smov [#allocation9] } /* Start/End empty region 52 */",
}
END = {
    100: "%530 = sbr.rel (!%p10_p1) target = $region60",
    145: "nop } /* End region 59 :: Start region 60 */",
}


def test_a_loop_counts_as_often_as_it_turns() -> None:
    found = schedule(220, LOOP)
    assert found.bundles == 220
    assert [(len(loop), loop.turns) for loop in found.loops] == [(205, 128)]
    assert found.cycles("own", {}) == 15 + 128 * 205


def test_the_loop_of_a_grid_turns_twice_more_than_the_grid_has_steps() -> None:
    counter = {10: "%1 = smov 0 /* iteration index, stage = 0 */ } /* Start region 153 */"}
    assert [loop.turns for loop in schedule(220, LOOP | counter).loops] == [126]


def test_a_region_begins_behind_the_branch_that_skips_it_and_counts_by_its_share() -> None:
    found = schedule(220, LOOP | START | END)
    assert [len(region) for region in found.regions] == [40, 40]
    assert found.cycles("own", {}) == 15 + 128 * 205
    assert found.cycles("own", {"own/region0": 0.25, "own/region1": 0.5}) == 15 + 128 * (125 + 10 + 20)
    assert found.cycles("own", {"other/region0": 0.25}) == found.cycles("own", {})


def test_a_region_inside_of_another_runs_only_where_that_runs() -> None:
    inner = {30: "%531 = sbr.rel (%p11_p1) target = $region70", 55: "nop } /* Start region 70 */"}
    found = schedule(220, LOOP | START | inner)
    assert [len(region) for region in found.regions] == [40, 20]
    assert found.cycles("own", {"own/region0": 0.5, "own/region1": 0.5}) == 15 + 128 * (165 + 0.5 * (20 + 0.5 * 20))


def test_the_guard_of_a_loop_and_small_regions_have_no_name() -> None:
    guard = {11: "%99 = sbr.rel (%p12_p6) target = $region36", 208: "nop } /* Start/End empty region 36 */"}
    small = {150: "%98 = sbr.rel (%p13_p6) target = $region38", 160: "nop } /* Start/End empty region 38 */"}
    assert [len(region) for region in schedule(220, LOOP | guard | small | END).regions] == [40]


COMPUTED = LOOP | {209: "%p7_p0 = scmp.ge.s32.totalorder %s30_s17, %s44_s2 /* loop exit test */"}


def test_a_loop_with_a_computed_end_needs_a_number() -> None:
    found = schedule(220, COMPUTED)
    assert found.loops[0].turns is None
    with pytest.raises(UnknownFrequencyError, match="'own' has own/loop0 of 205 bundles; known: "):
        found.cycles("own", {})
    assert found.cycles("own", {"own/loop0": 2}) == 15 + 2 * 205


def test_a_number_for_a_part_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UnknownFrequencyError, match=r"own/region0 of 40 bundles; known: \['own/region1'\]"):
        schedule(220, LOOP | START).cycles("own", {"own/region1": 0.5})


def test_the_guard_of_a_computed_loop_has_no_name_and_a_region_that_is_a_constant_loop_has_one() -> None:
    guard = {1: "%97 = sbr.rel (%p14_p6) target = $region80", 216: "nop } /* Start/End empty region 80 */"}
    assert schedule(220, COMPUTED | guard).regions == ()
    inner = {
        94: "%530 = sbr.rel (!%p10_p1) target = $region60",
        99: "%1 = smov 0 } /* Start region 58 */",
        130: "%p8_p0 = scmp.ge.s32.totalorder %s31_s17, 16 /* loop exit test */",
        134: "%28 = sbr.rel (!%p8_p0) target = $region58",
        139: "nop } /* Start/End empty region 60 */",
    }
    found = schedule(220, COMPUTED | inner)
    assert [len(region) for region in found.regions] == [40]
    assert found.cycles("own", {"own/loop0": 4, "own/region0": 0.25}) == 15 + 4 * 165 + 4 * 0.25 * 16 * 40


def test_another_text_is_refused() -> None:
    with pytest.raises(ValueError, match="not a dump"):
        Schedule.parse(LEGEND)
