"""Have a client score rows in memory, for one system or several, by jobs of one query each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from judgement.sample import JudgementError
from scoreline.client import InvalidRequest, ScoreResult
from scoreline.client.mapping import Pair
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.runs.decisions import StateColumns
from scoreline.runs.formats import Row
from scoreline.runs.prompts import Columns
from scoreline.runs.run import fingerprints
from scoreline.runs.scoring import place_of
from scoreline.runs.windows import Group, Window

Texts = Columns | StateColumns


@dataclass(frozen=True, slots=True)
class Answers:
    """What the service says of all rows for one system."""

    shares: list[list[float]]  # [rows][labels] the probability of each label
    model: Mapping[str, Any] | None  # its fingerprints; None: no worker has said them
    baseline: list[list[float]] | None  # what the baseline of the first job got; None: there is none


class Backlog:
    """The jobs that score some rows, for ``map`` of a client."""

    def __init__(self, rows: Sequence[Row], systems: Sequence[tuple[Texts, Mapping[str, Any]]]) -> None:
        """systems: for each, where its texts are, and the options of its jobs. Raises CommandError for a bad text."""
        self._count = len(rows)
        self._options = [{**one, "apply_softmax": True, "return_provenance": True} for _, one in systems]
        of_each = [_groups(rows, columns) for columns, _ in systems]
        # Side by side: what prompts of the same query share is computed once.
        self._jobs = [
            (system, group)
            for together in zip_longest(*of_each)
            for system, group in enumerate(together)
            if group is not None
        ]

    @property
    def pairs(self) -> list[Pair]:
        """What ``map`` takes."""
        found: list[Any] = [(group.query, group.items, self._options[system]) for system, group in self._jobs]
        return found

    def about_rows(self, error: InvalidRequest, number: int) -> InvalidRequest:
        """Return the error of a pair, by its number, with the place of an item among all rows: its job has another."""
        _, group = self._jobs[number]
        place = place_of(error, group, len(group.items))
        if place is None:
            return error
        was, now = f"items[{place}]", f"items[{group.rows[place]}]"
        message = error.message.replace(was, now)
        return type(error)(error.code, message, error.status, param=now, request_id=error.request_id)

    def read(self, results: Iterable[ScoreResult]) -> list[Answers]:
        """Return what the results say, for each system. Raises JudgementError if the model was replaced meanwhile.

        results: those of the pairs, in their order.
        """
        shares: list[list[list[float]]] = [[[]] * self._count for _ in self._options]
        models: list[dict[str, Mapping[str, Any]]] = [{} for _ in self._options]
        baselines: list[list[list[float]] | None] = [None] * len(self._options)
        for (system, group), result in zip(self._jobs, results, strict=True):
            for place, row in zip(group.rows, result.adjusted or result.scores, strict=True):
                shares[system][place] = row
            if result.baseline is not None:
                baselines[system] = baselines[system] or result.baseline.scores
            for one in result.provenance or ():
                if one is not None:
                    models[system][one.weights_fingerprint] = fingerprints(one)
        if any(len(one) > 1 for one in models):
            raise JudgementError("the model was replaced while the texts were scored: try again")
        found = [next(iter(one.values()), None) for one in models]
        return [Answers(*one) for one in zip(shares, found, baselines, strict=True)]


def _groups(rows: Sequence[Row], columns: Texts) -> list[Group]:
    window = Window(0, list(rows), list(range(len(rows))), b"", {}, None)
    groups, wrong, empty = window.groups(columns)
    for place, why in sorted({**wrong, **empty}.items()):
        raise CommandError(f"item {place}: {why}", ExitCode.REFUSED)
    return groups
