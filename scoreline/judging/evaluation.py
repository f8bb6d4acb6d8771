"""Measure systems on a labelled file: metrics with intervals, differences, and what there is to look at."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from judgement.intervals import Bootstrap, Interval
from judgement.metrics import (
    HIGHER_IS_BETTER,
    ROWS_FOR_COVERAGE,
    WITH_KNOWN_COVERAGE,
    log_losses,
    metrics_of,
    reliability,
)
from judgement.rankings import ranking_metrics
from judgement.sample import Sample, clusters_of
from judgement.statistics import Statistic
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.judging.labelled import Labelled
from scoreline.judging.scored import Scored
from scoreline.judging.systems import in_one_order
from scoreline.runs.prompts import Text

WORST = 10
"""How many of the worst rows of each system are shown."""

Report = dict[str, Any]
"""What ``--json`` writes; terminal and page show the same."""


def scored_rows(systems: Sequence[Scored]) -> list[int]:
    """Return the places of the rows that every system has scored. Raises CommandError if there are none."""
    found = [
        place for place, shares in enumerate(zip(*(one.shares for one in systems), strict=True)) if None not in shares
    ]
    if not found:
        raise CommandError("no row has scores of every system", ExitCode.REFUSED)
    return found


def samples_of(
    labelled: Labelled, systems: Sequence[Scored], rows: Sequence[int], groups: Sequence[Any]
) -> list[Sample]:
    """Return the sample of each system, of the same rows. Raises CommandError and JudgementError."""
    labels = in_one_order([(one.name, one.labels) for one in systems])
    truth = labelled.places(labels)
    kept = [groups[row] for row in rows]
    found = []
    for system in systems:
        order = [system.labels.index(label) for label in labels]
        shares = [[(system.shares[row] or ())[place] for place in order] for row in rows]
        own = [truth[row] for row in rows]
        found.append(Sample.of(shares, own, kept, where=lambda place: labelled.where(rows[place])))
    return found


def evaluate(
    labelled: Labelled, systems: Sequence[Scored], groups: Sequence[Any], texts: Sequence[Text | None]
) -> Report:
    """Return what systems are worth that give labels probabilities. Raises CommandError and JudgementError.

    groups: what rows that depend on one another have in common. texts: by which rows are shown.
    """
    rows = scored_rows(systems)
    samples = samples_of(labelled, systems, rows, groups)
    labels = systems[0].labels
    found = {system.name: metrics_of(sample) for system, sample in zip(systems, samples, strict=True)}
    clusters = samples[0].cluster_count
    report = _report(labelled, found, len(rows), clusters)
    report["labels"] = list(labels)
    report["warnings"] = _warnings(labelled, samples[0], len(rows))
    for entry, system, sample in zip(report["systems"], systems, samples, strict=True):
        bins = reliability(sample)
        confusion = [
            [int(((sample.truth == true) & (sample.answers == answer)).sum()) for answer in range(len(labels))]
            for true in range(len(labels))
        ]
        entry |= {
            "confusion": confusion,
            "reliability": [
                {"predicted": one, "observed": other, "rows": count}
                for one, other, count in zip(
                    bins.confidence.tolist(), bins.observed.tolist(), bins.rows.tolist(), strict=True
                )
            ],
            "worst": [
                {
                    labelled.unit: labelled.numbers[rows[place]],
                    "text": _shown(texts[rows[place]]),
                    "truth": labels[sample.truth[place]],
                    "answer": labels[sample.answers[place]],
                    "probability": float(sample.probabilities[place, sample.answers[place]]),
                }
                for place in (-log_losses(sample)).argsort(kind="stable")[:WORST].tolist()
                if sample.truth[place] != sample.answers[place]
            ],
            "order_flips": _order_flips(system, rows),
            **_provenance(system),
        }
    return report


def evaluate_rankings(labelled: Labelled, systems: Sequence[Scored], queries: Sequence[Any], k: int) -> Report:
    """Return what systems are worth that rank the items of queries. Raises CommandError and JudgementError."""
    rows = scored_rows(systems)
    grades = labelled.grades()
    clusters = clusters_of([queries[row] for row in rows], len(rows))
    kept = [grades[row] for row in rows]
    found, counted = {}, 0
    for system in systems:
        column = system.relevance or [None if one is None else one[0] for one in system.shares]
        found[system.name], counted = ranking_metrics([column[row] or 0.0 for row in rows], kept, clusters, k)
    total = int(clusters.max()) + 1
    report = _report(labelled, found, len(rows), total)
    report["warnings"] = [_of_rows(labelled, len(rows))] if len(rows) < len(labelled.rows) else []
    if counted < total:
        report["warnings"].append(
            f"{total - counted:,} of {total:,} queries have no relevant item, and do not count: they say nothing "
            "about a ranking"
        )
    report["warnings"].append("no simulation shows how often the intervals of rankings are right: take them as a hint")
    for entry, system in zip(report["systems"], systems, strict=True):
        entry |= _provenance(system)
    return report


def _report(labelled: Labelled, found: Mapping[str, Mapping[str, Statistic]], rows: int, clusters: int) -> Report:
    """Return the metrics of systems and their differences. found: the metrics of each system, by their names."""
    names = list(next(iter(found.values())))
    both = {f"{system}\n{name}": one for system, metrics in found.items() for name, one in metrics.items()}
    bootstrap = Bootstrap(both, clusters)
    known = clusters >= ROWS_FOR_COVERAGE

    def figures(interval: Interval, name: str) -> dict[str, Any]:
        return {
            "value": _number(interval.value),
            "low": _number(interval.low),
            "high": _number(interval.high),
            "coverage_is_known": known and name in WITH_KNOWN_COVERAGE,
        }

    differences = []
    for base, system in combinations(found, 2):
        metrics = {}
        for name in names:
            one = bootstrap.difference(f"{system}\n{name}", f"{base}\n{name}")
            metrics[name] = figures(one.interval, name) | {
                "detectable": _number(one.detectable),
                "is_clear": one.is_clear,
            }
        differences.append({"system": system, "base": base, "metrics": metrics})
    return {
        "file": labelled.name,
        "digest": labelled.digest,
        "truth": labelled.truth,
        "rows": rows,
        "clusters": clusters,
        "systems": [
            {
                "name": system,
                "metrics": {name: figures(bootstrap.interval(f"{system}\n{name}"), name) for name in names},
            }
            for system in found
        ],
        "differences": differences,
    }


def better(name: str, difference: Mapping[str, Any]) -> bool | None:
    """Return whether a difference is one for the better; None if it may be chance."""
    if not difference["is_clear"]:
        return None
    return bool(difference["value"] > 0) == HIGHER_IS_BETTER.get(name, True)


def _warnings(labelled: Labelled, sample: Sample, rows: int) -> list[str]:
    found = []
    if rows < len(labelled.rows):
        found.append(_of_rows(labelled, rows))
    if sample.cluster_count < ROWS_FOR_COVERAGE:
        found.append(
            f"there are {sample.cluster_count:,} independent rows; from {ROWS_FOR_COVERAGE:,} on, simulations show "
            "that intervals of 95 % are right in 93 to 97 % of all cases"
        )
    found.append("no simulation shows how often the intervals of ece and macro_f1 are right: take them as a hint")
    counts = [int((sample.truth == place).sum()) for place in range(sample.labels)]
    if min(counts) == 0:
        found.append("not every label is the true one of a row: nothing is known about the others")
    return found


def _of_rows(labelled: Labelled, rows: int) -> str:
    return f"{len(labelled.rows) - rows:,} of {len(labelled.rows):,} rows could not be scored, and do not count"


def _order_flips(system: Scored, rows: Sequence[int]) -> dict[str, float] | None:
    """Return how often the order of the options changes an answer; None where they were asked in one order."""
    found = [] if system.flips is None else [one for row in rows if (one := system.flips[row]) is not None]
    if not found:
        return None
    return {"orders": sum(found) / len(found), "rows": sum(one > 0 for one in found) / len(found)}


def _provenance(system: Scored) -> dict[str, Any]:
    return {"prompt": system.prompt, "model": system.model}


def _shown(text: Text | None) -> str | None:
    return text if text is None or isinstance(text, str) else json.dumps(text)


def _number(value: float) -> float | None:
    return value if value == value else None  # JSON has no NaN
