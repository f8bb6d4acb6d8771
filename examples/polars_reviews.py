"""Score a table of reviews with Polars: which of them are positive?

scoreline up                        # in another terminal; it serves the demonstration model
python examples/polars_reviews.py
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from scoreline import frames

REVIEWS = Path(__file__).with_name("reviews.csv")  # 600 made-up reviews, with what a reader says of each
PROMPT = {"query": "Review: ", "item_template": "{item}\nSentiment:", "labels": [" positive", " negative"]}

# Nothing is read or scored here.
reviews = pl.scan_csv(REVIEWS)
scored = frames.score(reviews, "text", **PROMPT)

# It is here, a part of the table at a time, so the table may be larger than the memory.
found = scored.select("sentiment", is_positive=pl.col("positive") > pl.col("negative")).collect()
print(found.group_by("sentiment", "is_positive").len().sort("sentiment", "is_positive"))
right = ((found["sentiment"] == "positive") == found["is_positive"]).sum()
print(f"{right} of {len(found)} reviews are classified as a reader would.")

# What would it have cost? The service only counts.
cost = frames.cost(reviews.collect(), item_column="text", **PROMPT)
print(f"{cost.items} items, {cost.prompt_tokens:,} tokens")
