"""Print how often what ``judgement`` promises is true: ``python -m benchmarks.judgement --files 2000``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.judgement.made_up import CLUSTERED, WORLDS, World
from benchmarks.judgement.promises import calibrations, coverage, drifts, sets, thresholds
from judgement.intervals import Bootstrap
from judgement.metrics import metrics_of

MAX_ERROR = 0.05
ALL_WORLDS = {**WORLDS, "two labels, clusters of 5": CLUSTERED}


def print_coverage(arguments: argparse.Namespace) -> None:
    """Print the coverage of intervals."""
    for name, world in chosen(arguments, ALL_WORLDS):
        for rows in arguments.rows:
            found = coverage(world, rows, arguments.files, arguments.repetitions)
            print(
                f"{name}, {rows:,} rows:",
                ", ".join(f"{metric} {share:.1%}" for metric, share in found.items()),
                flush=True,
            )


def print_calibrations(arguments: argparse.Namespace) -> None:
    """Print what calibrations do to fresh rows."""
    for name, world in chosen(arguments, WORLDS):
        for rows in arguments.rows:
            found = [one for seed in range(arguments.files) for one in calibrations(world, rows, 20_000, seed)]
            for method in dict.fromkeys(one.method for one in found):
                of = [one for one in found if one.method == method]
                print(
                    f"{name}, {rows:,} rows, {method}: chosen {np.mean([one.chosen for one in of]):.0%}, ECE "
                    f"{np.mean([one.error_before for one in of]):.4f} -> {np.mean([one.error for one in of]):.4f} "
                    f"(most {max(one.error for one in of):.4f}), accuracy "
                    f"{np.mean([one.accuracy_change for one in of]):+.4f}, "
                    f"clearly lower in {sum(one.high < 0 for one in of)} of {len(of)}",
                    flush=True,
                )


def print_thresholds(arguments: argparse.Namespace) -> None:
    """Print how well the promise of thresholds is kept."""
    for name, world in chosen(arguments, WORLDS):
        for rows in arguments.rows:
            kept = thresholds(world, rows, arguments.files, MAX_ERROR)
            print(
                f"{name}, {rows:,} rows: held in {kept.level_held:.1%}, given in {kept.given:.1%}, abstained "
                f"{kept.abstained:.4f}, oracle {kept.oracle:.4f} (x {kept.abstained / max(kept.oracle, 1e-9):.3f})",
                flush=True,
            )


def print_sets(arguments: argparse.Namespace) -> None:
    """Print the coverage and the size of sets."""
    for name, world in chosen(arguments, WORLDS):
        for rows in arguments.rows if world.labels > 2 else ():
            for kind, (covered, size, hard) in sets(world, rows, arguments.files, MAX_ERROR).items():
                print(
                    f"{name}, {rows:,} rows, {kind}: covers {covered:.1%}, {size:.2f} labels, hardest tenth {hard:.1%}"
                )


def print_drift(arguments: argparse.Namespace) -> None:
    """Print how often there is an alarm: without a change, with another favoured label, and with less sure scores."""
    for name, world in chosen(arguments, WORLDS):
        changes = {
            "no change": world,
            "bias + 3": replace(world, bias=world.bias + 3),
            "half as sure": replace(world, sharpness=world.sharpness / 2),
        }
        for rows in arguments.rows:
            for rows_a_day in (500, 5_000):
                for change, now in changes.items():
                    days = 20 if now is world else 1
                    found = drifts(world, now, rows, rows_a_day, max(1, arguments.files // days), days)
                    print(
                        f"{name}, {rows:,} rows, {rows_a_day:,} a day, {change}: alarm on {found.alarms:.2%} of "
                        f"{found.days:,} days",
                        flush=True,
                    )


def print_speed(arguments: argparse.Namespace) -> None:
    """Print how long the intervals of a file take."""
    for name, world in chosen(arguments, WORLDS):
        for rows in arguments.rows:
            sample = world.draw(rows, np.random.default_rng(0))
            began = time.perf_counter()
            Bootstrap(metrics_of(sample), sample.cluster_count)
            print(f"{name}, {rows:,} rows: {time.perf_counter() - began:.1f} s for 2,000 repetitions of all metrics")


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "coverage": print_coverage,
    "calibration": print_calibrations,
    "thresholds": print_thresholds,
    "sets": print_sets,
    "drift": print_drift,
    "speed": print_speed,
}


def chosen(arguments: argparse.Namespace, worlds: dict[str, World]) -> list[tuple[str, World]]:
    """Return the worlds that are asked for."""
    return [(name, world) for name, world in worlds.items() if arguments.world in (None, name)]


def main() -> None:
    """Print the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=[*PARTS], help="only this one; may be given again")
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000], help="of each labelled file")
    parser.add_argument("--files", type=int, default=2_000, help="how many files are drawn")
    parser.add_argument("--repetitions", type=int, default=2_000, help="of the bootstrap of each file")
    parser.add_argument("--world", choices=[*ALL_WORLDS], help="only this one")
    arguments = parser.parse_args()
    for part in arguments.part or PARTS:
        print(f"# {part}")
        PARTS[part](arguments)


if __name__ == "__main__":
    main()
