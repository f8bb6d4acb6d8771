"""When the programs of heads are compiled."""

from __future__ import annotations

from model.buckets import LABEL_BUCKETS
from model.programs.label_head import HeadKey
from model.programs.target_head import TargetHeadKey
from scoring.layout import Head


def first_heads() -> tuple[HeadKey, ...]:
    """Return the heads that are compiled before serving: those for few labels."""
    return tuple(HeadKey.of(head, LABEL_BUCKETS[0]) for head in Head)


def rest_of_heads(*, has_classes: bool = False) -> tuple[HeadKey | TargetHeadKey, ...]:
    """Return the heads that are not compiled before serving, up to the largest bucket.

    has_classes: whether the outputs are classes, among which nobody asks for the most probable one or for targets.
    """
    heads = (HeadKey.of(head, labels) for labels in LABEL_BUCKETS[1:] for head in Head)
    if has_classes:
        return tuple(heads)
    of_targets = (TargetHeadKey.of(targets, top=True) for targets in LABEL_BUCKETS)
    of_labels = (HeadKey.of(head, labels, top=True) for labels in LABEL_BUCKETS for head in Head)
    return (*map(TargetHeadKey.of, LABEL_BUCKETS), *heads, *of_labels, *of_targets)
