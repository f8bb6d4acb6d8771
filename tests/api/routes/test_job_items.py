"""What a job was asked, as text."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.serving import RunningApi, StandInWorker
from tests.api.tiny_model import TinyModel

ITEMS = [" France is", "", " of\nJapan <b>", " item" * 300, " ends"]


def read(api: RunningApi, job_id: str, *indices: int) -> dict[str, Any]:
    answer = api.client.get(f"/v1/jobs/{job_id}/items", params=[("index", str(index)) for index in indices])
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_texts_are_those_of_the_request_and_long_ones_are_cut_and_say_so(
    on_sqlite: tuple[RunningApi, StandInWorker], model: TinyModel
) -> None:
    api, _ = on_sqlite
    labels = [model.token(" yes"), model.token(" no")]
    job = api.submit(query="The capital of", items=ITEMS, label_token_ids=labels)
    found = read(api, job["id"], 4, 0, 2, 3, 1)
    assert found["query"] == {"text": "The capital of", "tokens": len(model.encode("The capital of")), "is_cut": False}
    assert found["labels"] == [{"ids": [labels[0]], "text": " yes"}, {"ids": [labels[1]], "text": " no"}]
    assert [item["index"] for item in found["data"]] == [4, 0, 2, 3, 1]
    texts = {item["index"]: item for item in found["data"]}
    for index in (0, 1, 2, 4):
        assert (texts[index]["text"], texts[index]["is_cut"]) == (ITEMS[index], False)
    assert texts[3]["is_cut"]
    assert ITEMS[3].startswith(texts[3]["text"])
    assert texts[3]["tokens"] == len(model.encode("The capital of" + ITEMS[3])) - found["query"]["tokens"]


def test_items_of_any_chunk_are_found_and_others_are_left_out(on_sqlite: tuple[RunningApi, StandInWorker]) -> None:
    api, worker = on_sqlite
    worker.gate.clear()  # nobody needs the scores of so many items
    job = api.submit(query="a", items=[f" {n} item" * 20 for n in range(3000)], label_token_ids=[70])
    found = read(api, job["id"], 2999, 3000, 0, 1234, 2**31 - 1)
    assert [(item["index"], item["text"]) for item in found["data"]] == [
        (index, f" {index} item" * 20) for index in (2999, 0, 1234)
    ]


def test_what_an_item_repeats_of_the_query_is_left_out(api: RunningApi, model: TinyModel) -> None:
    query, item = "The capital of Fr", "ance is"
    assert model.encode(query + item)[: len(model.encode(query))] != model.encode(query)
    job = api.submit(query=query, items=[item], label_token_ids=[70])
    assert read(api, job["id"], 0)["data"][0]["text"] == item


def test_labels_of_each_item_are_not_told_as_if_all_had_them(api: RunningApi) -> None:
    job = api.submit(query="a", items=[" b", " c"], label_token_ids=[[70], [71, 72]])
    assert read(api, job["id"])["labels"] is None


def test_a_job_without_items_has_none(api: RunningApi) -> None:
    job = api.submit(query="a", items=[], label_token_ids=[70])
    assert read(api, job["id"], 0)["data"] == []


@pytest.mark.parametrize("indices", [["-1"], ["x"], [str(2**31)], ["0"] * 101])
def test_wrong_indices_are_refused(api: RunningApi, indices: list[str]) -> None:
    job = api.submit(query="a", items=[" b"], label_token_ids=[70])
    answer = api.client.get(f"/v1/jobs/{job['id']}/items", params=[("index", index) for index in indices])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
