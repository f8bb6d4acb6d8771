"""Answer multiple-choice questions: which of these words comes next?

    scoreline up                         # in another terminal; it serves the demonstration model
    python examples/multiple_choice.py

The cells (`# %%`) can be run one by one in an editor that knows them, or as a notebook.
"""

# %% Questions with choices of their own. Each choice is one token, with its space; the first one is right.
from __future__ import annotations

import random

from scoreline import Client

QUESTIONS = {
    "The capital of France is": [" Paris", " London", " Berlin"],
    "The capital of Germany is": [" Berlin", " Paris", " London"],
    "What is 2+2? The answer is": [" 4", " 5", " 7"],
    "What is 1+7? The answer is": [" 8", " 4", " 5"],
    "What do you use to boil water? The answer is": [" kettle", " saw", " key"],
    "What do you use to cut wood? The answer is": [" saw", " spade", " camera"],
    "What do you use to open a lock? The answer is": [" key", " kettle", " saw"],
    "What do you use to dig a hole? The answer is": [" spade", " camera", " key"],
}

client = Client()

# %% One question: the labels are its choices. The item is empty, because the query says everything.
question, choices = next(iter(QUESTIONS.items()))
result = client.score(question, [""], labels=choices, apply_softmax=True)
print(question)
for choice, probability in zip(choices, result.scores[0], strict=True):
    print(f"  {probability:6.1%} {choice}")

# %% All questions in one call: each item has labels of its own, as token ids. The rows of the answer are as long as
# the lists.
shuffled = {question: random.Random(question).sample(choices, len(choices)) for question, choices in QUESTIONS.items()}
ids = {choice: client.tokenize(choice)[0] for choices in QUESTIONS.values() for choice in choices}
right = 0
for opening in ("The capital of", "What is", "What do you use to"):
    group = [question for question in shuffled if question.startswith(opening)]
    result = client.score(
        opening,  # what the questions share is computed once
        [question.removeprefix(opening) for question in group],
        label_token_ids=[[ids[choice] for choice in shuffled[question]] for question in group],
        apply_softmax=True,
    )
    for question, row in zip(group, result.scores, strict=True):
        answer = shuffled[question][row.index(max(row))]
        right += answer == QUESTIONS[question][0]
        print(f"{question}{answer}  ({max(row):.0%})")
print(f"\n{right} of {len(QUESTIONS)} answers are right; guessing gives {len(QUESTIONS) / 3:.1f}.")

# %% How sure is the model if any word may come next? Without `apply_softmax`, scores are probabilities over the whole
# vocabulary, so a row need not sum to 1.
result = client.score("What is", [" 2+2? The answer is"], labels=[" 4", " 5", " 7"])
print(f"P(4) = {result.scores[0][0]:.3f}; all three: {sum(result.scores[0]):.3f}")
client.close()
