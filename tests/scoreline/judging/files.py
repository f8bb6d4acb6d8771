"""Labelled files, and the commands on them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.judgement.made_up import WORLDS, World
from judgement.sample import Sample
from tests.forked.running import COMMAND, Forked, run, start
from tests.scoreline.runs.files import write_csv

IMPORTED = (*COMMAND, "judgement.calibration", "judgement.thresholds", "scoreline.judging.evaluation")


def judge(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command, with all imported that it needs. variables: of its environment."""
    return run("scoreline", *map(str, arguments), imports=IMPORTED, environment=os.environ | variables)


def begun(*arguments: str | Path, log: Path, **variables: str) -> Forked:
    """Start the command, which goes on beside the test. log: what it prints."""
    return start("scoreline", *map(str, arguments), imports=IMPORTED, log=log, environment=os.environ | variables)


def said(outcome: subprocess.CompletedProcess[str]) -> str:
    """Return the one line of a command that was refused."""
    assert outcome.returncode not in (0, None), outcome.stdout
    (line,) = outcome.stderr.splitlines()
    return line


def labelled_rows(sample: Sample, labels: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows with a score for each label, and the true label."""
    pairs = zip(sample.probabilities.tolist(), sample.truth.tolist(), strict=True)
    return [
        {"id": str(number), **dict(zip(labels, shares, strict=True)), "truth": labels[true]}
        for number, (shares, true) in enumerate(pairs)
    ]


def labelled_file(path: Path, rows: int = 600, world: World = WORLDS["two labels"], seed: int = 0) -> Path:
    """Write a file with made-up scores, in the columns ``yes`` and ``no``, or ``a`` to ``e``."""
    labels = ["yes", "no"] if world.labels == 2 else list("abcde")
    return write_csv(path, labelled_rows(world.draw(rows, np.random.default_rng(seed)), labels))
