"""Score a data frame of Spark: which reviews are positive?

scoreline up                        # in another terminal; it serves the demonstration model
python examples/spark_reviews.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col

import scoreline.spark

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python that has this package
spark = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR").getOrCreate()
reviews = spark.read.csv(str(Path(__file__).with_name("reviews.csv")), header=True, quote='"', escape='"')
scored = scoreline.spark.scored(
    reviews,
    item_column="text",
    query="Review: ",
    item_template="{item}\nSentiment:",
    labels=[" positive", " negative"],
    run="reviews-of-november",  # the same rows under this name are scored once, in whichever task or program
)
right = scored.where((col("positive") > col("negative")) == (col("sentiment") == "positive")).count()
print(f"{right} of {reviews.count()} reviews are classified as a reader would.")
spark.stop()
