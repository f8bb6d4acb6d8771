"""Score the rows of a dataset of Ray in several processes. It needs ``pip install "scoreline[frames]"``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scoreline.frames.asked import Asking
from scoreline.frames.costs import Cost
from scoreline.frames.partitions import Counting, of_parts, reached
from scoreline.frames.tables import with_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.data import Dataset


class Scorer:
    """What ``map_batches`` takes: it returns a batch with its new columns.

    asked: as for :func:`scoreline.frames.asking`. ``run`` must be there: by this name, a batch that Ray computes again
    gets the scores that are there. Rows of a query are computed together if they are in the same batch.
    Ray's processes look for the service in their own environment: give ``url`` and ``api_key`` if they are not there.

    >>> scored = dataset.map_batches(
    ...     scoreline.ray.Scorer,
    ...     fn_constructor_kwargs={"item_column": "review", "query": "", "labels": [" yes", " no"], "run": "may-2026"},
    ...     batch_format="pyarrow",
    ...     batch_size=5_000,
    ... )  # doctest: +SKIP
    """

    def __init__(self, *, run: str, **asked: Any) -> None:
        """Raise TableError if what is asked is wrong."""
        if {"max_items", "max_tokens"} & asked.keys():
            raise TypeError("a batch knows no other: give max_items and max_tokens to scoreline.ray.scored")
        self._asking = of_parts({**asked, "run": run}, "ray")

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Return a batch with its scores. Raises TableError and ScorelineError."""
        return with_columns(batch, self._asking)


class _ReachedScorer(Scorer):
    """The same of a service that has answered."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking


def scored(dataset: Dataset, *, batch_size: int = 5_000, workers: int = 4, **asked: Any) -> Dataset:
    """Return a dataset with the new columns.

    batch_size: rows that are scored at a time. workers: processes that hand them over; the service computes. A file of
    one block keeps one of them busy: ``dataset.repartition(target_num_rows_per_block=5_000)`` makes more blocks.
    asked: as for :func:`scoreline.frames.asking`. With ``max_items`` or ``max_tokens``, all rows are counted first.

    Raises TableError, CostError and ScorelineError; what is wrong with rows is raised when they are computed.
    """
    import ray

    wanted = reached(of_parts(asked, "ray"))
    if wanted.max_items is not None or wanted.max_tokens is not None:
        _cost(dataset, wanted, tokens=wanted.max_tokens is not None).check(wanted.max_items, wanted.max_tokens)
    return dataset.map_batches(
        _ReachedScorer,
        fn_constructor_kwargs={"asking": replace(wanted, max_items=None, max_tokens=None)},
        batch_format="pyarrow",
        batch_size=batch_size,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=0,  # They mostly wait, and must not take the cores that read the data.
    )


def cost(dataset: Dataset, **asked: Any) -> Cost:
    """Return what scoring a dataset would take. Nothing is scored. asked: as for :func:`scored`."""
    return _cost(dataset, reached(of_parts(asked, "ray")), tokens=True)


def _cost(dataset: Dataset, wanted: Asking, *, tokens: bool) -> Cost:
    import pyarrow as pa

    counting = Counting(wanted, tokens)

    def count(batch: pa.Table) -> pa.Table:
        return pa.Table.from_batches(counting(batch.to_batches()))

    totals = dataset.map_batches(count, batch_format="pyarrow").sum(["items", "tokens"])
    return Cost(int(totals["sum(items)"] or 0), int(totals["sum(tokens)"] or 0))
