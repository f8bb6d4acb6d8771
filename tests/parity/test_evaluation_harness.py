"""EleutherAI's evaluation harness finds the same with a server as with its own model for transformers."""

from __future__ import annotations

import json
import runpy
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from demonstration.corpus import held_out_examples
from demonstration.example import Task
from tests.end_to_end.deployment import KEY, MODEL, ROOT, Deployment
from tests.services import PostgresServer, RedisServer

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(find_spec("lm_eval") is None, reason="make harness installs the evaluation harness"),
]

QUESTIONS = 100
SEED = 5
TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: right
target_delimiter: ""
metric_list:
  - metric: acc
  - metric: acc_norm
"""
ENDINGS = {"words": "", "phrases": ", as everybody knows."}
"""What stands behind the word that answers a question, by the name of the task."""


def write_tasks(folder: Path) -> None:
    """Write two tasks of multiple choice, whose answers are one token and several tokens, into local files."""
    examples = list(held_out_examples(Task.CHOICE, QUESTIONS, SEED))
    for name, ending in ENDINGS.items():
        lines = [
            {
                "question": example.query + example.item,
                "choices": [label + ending for label in example.labels],
                "right": example.labels.index(example.answer),
            }
            for example in examples
        ]
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, file=file))


def test_accuracies_and_log_likelihoods_are_those_of_the_harness_s_own_model(
    tmp_path: Path,
    postgres: PostgresServer,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    import lm_eval
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import TaskManager

    write_tasks(tmp_path)
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    adapter = runpy.run_path(str(ROOT / "examples" / "lm_evaluation_harness.py"))["ScorelineLM"]
    theirs = HFLM(pretrained=str(MODEL), dtype="float32", device="cpu", batch_size=16)

    def evaluated(model: Any) -> tuple[Any, float]:
        began = time.monotonic()
        found = lm_eval.simple_evaluate(
            model, tasks=list(ENDINGS), task_manager=manager, log_samples=True, bootstrap_iters=0
        )
        return found, time.monotonic() - began

    with Deployment(
        tmp_path, postgres.url(postgres.create_database()), redis_server.url, dtype="float32"
    ) as deployment:
        deployment.migrate()
        deployment.start_api()
        deployment.start_worker()
        ours = adapter(url=f"http://127.0.0.1:{deployment.port}", api_key=KEY, prefix_token_id=theirs.prefix_token_id)
        as_openai = LocalCompletionsAPI(
            base_url=f"http://127.0.0.1:{deployment.port}/v1/completions",
            model="default",
            tokenizer=str(MODEL),
            tokenizer_backend="huggingface",
            header={"Authorization": f"Bearer {KEY}"},
            num_concurrent=4,
            batch_size=3,
            max_retries=1,
        )
        (wanted, their_seconds), (found, our_seconds) = evaluated(theirs), evaluated(ours)
        completed, seconds = evaluated(as_openai)
        short, long = (
            [Instance("loglikelihood_rolling", {}, ("A fern needs light. " * times,), 0)] for times in (100, 300)
        )
        assert ours.loglikelihood_rolling(short) == pytest.approx(theirs.loglikelihood_rolling(short), abs=1e-2)
        # The server's windows are one token shorter, because the last token counts in the context, too.
        assert ours.loglikelihood_rolling(long) == pytest.approx(theirs.loglikelihood_rolling(long), rel=1e-3)
    check(found, wanted, tolerance=1e-3)
    check(completed, wanted, tolerance=1e-4)
    with capsys.disabled():
        print(
            f"\n{len(ENDINGS) * QUESTIONS} questions: {our_seconds:.1f} s here, {seconds:.1f} s by completions, "
            f"{their_seconds:.1f} s with transformers"
        )


def check(found: Any, wanted: Any, *, tolerance: float) -> None:
    """Compare accuracies, and what was found of every answer."""
    for task in ENDINGS:
        for metric in ("acc,none", "acc_norm,none"):
            assert found["results"][task][metric] == wanted["results"][task][metric]
        assert found["results"][task]["acc,none"] > 0.9
        for one, other in zip(found["samples"][task], wanted["samples"][task], strict=True):
            for (logprob, greedy), (wanted_logprob, wanted_greedy) in zip(
                one["filtered_resps"], other["filtered_resps"], strict=True
            ):
                assert logprob == pytest.approx(wanted_logprob, abs=tolerance)
                assert greedy == wanted_greedy
