"""How the model is asked for decisions: ``decision.json`` and ``decision_template.jinja``, as transformers reads them.

A ticket is the state. Options are numbered, and the number is the label, because it is always a single token. What an
option's description says is left out: the model was trained without descriptions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from demonstration.example import LEVEL_LABELS, OPTION_LABELS, RELEVANCE_LABELS

_LABELS = {"noul": RELEVANCE_LABELS, "choice": OPTION_LABELS, "score": LEVEL_LABELS}
_TEMPLATE = r"""State: {{ state if state is string else state | tojson }}
Question: {{ question.instructions or question.name }}
{% if question.type != "noul" -%}
Options: {% for option in (question.descriptions if question.type == "score" else question.options) -%}
{{ option }}{{ question.labels[loop.index0] }}{{ ", " if not loop.last }}
{%- endfor %}{{ "\n" }}
{%- endif -%}
Answer:<|mark|>"""


def prompt(state: str, question: str, options: Sequence[str] = (), labels: Sequence[str] = ()) -> tuple[str, str]:
    """Return a prompt as the template writes it, in two parts. options: none for yes or no."""
    listed = ", ".join(f"{option}{label}" for option, label in zip(options, labels, strict=False))
    return f"State: {state}\n", f"Question: {question}\n" + (f"Options: {listed}\n" if listed else "") + "Answer:"


def save_decisions(directory: Path) -> None:
    """Write the files that tell how the model is asked."""
    (directory / "decision.json").write_text(json.dumps({"labels": _LABELS}, indent=2) + "\n", encoding="utf-8")
    (directory / "decision_template.jinja").write_text(_TEMPLATE, encoding="utf-8")
