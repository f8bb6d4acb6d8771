"""Score the rows of a data frame of Spark where they are. It needs ``pip install "scoreline[frames]"`` on all nodes.

Rows of a query are computed together if they stand side by side in a partition:
``frame.repartition(64, "query").sortWithinPartitions("query")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scoreline.frames.asked import Asking
from scoreline.frames.costs import Cost
from scoreline.frames.partitions import Counting, Scoring, new_of_parts, of_parts, reached
from scoreline.frames.tables import check_cases
from scoreline.runs.formats import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def scored(frame: DataFrame, **asked: Any) -> DataFrame:
    """Return a data frame with the new columns. Its rows are scored when they are asked for.

    asked: as for :func:`scoreline.frames.asking`. A task that Spark tries again, or runs twice, gets the scores that
    are there, and with the same ``run`` so does another program. With ``max_items`` or ``max_tokens``, all rows are
    counted first. Raises TableError, CostError and ScorelineError; what is wrong with rows fails their task.
    """
    from pyspark.sql.types import ArrayType, DoubleType, StringType, StructType

    types = {Kind.NUMBER: DoubleType(), Kind.NUMBERS: ArrayType(DoubleType()), Kind.TEXT: StringType()}
    wanted = of_parts(asked, "spark")
    wanted, new = new_of_parts(wanted, frame.columns)
    if frame.sparkSession.conf.get("spark.sql.caseSensitive") != "true":
        check_cases("Spark", [*frame.columns, *new])
    if wanted.max_items is not None or wanted.max_tokens is not None:
        _cost(frame, wanted, tokens=wanted.max_tokens is not None).check(wanted.max_items, wanted.max_tokens)
    schema = StructType([*frame.schema.fields])
    for name, kind in new.items():
        schema = schema.add(name, types[kind])
    return frame.mapInArrow(Scoring(wanted), schema)


def cost(frame: DataFrame, **asked: Any) -> Cost:
    """Return what scoring a data frame would take. Nothing is scored. asked: as for :func:`scored`."""
    return _cost(frame, reached(of_parts(asked, "spark")), tokens=True)


def _cost(frame: DataFrame, wanted: Asking, *, tokens: bool) -> Cost:
    counted = frame.mapInArrow(Counting(wanted, tokens), "items long, tokens long")
    (totals,) = counted.groupBy().sum("items", "tokens").collect()
    return Cost(totals[0] or 0, totals[1] or 0)
