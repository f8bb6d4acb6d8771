"""Score the rows of a query of DuckDB: which reviews are positive?

scoreline up                        # in another terminal; it serves the demonstration model
python examples/duckdb_reviews.py
"""

from __future__ import annotations

from pathlib import Path

import duckdb

import scoreline.duckdb

connection = duckdb.connect()
connection.execute(
    "CREATE TABLE reviews AS FROM read_csv($file)", {"file": str(Path(__file__).with_name("reviews.csv"))}
)
scoreline.duckdb.register(
    connection,
    "sentiment_of",
    query="Review: ",
    item_template="{item}\nSentiment:",
    labels=[" positive", " negative"],
    max_items=1_000,  # for all queries together: one that would score more ends with an error
)
right, rows, sure = connection.sql("""
    SELECT count(*) FILTER ((scores.positive > scores.negative) = (sentiment = 'positive')),
           count(*),
           count(*) FILTER (greatest(scores.positive, scores.negative) > 0.99)
    FROM (SELECT sentiment, sentiment_of(text) AS scores FROM reviews)
""").fetchall()[0]
print(f"{right} of {rows} reviews are classified as a reader would, and the model is sure of {sure}.")
