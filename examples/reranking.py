"""Rerank search results: which documents answer the question?

    scoreline up                    # in another terminal; it serves the demonstration model
    python examples/reranking.py

The cells (`# %%`) can be run one by one in an editor that knows them, or as a notebook.
"""

# %% Questions, and what a first search found for each. In the real world it comes from BM25 or from embeddings.
from __future__ import annotations

import math

from scoreline import Client

SHELF = [
    "Houseplants grow best in a bright window, and the soil should be moist but never wet.",
    "Keep the bedroom dark and cool, and go to bed at the same time each evening.",
    "A goalkeeper needs quick hands and strong nerves before a penalty.",
    "The bank charges a fee of ten pounds when your account has no money.",
    "Reward your dog at once when it sits, and keep the lessons short.",
    "Knead the dough for ten minutes, and let it rise in a warm place.",
    "Take the night train and change platforms at the second station.",
    "Place the router in the middle of the flat, because thick walls weaken the signal.",
    "Pitch the tent on flat ground, well away from the river.",
    "Water the fern once a week and keep it out of the sun.",
]

QUESTIONS = {
    "how do I care for indoor plants?": {0, 9},
    "how can I sleep better at night?": {1},
    "how do I train a puppy?": {4},
    "how do I bake a loaf of bread?": {5},
    "how can I improve my wifi signal?": {7},
}
"""The numbers of the documents that answer a question."""

client = Client()

# %% One call ranks the documents of one question. The service knows how its model wants to be asked.
question = "how do I care for indoor plants?"
ranking = client.rerank(question, SHELF, top_n=3, return_documents=True)
print(question)
for document in ranking.results:
    print(f"  {document.relevance_score:.3f}  {document.text}")


# %% How good is it? Mean reciprocal rank, and normalised discounted cumulative gain, before and after.
def reciprocal_rank(order: list[int], right: set[int]) -> float:
    """Return 1 over the place of the first document that answers the question."""
    return 1 / (1 + next(place for place, index in enumerate(order) if index in right))


def gain(order: list[int], right: set[int]) -> float:
    """Return the normalised discounted cumulative gain of an order."""
    found = sum(1 / math.log2(2 + place) for place, index in enumerate(order) if index in right)
    return found / sum(1 / math.log2(2 + place) for place in range(len(right)))


before, after = [], []
for question, right in QUESTIONS.items():
    order = [document.index for document in client.rerank(question, SHELF).results]
    before.append((reciprocal_rank(list(range(len(SHELF))), right), gain(list(range(len(SHELF))), right)))
    after.append((reciprocal_rank(order, right), gain(order, right)))

print()
for name, figures in (("before", before), ("after", after)):
    mean_rank, mean_gain = (sum(column) / len(column) for column in zip(*figures, strict=True))
    print(f"{name:>6}: mean reciprocal rank {mean_rank:.2f}, nDCG {mean_gain:.2f}")

# %% Many questions at once: `map` keeps some of them under way, and yields the results in their order. It takes the
# template of the service by its name, and so returns the same relevance.
(model,) = client.models()
pairs = ((question, SHELF) for question in QUESTIONS)
found = 0
results = client.map(pairs, template=model.template, concurrency=4)
for right, result in zip(QUESTIONS.values(), results, strict=True):
    assert result.relevance is not None  # The request names a template.
    found += result.relevance.index(max(result.relevance)) in right
print(f"\n{found} of {len(QUESTIONS)} questions have an answer at the top.")
client.close()
