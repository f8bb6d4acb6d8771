"""Score a table of reviews as an asset of Dagster.

scoreline up                        # in another terminal; it serves the demonstration model
python examples/dagster_reviews.py  # materializes the asset once; `dagster dev -f` shows it
"""

from pathlib import Path

from dagster import AssetExecutionContext, Definitions, MaterializeResult, RetryPolicy, asset, materialize
from pyarrow import compute, csv

from scoreline import frames
from scoreline.dagster import ScorelineResource

REVIEWS = Path(__file__).with_name("reviews.csv")


@asset(retry_policy=RetryPolicy(max_retries=3))
def sentiments(context: AssetExecutionContext, scoreline: ScorelineResource) -> MaterializeResult:
    """Which of the reviews are positive? A run that is tried again scores nothing twice, because it has a name."""
    scored = frames.score(
        csv.read_csv(REVIEWS),
        "text",
        query="Review: ",
        item_template="{item}\nSentiment:",
        labels=[" positive", " negative"],
        run=context.run.root_run_id or context.run.run_id,  # the same if Dagster tries the whole run again
        url=scoreline.url,
        api_key=scoreline.api_key,
    )
    is_positive = compute.greater(scored["positive"], scored["negative"])
    right = compute.sum(compute.equal(is_positive, compute.equal(scored["sentiment"], "positive"))).as_py()
    with scoreline.get_client() as client:
        model = client.models()[0].id
    return MaterializeResult(metadata={"rows": len(scored), "right": right, "model": model})


definitions = Definitions([sentiments], resources={"scoreline": ScorelineResource()})

if __name__ == "__main__":
    done = materialize([sentiments], resources={"scoreline": ScorelineResource()})
    (found,) = done.asset_materializations_for_node("sentiments")
    print(
        f"{found.metadata['right'].value} of {found.metadata['rows'].value} reviews are classified as a reader would."
    )
