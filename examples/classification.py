"""Classify texts: is this review positive or negative?

    scoreline up                        # in another terminal; it serves the demonstration model
    python examples/classification.py

The cells (`# %%`) can be run one by one in an editor that knows them, or as a notebook.
"""

# %% Reviews, and what a reader says of them.
from __future__ import annotations

from scoreline import Client

REVIEWS = {
    "The room was spotless and the staff were lovely.": True,
    "A delicious dinner, friendly waiters and a wonderful view. We loved every minute of it!": True,
    "What a gripping novel! The ending was clever and moving.": True,
    "I was impressed by the new update. The app is fast, clear and easy to use.": True,
    "The boots are warm and comfortable, and I wear them every day.": True,
    "Our guide was friendly and patient, and the tour was fun for the children.": True,
    "The room was dirty, the staff were rude and nobody answered our questions.": False,
    "The soup was cold and the waiter forgot us. We will never go back.": False,
    "This laptop crashes every day and the battery is useless.": False,
    "I fell asleep in the first half. The story was dull and far too long.": False,
    "The kettle broke on the second day, nobody answers me, and I want my money back.": False,
}

LABELS = [" positive", " negative"]  # each is one token, with its space
PROMPT = {"query": "Review: ", "item_template": "{item}\nSentiment:"}

client = Client()
texts = list(REVIEWS)

# %% With `apply_softmax`, each row says how the labels share the probability among them.
result = client.score(PROMPT["query"], texts, item_template=PROMPT["item_template"], labels=LABELS, apply_softmax=True)
for text, (positive, _) in zip(texts, result.scores, strict=True):
    print(f"{positive:6.1%} positive  {text[:70]}")
right = sum((row[0] > row[1]) == is_good for row, is_good in zip(result.scores, REVIEWS.values(), strict=True))
print(f"\n{right} of {len(texts)} reviews are classified as a reader would.")

# %% Does the model answer with these labels at all? `label_mass` is their share of the probability over the whole
# vocabulary. If it is small, the prompt is wrong, and `warnings` says so.
asked = client.score(PROMPT["query"], texts, item_template=PROMPT["item_template"], labels=LABELS)
careless = client.score("So: ", texts, labels=LABELS)
for name, answer in (("the prompt above", asked), ("no prompt", careless)):
    mass = sorted(answer.label_mass or [])
    print(f"label mass with {name}: {mass[len(mass) // 2]:.4f} {'; '.join(answer.warnings)[:60]}")

# %% A threshold of your own: how sure must the model be before nobody looks at a review?
for threshold in (0.5, 0.9, 0.99):
    sure = [
        (row[0] > row[1]) == is_good
        for row, is_good in zip(result.scores, REVIEWS.values(), strict=True)
        if max(row) >= threshold
    ]
    print(f"at least {threshold:.0%} sure: {len(sure)} of {len(texts)} reviews, {sum(sure)} of them right")

# %% Large amounts are a job: it survives a restart of everything, this program included, and can be followed.
job = client.upload(
    PROMPT["query"],
    (text for _ in range(100) for text in texts),
    item_template=PROMPT["item_template"],
    labels=LABELS,
    apply_softmax=True,
    priority="bulk",
)
job = client.wait(job, bar=True)
positive = sum(item.scores[0] > item.scores[1] for item in client.scores(job))
print(f"\n{job.id}: {job.scored_items} reviews, {positive} of them positive")
client.close()
