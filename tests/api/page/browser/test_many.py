"""Many jobs, and a job of many items."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, select

from jobs.store.database import Database
from jobs.store.tables import jobs
from tests.api.page.browser.watching import Tab
from tests.api.serving import RunningApi, StandInWorker
from tests.api.tiny_model import TinyModel

pytestmark = pytest.mark.browser

Served = tuple[RunningApi, StandInWorker]


def test_the_scores_of_five_thousand_items_are_sorted_and_turned_over(
    shown: Tab, served: Served, model: TinyModel
) -> None:
    api = served[0]
    labels = [model.token(" yes"), model.token(" no"), 70]
    job = api.submit(query="The capital of", items=[f" item {n}" for n in range(5_000)], label_token_ids=labels)
    page = shown.open(f"jobs/{job['id']}")
    page.get_by_text("Rows 1 to 100 of 5,000").wait_for()
    api.wait(job["id"])
    lines = [
        line
        for offset in range(0, 5_000, 1_000)
        for line in api.client.get(f"/v1/jobs/{job['id']}/scores?limit=1000&offset={offset}").json()["data"]
    ]
    best = sorted(lines, key=lambda line: line["scores"][1], reverse=True)
    page.get_by_role("button", name="·no").click()
    page.locator('th[aria-sort="descending"]').wait_for()
    assert shown.texts("th .place") == [f"{line['index']:,}" for line in best[:100]]
    page.get_by_role("button", name="Last").click()
    page.get_by_text("Rows 4,901 to 5,000 of 5,000").wait_for()
    assert shown.texts("th .place") == [f"{line['index']:,}" for line in best[-100:]]
    last = page.locator("tbody tr").last
    last.locator(".text", has_text=f"item {best[-1]['index']}").wait_for()
    assert page.locator("table.scores tr").count() == 101  # however many items there are
    # The strip above the table has them all, and leads to each place.
    page.locator("canvas.map").click(position={"x": 2, "y": 5})
    page.get_by_text("Rows 1 to 100 of 5,000").wait_for()


def test_ten_thousand_jobs_are_turned_over_page_by_page(shown: Tab, served: Served) -> None:
    api = served[0]
    first = api.wait(api.submit(query="a", items=[" b"], label_token_ids=[70])["id"])["id"]
    store = Database.open(api.store)
    with store.write() as tx:
        one = dict(tx.execute(select(jobs).where(jobs.c.id == first)).one()._mapping)
        copies = [one | {"id": f"job_{n:032x}", "created_at": one["created_at"] - n} for n in range(10_000)]
        tx.execute(insert(jobs), copies)
    store.close()
    page = shown.open("jobs")
    older = page.get_by_role("button", name="Older")
    seen: list[str] = []
    for n in range(4):
        page.get_by_text(f"Jobs {25 * n + 1} to {25 * n + 25}").wait_for()
        seen += shown.texts("table.jobs th[scope=row]")
        older.click()
    page.get_by_text("Jobs 101 to 125").wait_for()
    listed = api.client.get("/v1/jobs?limit=100").json()["data"]
    assert seen == [job["id"] for job in listed]
    assert page.locator("table.jobs tbody tr").count() == 25
    page.get_by_role("button", name="Newer").click()
    page.get_by_text("Jobs 76 to 100").wait_for()
    page.get_by_role("button", name="Newest").click()
    page.get_by_text("Jobs 1 to 25").wait_for()
