"""Score a job from a workflow of Airflow 3, which waits for it without a worker.

scoreline up                        # in another terminal; it serves the demonstration model
python examples/airflow_scoring.py  # runs the workflow once, as `dag.test()` does
"""

from __future__ import annotations

from airflow.sdk import DAG, task

from scoreline import Client
from scoreline.airflow import ScoreOperator

REVIEWS = [
    "The room was spotless and the staff were lovely.",
    "The soup was cold and the waiter forgot us.",
    "What a gripping novel! The ending was clever and moving.",
    "This laptop crashes every day and the battery is useless.",
]

with DAG("reviews", schedule=None) as dag:

    @task
    def load() -> list[str]:
        return REVIEWS

    score = ScoreOperator(
        task_id="score",
        query="Review: ",
        items=load(),  # or a list, or a function that the worker calls
        options={"item_template": "{item}\nSentiment:", "labels": [" positive", " negative"], "priority": "bulk"},
    )

    @task
    def count(job_id: str) -> int:
        with Client() as client:
            positive = sum(one.scores[0] > one.scores[1] for one in client.scores(job_id))
        print(f"{positive} of {len(REVIEWS)} reviews are positive")
        return positive

    count(score.output)

if __name__ == "__main__":
    run = dag.test()
    print(f"the workflow ended with: {run.state}")
