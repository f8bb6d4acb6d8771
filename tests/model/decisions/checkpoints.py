"""Small checkpoints that can be asked for decisions: with a chat template alone, and with files of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.model.reranking.rerankers import write_checkpoint

CONTEXT = 4_096
"""More tokens than 64 questions have in one prompt."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message.role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""As Qwen3 has it, in short."""

_ONE = (
    "<|im_start|>user\n{{ state if state is string else state|tojson }}<|split|>\n"
    "{% set asked = question.instructions %}"
    "{{ question.type }}: {{ asked if asked is string else asked|tojson }}"
    "{% for option in question.options %}\n{{ question.labels[loop.index0] }} = {{ option }}"
    "{% set described = question.descriptions[loop.index0] %}"
    "{% if described is not none %} ({{ described|tojson }}){% endif %}"
    "{% endfor %}<|im_end|>\n[decision]:<|mark|> tail that nobody reads"
)
_QUESTION_FIRST = (
    "{{ question.name }}|{{ question.options|join(', ') }}<|split|>{{ question.instructions|tojson }}\n"
    "<|im_start|>{{ state if state is string else state|tojson }}<|im_end|>:<|mark|>"
)
_TOGETHER = (
    "<|im_start|>{{ state if state is string else state|tojson }}<|im_end|>"
    "{% for question in questions %}\n{{ question.instructions|tojson }} {{ question.options|join('/') }}:<|mark|>"
    "{% endfor %}\n"
)


@dataclass(frozen=True)
class Variant:
    """The files of a checkpoint that are about decisions."""

    chat_template: str | None = CHAT_TEMPLATE
    config: Mapping[str, Any] | None = None
    template: str | None = None
    sanitizes: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sanitizes", (self.config or {}).get("sanitize_control_tokens", True))


VARIANTS = {
    "generic": Variant(),
    "labelled": Variant(
        config={
            "labels": {"noul": ["1", "0"], "choice": list("abcdefghijklm"), "score": list("0123456789")},
            "temperature": {"noul": 0.7, "choice": 1.5, "score": 2},
            "noul_options": ["false", "true"],
            "sort_choices": True,
        }
    ),
    "template": Variant(template=_ONE, config={"temperature": {"choice": 0.5}}),
    "question first": Variant(template=_QUESTION_FIRST, chat_template=None),
    "unsanitized": Variant(template=_ONE, config={"sanitize_control_tokens": False}),
    "together": Variant(template=_TOGETHER),
}


def write_variant(directory: Path, name: str) -> Path:
    """Write a checkpoint of the kind into a folder."""
    variant = VARIANTS[name]
    write_checkpoint(directory, "qwen3-reranker", ["Yes", "No"] * 200)
    config = directory / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": CONTEXT}))
    if variant.chat_template is not None:
        (directory / "chat_template.jinja").write_text(variant.chat_template)
    if variant.config is not None:
        (directory / "decision.json").write_text(json.dumps(variant.config))
    if variant.template is not None:
        (directory / "decision_template.jinja").write_text(variant.template)
    return directory
