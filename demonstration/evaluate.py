"""Measure the demonstration's model on held-out examples: ``python -m demonstration.evaluate``.

Examples are scored as requests are, by the service's tokenizer, layout and engine. The figures are written beside the
model and into this folder's README.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

from checkpoints.files import read_model_card
from demonstration.corpus import held_out_examples
from demonstration.example import Example, Task
from demonstration.train import MODEL
from model.engine import Engine
from model.platforms import Platform
from scoring.layout import ChunkWork, GroupWork, Head
from scoring.tokenizing.tokenization import TextTokenizer
from settings.engine import EngineSettings

FIGURES = "figures.json"
README = Path(__file__).parent / "README.md"
OPENING, CLOSING = "<!-- figures -->", "<!-- /figures -->"
HELD_OUT = {
    "sentiment": "reviews whose pairs of aspect and adjective no training review holds",
    "relevance": "documents whose sentences training never showed with the query's phrase",
    "relevance, new sentences": "documents that are a sentence training never showed at all",
    "choice": "ways of asking for a fact that training never shows for that fact",
    "option": "tickets whose sentence training never showed with the question's wording",
    "option, new sentences": "tickets with a sentence that training never showed at all",
    "many options": "the same, with four to six options in place of two to four",
    "level": "the same as for options",
    "yes or no": "the same as for options",
}
"""The content of each set of held-out examples."""


@dataclass(frozen=True)
class Judge:
    """An engine and its tokenizer."""

    engine: Engine
    tokenizer: TextTokenizer

    @classmethod
    def load(cls, directory: Path = MODEL) -> Judge:
        """Load a checkpoint directory as a worker does."""
        tokenizer = TextTokenizer.load(directory)
        card = read_model_card(directory, None, None, tokenizer)
        platform = Platform.of(jax.devices()[0])
        return cls(Engine.load(directory, EngineSettings(dtype="bfloat16"), card, platform), tokenizer)

    def answers(self, examples: Sequence[Example]) -> list[str]:
        """Return the most probable of each example's labels."""
        groups = []
        for number, example in enumerate(examples):
            prefix, rows = self.tokenizer.encode_rows(example.query, [example.item])
            ids = tuple(self.tokenizer.single_token(label) for label in example.labels)
            groups.append(GroupWork(str(number), prefix, (ChunkWork(number, rows, ids, Head.LOGITS),)))
        best = {scored.id: int(scored.scores.logits[0].argmax()) for scored in self.engine.score(groups, lambda: None)}
        return [example.labels[best[number]] for number, example in enumerate(examples)]

    def accuracy(self, examples: Sequence[Example]) -> float:
        """Return the share of examples whose most probable label is right."""
        pairs = zip(self.answers(examples), examples, strict=True)
        return sum(answer == example.answer for answer, example in pairs) / len(examples)


def held_out(name: str, count: int, seed: int) -> list[Example]:
    """Return the held-out set of a name in :data:`HELD_OUT`."""
    return held_out_examples(Task(name.split(",")[0]), count, seed, new_sentences="," in name)


def main() -> None:
    """Print the figures and write them beside the model."""
    arguments = argparse.ArgumentParser(description="Measure the demonstration's model.")
    arguments.add_argument("--directory", type=Path, default=MODEL)
    arguments.add_argument("--examples", type=int, default=1_000)
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    judge = Judge.load(given.directory)
    accuracy, count = {}, {}
    for name in HELD_OUT:
        examples = held_out(name, given.examples, given.seed)
        accuracy[name], count[name] = judge.accuracy(examples), len(examples)
    figures = {
        "seed": given.seed,
        "dtype": judge.engine.dtype,
        "held_out": {
            name: {"made_of": HELD_OUT[name], "examples": count[name], "accuracy": round(share, 4)}
            for name, share in accuracy.items()
        },
    }
    (given.directory / FIGURES).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if given.directory == MODEL:
        rows = [f"| {name} | {HELD_OUT[name]} | {count[name]:,} | {share:.1%} |" for name, share in accuracy.items()]
        table = "\n".join(["| task | held-out examples | how many | right |", "|---|---|---|---|", *rows])
        before, _, rest = README.read_text(encoding="utf-8").partition(OPENING)
        README.write_text(f"{before}{OPENING}\n{table}\n{CLOSING}{rest.partition(CLOSING)[2]}", encoding="utf-8")
    for name, share in accuracy.items():
        print(f"{share:6.1%}  {name}: {HELD_OUT[name]}")


if __name__ == "__main__":
    main()
