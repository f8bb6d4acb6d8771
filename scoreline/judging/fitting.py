"""Fit a calibration or a threshold to a labelled file, as an artefact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from judgement.applying import apply, in_set
from judgement.artefacts import Artefact, Kind
from judgement.drift import Reference
from judgement.metrics import metrics_of
from judgement.sample import Sample
from judgement.statistics import value_of
from judgement.thresholds import DELTA, certify, first_test, set_bound
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.judging.labelled import Labelled
from scoreline.judging.scored import Scored


def fit_calibration(name: str, labelled: Labelled, system: Scored, sample: Sample) -> Artefact:
    """Return the best calibration of a system. Raises JudgementError."""
    from judgement.calibration import calibrate  # needs scikit-learn, and a threshold does not

    found = calibrate(sample)
    figures = {
        "held_out_log_loss": dict(found.held_out),
        "gain_in_log_loss": asdict(found.gain.interval),
        "before": _metrics(found.before),
        "after": _metrics(found.after),
    }
    return _artefact(Kind.CALIBRATION, name, labelled, system, sample, found.method, dict(found.parameters), figures)


def fit_threshold(
    name: str, labelled: Labelled, system: Scored, sample: Sample, max_error: float, calibration: Artefact | None
) -> Artefact:
    """Return the lowest threshold with at most this error. Raises CommandError and JudgementError."""
    judged = sample
    if calibration is not None:
        judged = sample.with_probabilities(apply(calibration, sample.probabilities))
    independent = judged.of_rows(judged.independent_rows())
    found = certify(independent, max_error)
    if found is None:
        failed = first_test(independent, max_error)
        raise CommandError(
            f"{labelled.name}: no threshold can be shown to keep the error below {max_error:.3g}: of the "
            f"{failed.acted:,} surest independent rows {failed.errors:,} are wrong, and at most {failed.allowed:,} may "
            f"be. This file could show {failed.provable:.3f} for them. Look at the surest wrong rows in the report of "
            "`scoreline evaluate --html`; then improve the prompt, label more rows, or allow a larger --max-error",
            ExitCode.REFUSED,
        )
    bound = None if sample.labels == 2 else set_bound(independent, max_error)
    figures: dict[str, Any] = {
        "max_error": max_error,
        "delta": DELTA,
        "independent_rows": found.rows,
        "acted": found.acted,
        "errors": found.errors,
        "abstained": found.abstained,
        "highest_error_at_this_threshold": found.highest_error,
    }
    if bound is not None:
        figures["mean_set_size"] = float(in_set(independent.probabilities, bound).sum(axis=1).mean())
    parameters = {"threshold": found.threshold, "set_bound": bound}
    return _artefact(
        Kind.THRESHOLD, name, labelled, system, sample, "learn-then-test", parameters, figures, calibration
    )


def check_calibration(calibration: Artefact, name: str, labelled: Labelled, system: Scored) -> None:
    """Raise CommandError if a calibration is not for the same model, prompt and labels, or was fitted on these rows."""
    if calibration.kind is not Kind.CALIBRATION:
        raise CommandError(f"{name} is a {calibration.kind}, and no calibration", ExitCode.USAGE)
    same: Sequence[tuple[str, object, object]] = (
        ("other labels", calibration.labels, system.labels),
        ("another model", _weights(calibration.model), _weights(system.model or {})),
        ("another prompt", calibration.prompt, system.prompt or {}),
    )
    for what, before, now in same:
        if before != now:
            raise CommandError(f"{name} is for {what}: calibrate again, or leave --calibration out", ExitCode.USAGE)
    if calibration.data["digest"] == labelled.digest:
        raise CommandError(
            f"{name} was fitted on {labelled.name}, so its rows prove nothing about it: take other rows for the "
            "threshold, or leave --calibration out",
            ExitCode.USAGE,
        )


def _weights(model: Any) -> tuple[object, object]:
    return model.get("weights_fingerprint"), model.get("tokenizer_fingerprint")


def _artefact(
    kind: Kind,
    name: str,
    labelled: Labelled,
    system: Scored,
    sample: Sample,
    method: str,
    parameters: dict[str, Any],
    figures: dict[str, Any],
    calibration: Artefact | None = None,
) -> Artefact:
    counts = Counter(system.labels[place] for place in sample.truth.tolist())
    return Artefact(
        kind=kind,
        name=name,
        created=datetime.now(UTC).date().isoformat(),
        model=system.model or {},
        prompt=system.prompt or {},
        labels=system.labels,
        data={
            "file": Path(labelled.name).name,
            "digest": labelled.digest,
            "truth": labelled.truth,
            "rows": sample.rows,
            "clusters": sample.cluster_count,
        },
        counts={label: counts[label] for label in system.labels},
        method=method,
        parameters=parameters,
        figures={**figures, "reference": _reference(system, sample)},
        calibration=calibration,
    )


def _reference(system: Scored, sample: Sample) -> dict[str, Any]:
    """Return how the scores are distributed as the model gives them, by which a service sees that they have changed."""
    rows = sample.independent_rows()
    scored = [mass for mass, shares in zip(system.masses or (), system.shares, strict=False) if shares is not None]
    masses = [scored[row] for row in rows.tolist()] if scored else [None]
    known = [mass for mass in masses if mass is not None]
    return Reference.of(sample.probabilities[rows], known if len(known) == len(masses) else None).written()


def _metrics(sample: Sample) -> dict[str, float]:
    return {name: value_of(one, sample.cluster_count) for name, one in metrics_of(sample).items()}
