"""Count the scores that calibrations and thresholds are applied to, and say when they have left those of the artefact.

The numbers are those of :mod:`judgement.drift`. Each process adds what it has counted to the database now and then, so
all of them see the counts of all, also after a restart. Items count when they are read, in the hour in which their job
ended: once for each process that they are read from, as far as that remembers. What a process has counted within the
last seconds is lost if it is killed: nothing else depends on it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api.answers.items.columns import Computed, computed_of
from api.answers.items.judged import shares_of_answer, shares_of_items
from api.caching import ThrottledValue
from jobs.score_counts import Cell, add_counts, sum_counts
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import JobStatus, ScorePage
from judgement.applying import Rule, read_rules
from judgement.artefacts import Artefact
from judgement.drift import HOURS, Counts, Reference, Shift, shifts
from judgement.folder import ArtefactFolder
from judgement.sample import Floats, JudgementError
from scoring.decisions.answers import answers_of
from scoring.error_codes import RequestError

ADD_SECONDS = 10.0
"""How long counts are kept in memory."""

LOOK_SECONDS = 60.0
"""How long the answer to whether scores have drifted is used. It changes once an hour."""

MOST_JOBS = 20_000
"""How many jobs are remembered as counted."""

_HOUR = 3600

log = structlog.stdlib.get_logger("api")


@dataclass(frozen=True, slots=True)
class Drift:
    """What the last full hours say of the scores that an artefact was applied to."""

    name: str  # of the artefact
    shifts: tuple[Shift, ...]  # of each distribution that has rows enough

    @property
    def warnings(self) -> list[str]:
        """What an operator should know, in words."""
        return [
            f"the scores that {self.name!r} is applied to are no longer like those that it was made from "
            f"({one.distribution}): label new rows, and evaluate them"
            for one in self.shifts
            if one.is_alarm
        ]


class ScoreCounts:
    """The counts of one process, and what all processes have counted. Safe to use from threads."""

    def __init__(self, database: Database, folder: ArtefactFolder | None) -> None:
        """folder: the artefacts that requests may name; None: there are none."""
        self._database, self._folder = database, folder
        self._counts: Counter[Cell] = Counter()
        self._done: OrderedDict[str, int] = OrderedDict()  # by the ids of jobs: items that were counted
        self._references: dict[str, tuple[Reference, bool]] = {}  # by the ids of artefacts: see _reference
        self._lock = threading.Lock()
        self._found = ThrottledValue(self._look, LOOK_SECONDS)

    def then(self, encode: Callable[[ScorePage], bytes], page: ScorePage) -> bytes:
        """Count the items of a page, and encode it. For a thread, because both take the processor's time."""
        self.count_page(page)
        return encode(page)

    def count_page(self, page: ScorePage | None) -> None:
        """Count the items of a page, if its job has succeeded."""
        if page is not None and page.job.status is JobStatus.SUCCEEDED and len(page.indices):
            ended = page.job.finished_at or page.job.created_at
            self.count(computed_of(page), page.job.id, ended, int(page.indices[0]))

    def count(self, computed: Computed, job_id: str, finished_at: float, first: int = 0) -> None:
        """Count some items of a job that follow those that were counted. first: the index of the first of them.

        Of decisions, and of jobs with a baseline, only whole results count: no item has a score without the others.
        """
        job, items = computed.job, len(computed.scores)
        if self._folder is None or job.options.artefact is None:
            return
        if (job.form is not None or job.options.baseline) and items != job.total_items:
            return
        done = self._take(job_id, first, first + items) - first
        if not 0 <= done < items:
            return
        try:
            for rule, shares, mass in _judged(computed):
                found = self._reference(rule.name, rule.id)
                if found is None:
                    continue
                reference, has_queries = found
                rows = slice(done, None)
                if has_queries:
                    # Items of one query are easy or hard together: one counts, as one row of a group of the file does.
                    if first + done > 0:
                        continue
                    place = crc32(job_id.encode()) % len(shares)
                    rows = slice(place, place + 1)
                counts = reference.count(shares[rows], None if mass is None else mass[rows])
                self._add(rule.id, int(finished_at // _HOUR), counts)
        except (JudgementError, RequestError):
            return  # Where the answer is made, it is said what is wrong.
        except Exception:  # An answer does not depend on what is counted.
            log.exception("scores could not be counted", job_id=job_id)

    def _take(self, job_id: str, first: int, end: int) -> int:
        """Return how many items of a job were counted before. Those up to end are from now on, if none is left out."""
        with self._lock:
            done = self._done.pop(job_id, 0)
            self._done[job_id] = max(done, end) if first <= done else done
            if len(self._done) > MOST_JOBS:
                self._done.popitem(last=False)
        return done

    def _add(self, artefact_id: str, hour: int, counts: Mapping[str, Counts]) -> None:
        with self._lock:
            for distribution, cells in counts.items():
                for cell in np.flatnonzero(cells).tolist():
                    self._counts[Cell(artefact_id, hour, distribution, cell)] += int(cells[cell])

    def _reference(self, name: str, artefact_id: str) -> tuple[Reference, bool] | None:
        """Return what an artefact was made from, and whether its rows had queries of their own; None: it is not known.

        The file may be another one by now, or it may be gone, and come back: so only what was found is kept.
        """
        if artefact_id not in self._references:
            assert self._folder is not None
            artefact = self._folder.find(name)
            reference = None if artefact is None or artefact.id != artefact_id else Reference.read(artefact.figures)
            if artefact is None or reference is None:
                return None
            self._references[artefact_id] = reference, _has_queries(artefact)
        return self._references[artefact_id]

    def add(self) -> None:
        """Add what was counted to the database; if that fails, it is kept. Blocks on SQL. Raises StorageUnavailable."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return
        try:
            add_counts(self._database, counts)
        except Exception:
            with self._lock:
                self._counts += counts
            raise

    def look(self) -> list[Drift]:
        """Return what is known of each artefact of the folder; nothing while the database is away. Blocks on SQL."""
        return [] if self._folder is None else self._found.get()

    def _look(self) -> list[Drift]:
        assert self._folder is not None
        end = int(time.time() // _HOUR)
        references = dict(_references(self._folder))
        try:
            sums = sum_counts(self._database, end - HOURS, end) if references else {}
        except StorageUnavailable:
            return []
        return [
            Drift(name, tuple(shifts(reference, _arrays(reference, sums, artefact_id))))
            for name, (artefact_id, reference) in references.items()
        ]


class DriftCollector(Collector):
    """What is known of the drift of each artefact, as metrics."""

    def __init__(self, counts: ScoreCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        labels = ("artefact", "distribution")
        rows = GaugeMetricFamily(
            "scoreline_artefact_rows", "Rows that an artefact was applied to lately.", labels=labels
        )
        index = GaugeMetricFamily(
            "scoreline_artefact_shift", "How far their scores are from those that it was made from.", labels=labels
        )
        alarm = GaugeMetricFamily("scoreline_artefact_drifted", "Whether that is too far.", labels=labels)
        for drift in self._counts.look():
            for one in drift.shifts:
                of = (drift.name, one.distribution)
                rows.add_metric(of, one.rows)
                index.add_metric(of, one.index)
                alarm.add_metric(of, one.is_alarm)
        yield from (rows, index, alarm)


def _has_queries(artefact: Artefact) -> bool:
    """Return whether the rows of an artefact had queries of their own, by which they are groups."""
    return "query" in artefact.prompt and artefact.prompt["query"] is None


def _judged(computed: Computed) -> Iterator[tuple[Rule, Floats, Floats | None]]:
    """Yield what is applied to N items or answers, the probabilities of their labels, [N, K], and label masses."""
    job, scores = computed.job, computed.scores
    rules = read_rules(job.options.artefact)
    if job.form is None:
        shares, mass = shares_of_items(rules[""], job.options, scores), computed.label_mass
        yield rules[""], shares, None if mass is None else mass[: len(shares)]
        return
    assert computed.item_labels is not None
    for answer in answers_of(job.form, scores, computed.item_labels, of_tokens=job.options.is_of_vocabulary):
        if answer.name in rules:
            mass = None if answer.label_mass is None else np.array([answer.label_mass])
            yield rules[answer.name], np.array([shares_of_answer(answer)]), mass


def _references(folder: ArtefactFolder) -> Iterator[tuple[str, tuple[str, Reference]]]:
    for name in folder.names():
        try:
            artefact = folder.find(name)
        except JudgementError:
            continue  # A request that names it is told why.
        reference = None if artefact is None else Reference.read(artefact.figures)
        if artefact is not None and reference is not None:
            yield name, (artefact.id, reference)


def _arrays(
    reference: Reference, sums: Mapping[tuple[str, str], Mapping[int, int]], artefact_id: str
) -> dict[str, Counts]:
    found: dict[str, Counts] = {}
    for name, expected in reference.counts.items():
        cells = sums.get((artefact_id, name), {})
        found[name] = np.array([cells.get(cell, 0) for cell in range(len(expected))], np.int64)
    return found
