"""Every view of the page, as somebody sees it whom the server asks for no key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.every_route import BATCH, made, upload
from tests.api.page.browser.watching import REFUSED, Tab
from tests.api.serving import RunningApi, StandInWorker
from tests.api.tiny_model import TinyModel

pytestmark = pytest.mark.browser

Served = tuple[RunningApi, StandInWorker]
CITIES = [" Paris", " London", " Berlin", " Tokyo"]


@pytest.fixture
def held(served: Served) -> Any:
    """The worker, which takes no work until the test lets it."""
    worker = served[1]
    worker.gate.clear()
    yield worker
    worker.budget = 100_000
    worker.gate.set()


def submit(api: RunningApi, model: TinyModel, **fields: Any) -> dict[str, Any]:
    labels = [model.token(" yes"), model.token(" no")]
    return api.submit(**{"query": "The capital of France is", "items": CITIES, "label_token_ids": labels} | fields)


def shown_scores(tab: Tab) -> list[list[str]]:
    """Return the cells of the heat map."""
    return [row.split("\t")[1:] for row in tab.texts("table.scores tbody tr")]


def test_the_overview_is_live(shown: Tab, served: Served, held: StandInWorker, model: TinyModel) -> None:
    page = shown.open()
    assert page.title() == "Overview – Scoreline"
    page.get_by_role("region", name="Live workers").get_by_text("float32").wait_for()
    job = submit(served[0], model)
    page.get_by_text("tokens in 1 chunk").wait_for()
    shown.row(job["id"]).get_by_text("queued").wait_for()
    held.gate.set()
    shown.row(job["id"]).get_by_text("succeeded").wait_for()
    shown.row(job["id"]).get_by_text("4 / 4").wait_for()
    page.get_by_text("tokens in 0 chunks").wait_for()


def test_the_list_of_jobs_is_live_and_shows_a_status_alone_if_asked(
    shown: Tab, served: Served, held: StandInWorker, model: TinyModel
) -> None:
    api = served[0]
    cancelled = submit(api, model)
    api.client.post(f"/v1/jobs/{cancelled['id']}/cancel")
    waiting = submit(api, model, metadata={"run": "7"})
    page = shown.open("jobs")
    shown.row(waiting["id"]).get_by_text("run: 7").wait_for()
    shown.row(cancelled["id"]).get_by_text("cancelled").wait_for()
    page.get_by_label("Status").select_option("cancelled")
    shown.row(waiting["id"]).wait_for(state="detached")
    assert shown.row(cancelled["id"]).count() == 1
    page.get_by_label("Status").select_option("")
    shown.row(waiting["id"]).get_by_text("queued").wait_for()
    held.gate.set()
    shown.row(waiting["id"]).get_by_text("succeeded").wait_for()
    page.get_by_role("link", name=waiting["id"]).click()
    page.get_by_role("heading", name=waiting["id"]).wait_for()
    assert page.evaluate("document.activeElement.tagName") == "H1"


def test_a_job_is_followed_from_its_queue_to_its_scores(
    shown: Tab, served: Served, held: StandInWorker, model: TinyModel
) -> None:
    api = served[0]
    job = submit(api, model)
    page = shown.open(f"jobs/{job['id']}")
    page.get_by_text("No item is scored yet.").wait_for()
    held.gate.set()
    page.get_by_text("succeeded").wait_for()
    page.get_by_text("Rows 1 to 4 of 4").wait_for()
    expected = api.client.get(f"/v1/jobs/{job['id']}/scores").json()["data"]
    for cells, line in zip(shown_scores(shown), expected, strict=True):
        assert [float(cell) for cell in cells] == pytest.approx([*line["scores"], line["label_mass"]], rel=0.05)
    page.get_by_role("button", name="·yes").wait_for()  # labels and items have their texts
    page.locator("th .text", has_text="Tokyo").wait_for()
    assert page.locator(".query code").inner_text() == "The capital of France is"


def test_scores_are_sorted_by_any_heading_in_either_direction(shown: Tab, served: Served, model: TinyModel) -> None:
    api = served[0]
    job = submit(api, model, items=[f" item {n}" for n in range(40)])
    api.wait(job["id"])
    rows = api.client.get(f"/v1/jobs/{job['id']}/scores").json()["data"]
    page = shown.open(f"jobs/{job['id']}")
    page.get_by_role("button", name="·no").wait_for()
    values = {"·no": lambda row: row["scores"][1], "Label mass": lambda row: row["label_mass"]}
    for name, value in values.items():
        for direction in ("descending", "ascending"):
            heading = page.get_by_role("columnheader", name=name)
            if heading.get_attribute("aria-sort") != direction:
                heading.get_by_role("button").press("Enter")
            page.locator(f'th[aria-sort="{direction}"]', has_text=name).wait_for()
            order = sorted(rows, key=value, reverse=direction == "descending")
            assert shown.texts("th .place") == [str(row["index"]) for row in order]


def test_labels_of_each_item_stand_in_rows_of_their_own_lengths(shown: Tab, served: Served, model: TinyModel) -> None:
    api = served[0]
    job = submit(api, model, items=[" a", " b"], label_token_ids=[[70], [71, 72]])
    api.wait(job["id"])
    page = shown.open(f"jobs/{job['id']}")
    page.get_by_role("button", name="label 1").wait_for()
    assert [bool(cells[1]) for cells in shown_scores(shown)] == [False, True]


def test_a_likelihood_has_one_column(shown: Tab, served: Served) -> None:
    job = served[0].submit(query="The capital of", items=[" France", " Japan is", ""], kind="likelihood")
    page = shown.open(f"jobs/{job['id']}")
    page.get_by_role("button", name="log-probability").click()
    page.get_by_text("Rows 1 to 3 of 3").wait_for()
    assert all(len(cells) == 1 for cells in shown_scores(shown))


def test_cancelling_a_job_asks_first(shown: Tab, served: Served, held: StandInWorker, model: TinyModel) -> None:
    job = submit(served[0], model)
    page = shown.open(f"jobs/{job['id']}")
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Cancel the job").click()
    assert served[0].client.get(f"/v1/jobs/{job['id']}").json()["status"] == "queued"
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel the job").click()
    page.get_by_text("cancelled").wait_for()
    page.get_by_text("No item was scored.").wait_for()


def test_a_batch_is_followed_to_its_end_and_its_files_are_saved(
    shown: Tab, served: Served, held: StandInWorker
) -> None:
    api = served[0]
    body = {"query": "The capital of", "items": [" France"], "labels": ["a"]}
    lines = [{"custom_id": f"line {n}", "method": "POST", "url": "/v1/score", "body": body} for n in range(3)]
    lines[1]["body"] = {"query": "no items"}
    content = "\n".join(json.dumps(line) for line in lines).encode()
    batch = made(api.client.post("/v1/batches", json=BATCH | {"input_file_id": made(upload(api.client, content))}))
    page = shown.open("batches")
    page.get_by_role("link", name=batch).click()
    page.get_by_text("in progress").wait_for()
    held.gate.set()
    page.get_by_text("completed", exact=True).wait_for()
    page.get_by_text("3 / 3").first.wait_for()
    page.get_by_role("region", name="Jobs of the batch").wait_for()
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save").first.click()
    saved = saving.value.path().read_text().splitlines()
    assert [json.loads(line)["custom_id"] for line in saved] == ["line 0", "line 2"]


def test_documents_are_ranked_as_the_interface_ranks_them(shown: Tab, served: Served) -> None:
    api = served[0]
    documents = ["The capital of Japan is Tokyo.", "London is in England.", "This movie was great!"]
    expected = api.client.post("/v1/rerank", json={"query": "Where is London?", "documents": documents}).json()
    page = shown.open("rank")
    page.get_by_label("Query").fill("Where is London?")
    page.get_by_label("Documents").fill("\n".join(documents) + "\n\n")
    page.get_by_role("button", name="Rank").click()
    page.get_by_text("3 documents, the best first").wait_for()
    assert shown.texts(".ranking .document") == [documents[result["index"]] for result in expected["results"]]
    page.get_by_role("link", name="Jobs").click()
    page.get_by_role("link", name="Rank", exact=True).click()
    assert page.get_by_label("Query").input_value() == "Where is London?"


def test_a_decision_is_shown_as_the_interface_answers_it(shown: Tab, served: Served) -> None:
    api = served[0]
    page = shown.open("decide")
    page.get_by_label("State").fill('{"text": "I saw London."}')
    page.get_by_role("button", name="Remove question 3").click()
    page.get_by_role("button", name="Remove question 2").click()
    page.get_by_role("button", name="Remove question 2").wait_for(state="detached")
    page.get_by_label("Instructions").fill("Which one?")
    page.get_by_label("Options").fill("Paris: in France\nLondon\n")
    page.get_by_role("button", name="Add a question").click()
    page.get_by_role("button", name="Remove question 2").wait_for()
    page.get_by_label("Instructions").nth(1).fill("Is it great?")
    page.get_by_role("button", name="Decide").click()
    page.get_by_role("heading", name="Answers").wait_for()
    questions = {
        "1": {"type": "choice", "instructions": "Which one?", "criteria": {"Paris": "in France", "London": None}},
        "2": {"type": "noul", "instructions": "Is it great?"},
    }
    body = {"state": {"text": "I saw London."}, "questions": questions}
    answers = api.client.post("/v1/systemone", json=body).json()["answers"]
    assert shown.texts(".ranking .document") == ["Paris", "London", "yes", "no"]
    shares = [*answers["1"]["probabilities"].values(), answers["2"]["noul"], 1 - answers["2"]["noul"]]
    assert [float(text) for text in shown.texts(".ranking .number")] == pytest.approx(shares, rel=0.01)
    assert shown.texts("h3 .answer") == [
        f"{answers['1']['choice']}, confidence {answers['1']['confidence']:.3g}",
        "yes" if answers["2"]["noul"] >= 0.5 else "no",
    ]
    page.get_by_role("link", name="Rank", exact=True).click()
    page.get_by_role("link", name="Decide").click()
    assert page.get_by_label("Instructions").nth(1).input_value() == "Is it great?"


def test_a_prompt_is_shown_as_its_tokens_with_scores_and_label_mass(
    shown: Tab, served: Served, model: TinyModel
) -> None:
    api = served[0]
    page = shown.open("try")
    page.get_by_label("Query", exact=True).fill("The capital of Fr")
    page.get_by_label("Items").fill("ance is\n")
    page.get_by_label("Labels").fill(" yes\n no")
    page.get_by_role("button", name="Score").click()
    page.get_by_role("heading", name="Scores").wait_for()
    sequences = [model.encode("The capital of France is"), model.encode("The capital of Fr")]
    for n, ids in enumerate(sequences):
        chips = page.locator(".sequences > li").nth(n).locator(".chip")
        pieces = api.client.post("/v1/tokenize", json={"text": model.decode(ids)}).json()["pieces"]
        assert chips.all_inner_texts() == [piece.replace(" ", "·") for piece in pieces]
    # The query's last token merges with the first item, so it is not shared with it.
    assert page.locator(".sequences > li").nth(0).locator(".chip.shared").count() < len(
        model.encode("The capital of Fr")
    )
    answer = api.score(query="The capital of Fr", items=["ance is", ""], labels=[" yes", " no"])
    for cells, scores in zip(shown_scores(shown), answer["scores"], strict=True):
        assert [float(cell) for cell in cells[:2]] == pytest.approx(scores, rel=0.05)
    assert page.get_by_text("tiny: the prompt is probably wrong").count() == sum(
        mass < 0.1 for mass in answer["label_mass"]
    )


def test_templates_and_softmax_of_a_tried_prompt_reach_the_interface(shown: Tab, served: Served) -> None:
    page = shown.open("try")
    page.get_by_text("Templates").click()
    page.get_by_label("Query", exact=True).fill("France")
    page.get_by_label("Items").fill("Paris")
    page.get_by_label("Labels").fill(" yes\n no")
    page.get_by_label("Query template").fill("What is the capital of {query}?")
    page.get_by_label("Item template").fill(" Is it {item}?")
    page.get_by_label("Scores of an item add up to 1").check()
    page.get_by_role("button", name="Score").click()
    page.get_by_role("heading", name="Scores").wait_for()
    templates = {"query_template": "What is the capital of {query}?", "item_template": " Is it {item}?"}
    answer = served[0].score(query="France", items=["Paris"], labels=[" yes", " no"], apply_softmax=True, **templates)
    assert [float(cell) for cell in shown_scores(shown)[0][:2]] == pytest.approx(answer["scores"][0], rel=0.05)
    text = "".join(page.locator(".sequences .chip").all_inner_texts()).replace("·", " ")
    assert text == "What is the capital of France? Is it Paris?"


def test_a_label_of_several_tokens_is_shown_in_its_pieces_beside_the_error(shown: Tab) -> None:
    shown.allowed = (REFUSED,)
    page = shown.open("try")
    page.get_by_label("Labels").fill("Paris London")
    page.get_by_role("button", name="Score").click()
    page.get_by_role("alert").get_by_text("label_not_single_token").wait_for()
    page.get_by_text("A label must be one token.").wait_for()
    assert page.locator(".labels .chip").count() > 1


def test_what_does_not_exist_is_said_plainly(shown: Tab) -> None:
    shown.allowed = (REFUSED,)
    for view in ("no/such/view", "jobs/%E0%A4%A", "jobs/..%2F..%2Flivez", "jobs/job_0/cancel"):
        shown.open(view).get_by_text("There is no such view").wait_for()
        shown.page.goto("about:blank")
    shown.open("jobs/job_0").get_by_role("alert").get_by_text("there is no such job").wait_for()
    shown.open("batches/batch_0").get_by_role("alert").get_by_text("batch_not_found").wait_for()


def test_the_page_goes_on_by_itself_after_an_outage(shown: Tab, served: Served, model: TinyModel) -> None:
    shown.allowed = ("Failed to load resource",)
    page = shown.open("jobs")
    page.get_by_role("navigation", name="Pages of jobs").get_by_text("Jobs 1 to").wait_for()
    page.context.set_offline(True)
    page.get_by_role("alert").get_by_text("The server does not answer.").wait_for()
    page.context.set_offline(False)
    job = submit(served[0], model)
    shown.row(job["id"]).wait_for()
    page.get_by_role("alert").get_by_text("The server does not answer.").wait_for(state="detached")
