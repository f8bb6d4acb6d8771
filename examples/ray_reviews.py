"""Score a dataset of Ray from several processes: which reviews are positive?

scoreline up                        # in another terminal; it serves the demonstration model
python examples/ray_reviews.py
"""

from __future__ import annotations

from pathlib import Path

import ray

import scoreline.ray

ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
reviews = ray.data.read_csv(str(Path(__file__).with_name("reviews.csv")))
scored = scoreline.ray.scored(
    reviews,
    item_column="text",
    query="Review: ",
    item_template="{item}\nSentiment:",
    labels=[" positive", " negative"],
    batch_size=100,
    workers=2,
    max_tokens=100_000,  # all rows are counted first, and nothing is scored if they have more
)
rows = scored.select_columns(["sentiment", "positive", "negative"]).take_all()
right = sum((row["positive"] > row["negative"]) == (row["sentiment"] == "positive") for row in rows)
print(f"{right} of {len(rows)} reviews are classified as a reader would.")
