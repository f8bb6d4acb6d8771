"""Limits for tests that are about something else."""

from __future__ import annotations

from scoring.limits import Limit, Limits

GENEROUS = Limits(
    item_labels=Limit("max_item_labels", 1_000),
    max_labels=256,
    items=Limit("max_items", 100_000),
    tokens=Limit("max_tokens_per_job", 10**10),
    stored_tokens=Limit("max_stored_tokens_per_job", 10**8),
    repeated_characters=Limit("max_repeated_characters_per_job", 10**8),
    query_characters=Limit("max_query_characters", 10**6),
    item_characters=Limit("max_item_characters", 10**6),
    label_characters=Limit("max_label_characters", 1_000),
    label_tokens=Limit("max_label_tokens", 10**5),
    chunk_tokens=16_384,
    chunk_items=256,
)
