"""Counts of scores are added up over processes and hours, and old ones are removed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from jobs.score_counts import KEPT_HOURS, Cell, add_counts, sum_counts
from jobs.store.database import Database

HOUR = 500_000


def test_counts_are_summed_over_the_hours_that_are_asked_for(store: Database) -> None:
    add_counts(store, {Cell("a", HOUR, "score", 0): 2, Cell("a", HOUR, "score", 3): 1, Cell("b", HOUR, "label", 1): 7})
    add_counts(store, {Cell("a", HOUR, "score", 0): 5, Cell("a", HOUR + 1, "score", 0): 11})
    assert sum_counts(store, HOUR, HOUR + 2) == {("a", "score"): {0: 18, 3: 1}, ("b", "label"): {1: 7}}
    assert sum_counts(store, HOUR, HOUR + 1) == {("a", "score"): {0: 7, 3: 1}, ("b", "label"): {1: 7}}
    assert sum_counts(store, HOUR + 2, HOUR + 9) == {}


def test_processes_that_count_the_same_cells_at_once_lose_nothing(store: Database) -> None:
    cells = [Cell("a", HOUR, "score", cell) for cell in range(20)]
    with ThreadPoolExecutor(8) as threads:
        for n in range(64):
            threads.submit(add_counts, store, dict.fromkeys(cells if n % 2 else reversed(cells), 1))
    assert sum_counts(store, HOUR, HOUR + 1) == {("a", "score"): dict.fromkeys(range(20), 64)}


def test_old_counts_are_removed(store: Database) -> None:
    add_counts(store, {Cell("a", HOUR, "score", 0): 1})
    add_counts(store, {Cell("a", HOUR + KEPT_HOURS, "score", 0): 1})
    assert sum_counts(store, 0, 2 * HOUR) == {("a", "score"): {0: 2}}
    add_counts(store, {Cell("a", HOUR + KEPT_HOURS + 1, "score", 0): 1})
    assert sum_counts(store, 0, 2 * HOUR) == {("a", "score"): {0: 2}}
