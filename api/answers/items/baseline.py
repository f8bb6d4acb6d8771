"""Show the scores of items without the share of each label that texts get which say nothing."""

from __future__ import annotations

from typing import Any

from api.answers.items.column import Column
from api.answers.items.columns import Computed, columns_of
from api.answers.items.judged import adjusted_shares, judged_columns


def whole_columns(computed: Computed) -> tuple[dict[str, Column], dict[str, Any]]:
    """Return the values of the items to show, and what a baseline got, by the names of their fields.

    computed: of all items of a job, of which the last ones are its baseline, if it has any. Raises RequestError.
    """
    options, columns = computed.job.options, columns_of(computed)
    if not options.baseline:
        return columns, {}
    items = len(computed.scores) - options.baseline
    shown = {"scores": columns["scores"]} | ({"label_mass": columns["label_mass"]} if "label_mass" in columns else {})
    baseline = {name: column.part(slice(items, None)) for name, column in shown.items()}
    kept = {name: column.first(items) for name, column in columns.items()}
    kept["adjusted"] = Column(adjusted_shares(options, computed.scores, options.temperature))
    return kept | judged_columns(options, computed.scores), {"baseline": baseline}
