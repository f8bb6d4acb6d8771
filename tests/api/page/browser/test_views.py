"""Every view of the page, as somebody sees it whom the server asks for no key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.api.every_route import BATCH, DECISION_OF_OPENAI, made, upload
from tests.api.page.browser.watching import REFUSED, Tab, tab
from tests.api.requests.uploads.uploading import HeldUpload, body
from tests.api.serving import RunningApi, StandInWorker, eventually, running_api
from tests.api.tiny_model import END, TinyModel, make_classifier_directory

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

Served = tuple[RunningApi, StandInWorker]
CITIES = [" Paris", " London", " Berlin", " Tokyo"]


@pytest.fixture
def held(served: Served) -> Any:
    """The worker, which takes no work until the test lets it."""
    worker = served[1]
    worker.gate.clear()
    yield worker
    worker.budget, worker.after_batch = 100_000, lambda: None
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


def test_a_job_that_is_opened_while_it_is_received_gets_its_names_and_texts(
    shown: Tab, served: Served, model: TinyModel
) -> None:
    job = {"query": "The capital of France is", "label_token_ids": [model.token(" yes"), model.token(" no")]}
    whole = body([" Paris", " London"], job)
    received = HeldUpload(served[0], [whole[:-10], whole[-10:]])
    page = shown.open(f"jobs/{received.job['id']}")
    page.get_by_text("receiving").wait_for()
    assert page.locator("progress").evaluate("bar => bar.value") == 0
    received.finish()
    page.get_by_role("button", name="·yes").wait_for()
    page.locator("th .text", has_text="London").wait_for()
    assert page.locator(".query code").inner_text() == "The capital of France is"


def test_a_decision_job_shows_its_answers(shown: Tab, served: Served, held: StandInWorker) -> None:
    api = served[0]
    job = api.submit(
        kind="decision",
        state="I saw London.",
        questions={
            "city": {"type": "choice", "criteria": {"Paris": None, "London": None}},
            "size": {"type": "score", "criteria": ["small", {"size": "great"}]},
        },
    )
    page = shown.open(f"jobs/{job['id']}")
    page.get_by_text("The questions are not answered yet.").wait_for()
    held.gate.set()
    page.get_by_role("heading", name="city").wait_for()
    answers = api.client.get(f"/v1/jobs/{job['id']}").json()["result"]["answers"]
    assert shown.texts(".ranking .document") == ["Paris", "London", "small", '{"size":"great"}']
    shares = [share for answer in answers.values() for share in answer["probabilities"].values()]
    assert [float(text) for text in shown.texts(".ranking .number")] == pytest.approx(shares, rel=0.01)
    # A line of a batch may ask in OpenAI's words, and is answered in them.
    line = {"custom_id": "a", "method": "POST", "url": "/v1/decisions", "body": DECISION_OF_OPENAI}
    file_id = made(upload(api.client, json.dumps(line).encode()))
    batch = made(api.client.post("/v1/batches", json=BATCH | {"endpoint": "/v1/decisions", "input_file_id": file_id}))
    eventually(lambda: api.client.get(f"/v1/batches/{batch}").json()["status"] == "completed", "the batch ends")
    page = shown.open(f"batches/{batch}")
    page.get_by_role("region", name="Jobs of the batch").get_by_role("link").click()
    page.locator(".ranking .document").first.wait_for()
    assert shown.texts(".ranking .document") == ["yes", "no"]


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
    good = {"query": "The capital of", "items": [" France"], "labels": ["a"]}
    bodies = [good, {"query": "no items"}, good | {"query": "I saw"}]
    lines = [
        {"custom_id": f"line {n}", "method": "POST", "url": "/v1/score", "body": one} for n, one in enumerate(bodies)
    ]
    content = "\n".join(json.dumps(line) for line in lines).encode()
    batch = made(api.client.post("/v1/batches", json=BATCH | {"input_file_id": made(upload(api.client, content))}))

    def statuses() -> list[str]:
        return [job["status"] for job in api.client.get(f"/v1/jobs?batch={batch}").json()["data"]]

    eventually(lambda: len(statuses()) == 2, "the lines are jobs")
    shown.page.clock.install()
    page = shown.open("batches")
    page.get_by_role("link", name=batch).click()
    lines_of_batch = page.get_by_role("region", name="Jobs of the batch")
    lines_of_batch.get_by_text("queued").first.wait_for()
    # While one line waits, the job of another has its end.
    held.budget, held.after_batch = 1, held.gate.clear
    held.gate.set()
    eventually(lambda: "succeeded" in statuses(), "a line is scored")
    page.clock.fast_forward(4_000)
    lines_of_batch.get_by_text("succeeded").wait_for()
    assert page.get_by_text("in progress").count() == 1
    held.gate.set()
    eventually(lambda: api.client.get(f"/v1/batches/{batch}").json()["status"] == "completed", "the batch ends")
    page.clock.fast_forward(4_000)
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
    decision = {"state": {"text": "I saw London."}, "questions": questions}
    answers = api.client.post("/v1/systemone", json=decision).json()["answers"]
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


def test_a_decision_is_asked_as_it_was_typed(shown: Tab) -> None:
    page = shown.open("decide")
    state = '{"id": 12345678901234567890, "share": 1.0}'
    page.get_by_label("State").fill(state)
    for n in (3, 2):
        page.get_by_role("button", name=f"Remove question {n}").click()
    page.get_by_role("button", name="Remove question 2").wait_for(state="detached")
    page.get_by_label("Options").fill("10: ten\n10:30\n5\n2")
    with page.expect_request("**/v1/systemone") as asked:
        page.get_by_role("button", name="Decide").click()
    sent = asked.value.post_data
    assert state in sent
    criteria = json.loads(sent)["questions"]["1"]["criteria"]
    assert list(criteria.items()) == [("10", "ten"), ("10:30", None), ("5", None), ("2", None)]
    page.get_by_role("heading", name="Answers").wait_for()
    assert shown.texts(".ranking .document") == list(criteria)
    page.get_by_label("Options").fill("10: ten\n10")
    page.get_by_role("button", name="Decide").click()
    page.get_by_role("alert").get_by_text("Question 1 has the option 10 twice.").wait_for()


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


def test_more_items_than_can_be_tried_are_refused(shown: Tab) -> None:
    page = shown.open("try")
    page.get_by_label("Items").fill("\n".join("abcdefghijklmnopqrstu"))
    page.get_by_role("button", name="Score").click()
    page.get_by_role("alert").get_by_text("21 items are more than the 20 that can be tried").wait_for()


def test_a_control_token_in_a_text_is_not_shown_as_one_where_it_is_plain_text(shown: Tab) -> None:
    page = shown.open("try")
    page.get_by_label("Items").fill(f" Paris\n Lon{END}don")
    page.get_by_role("button", name="Score").click()
    page.locator(".sequences .chip", has_text=END).wait_for()  # without a template it is the control token
    page.get_by_text("Templates").click()
    page.get_by_label("Item template").fill(f"{{item}}?{END}")
    page.get_by_role("button", name="Score").click()
    page.locator(".sequences > li").nth(1).get_by_text(f"holds {END}").wait_for()
    assert [item.locator(".chip", has_text=END).count() for item in page.locator(".sequences > li").all()] == [1, 0]


def test_a_model_with_classes_is_tried_with_all_of_them(chromium: Browser, sqlite_url: str, tmp_path: Path) -> None:
    fields = {"id2label": {"0": "good", "1": "bad"}, "problem_type": "regression"}
    directory = make_classifier_directory(tmp_path / "model", **fields)
    with running_api(directory, sqlite_url, tmp_path) as (api, _), tab(chromium, api.url) as shown:
        page = shown.open("try")
        page.get_by_label("Items").fill(" Paris\n London")
        page.get_by_label("Labels").fill("")
        page.get_by_role("button", name="Score").click()
        page.get_by_role("heading", name="Scores").wait_for()
        assert shown.texts("table.scores thead th")[1:3] == ["good", "bad"]
        expected = api.score(query="The capital of France is", items=[" Paris", " London"])["scores"]
        found = [[float(cell) for cell in cells[:2]] for cells in shown_scores(shown)]
        np.testing.assert_allclose(found, expected, rtol=0.01)
        assert page.get_by_role("heading", name="Labels").count() == 0


def test_what_does_not_exist_is_said_plainly(shown: Tab) -> None:
    shown.allowed = (REFUSED,)
    for view in ("no/such/view", "jobs/%E0%A4%A", "jobs/..%2F..%2Flivez", "jobs/job_0/cancel"):
        shown.open(view).get_by_text("There is no such view").wait_for()
        shown.page.goto("about:blank")
    shown.open("jobs/job_0").get_by_role("alert").get_by_text("there is no such job").wait_for()
    shown.open("batches/batch_0").get_by_role("alert").get_by_text("batch_not_found").wait_for()
