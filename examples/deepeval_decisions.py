"""Have DeepEval's own metrics decided by the service, in its mode `system_one`, which needs no model that writes.

scoreline up                          # in another terminal; it serves the demonstration model
pip install deepeval typesafe-sdk
python examples/deepeval_decisions.py
"""

from __future__ import annotations

import os

from deepeval.metrics import JevEval
from deepeval.metrics.jev_eval import Noul
from deepeval.models import TypeSafeModel
from deepeval.test_case import LLMTestCase, SingleTurnParams

MODEL = TypeSafeModel(
    model="default",  # the model that the service serves
    base_url=os.environ.get("SCORELINE_URL", "http://127.0.0.1:8000"),
    api_key=os.environ.get("SCORELINE_API_KEY", "any"),  # `scoreline up` needs none, and their client insists on one
)
LETTERS = [
    "My parcel has not arrived. I want a refund. Please answer immediately.",
    "The app crashes when I open it. There is no hurry.",
]

metric = JevEval(
    name="refund",
    evaluation_params=[SingleTurnParams.ACTUAL_OUTPUT],
    questions=[Noul("Is a refund requested?")],
    system_one_model=MODEL,
)
for letter in LETTERS:
    metric.measure(LLMTestCase(input="Write a letter to a shop.", actual_output=letter), _show_indicator=False)
    print(f"{metric.score:.3f} {'passes' if metric.success else 'fails'}: {letter}")
