"""How a checkpoint wants to be asked for decisions: its prompt, its labels and its temperatures.

They are in the files ``decision.json`` and ``decision_template.jinja``, as transformers writes them. A checkpoint
without them is asked by the generic prompt of transformers, in its chat template. A checkpoint with a decision head is
asked by the prompt that transformers has for heads of its kind.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from checkpoints.decision_head import DecisionHead
from checkpoints.files import read_config, read_decision_head
from scoring.decisions.questions import Fault, Kind
from scoring.decisions.rendering import RenderingError, rendering_of
from scoring.error_codes import ErrorCode, RequestError
from scoring.tokenizing.tokenization import TextTokenizer
from scoring.tokenizing.tokenizer_files import ChatFormat

LETTERS = tuple(string.ascii_uppercase)

CODES = tuple("".join(pair) for pair in product(LETTERS, LETTERS))
"""The labels of a question with more options than there are letters. They are ours: the reference has none."""

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DecisionCheckpoint:
    """How one checkpoint is asked."""

    labels: Mapping[str, tuple[str, ...]]  # its own, by kind; the kinds that are missing have the reference's
    temperatures: Mapping[str, float]  # by kind, by which label logits are divided; 1 for those that are missing
    noul_options: tuple[str, ...]  # in which order the prompt has true and false
    sanitizes: bool  # whether control tokens in what a caller writes are encoded as text
    template: str | None  # of the whole prompt; None: the generic prompt as the user's turn of the chat template
    chat: ChatFormat
    generic: str  # transformers' own template of the user's turn, so that the prompts are the same
    head: DecisionHead | None = None  # whose rows are read; None: labels are tokens
    fault: str | None = None  # why no decision can be asked

    @classmethod
    def read(cls, directory: Path, tokenizer: TextTokenizer) -> DecisionCheckpoint:
        """Read the files of a checkpoint. What is wrong with them refuses decisions, and nothing else."""
        # Loaded with the tokenizer before, so that this takes no time.
        from transformers.decision import DecisionConfig
        from transformers.decision.template_utils import DECISION_PROMPT

        fault, head = None, read_decision_head(directory)
        try:
            if head is None or not head.files:
                config = DecisionConfig.from_pretrained(str(directory), local_files_only=True)
            else:
                from transformers.models.jev.configuration_jev import JevConfig

                config = JevConfig.decision_config(dict(head.files), read_config(directory))
        except Exception as error:  # transformers raises anything
            config, fault = DecisionConfig(), f"its decision.json can't be read: {' '.join(str(error).split())}"
        if fault is None and head is None and config.adapter:
            fault = f"its decision.json asks for the adapter {config.adapter!r}, which is not loaded here"
        template = config.chat_template
        if fault is None and template is None and tokenizer.chat.template is None:
            fault = "it has neither a chat template nor a decision_template.jinja"
        if fault is None:
            try:
                rendering_of(template or tokenizer.chat.template or "")
            except RenderingError as error:
                fault = f"its template can't be used: {error}"
        return cls(
            labels={kind: tuple(labels) for kind, labels in config.labels.items() if labels},
            temperatures={kind: float(value) for kind, value in config.temperature.items()},
            noul_options=tuple(config.noul_options),
            sanitizes=config.sanitize_control_tokens,
            template=template,
            chat=tokenizer.chat,
            generic=DECISION_PROMPT,
            head=head,
            fault=fault,
        )

    def check(self) -> None:
        """Raise RequestError if no decision can be asked of the model."""
        if self.fault is not None:
            message = f"no decision can be asked of this model: {self.fault}"
            raise RequestError(ErrorCode.INVALID_TEMPLATE, message, param="model")

    def temperature(self, kind: Kind) -> float:
        """Return what the logits of the labels of a kind are divided by."""
        return self.temperatures.get(kind, 1.0)

    def labels_of(self, path: str, kind: Kind, options: int) -> tuple[str, ...] | Fault:
        """Return the labels of so many options, or why there are none. path: of the question."""
        own = self.labels.get(kind)
        if own is not None and options > len(own):
            message = f"{path} has {options} options; the model has {len(own)} labels for a question of its kind"
            return Fault(ErrorCode.TOO_MANY_OPTIONS, path, message)
        if own is None and kind is Kind.NOUL:
            own = ("Yes", "No")
        if own is None:
            own = LETTERS if options <= len(LETTERS) else CODES
        return own[:options]

    def rows_of(self, path: str, kind: Kind, labels: Sequence[str], tokenizer: TextTokenizer) -> LabelRows | Fault:
        """Return the rows by which labels are read, or why they can't be used. path: of the question."""
        if self.head is not None:
            first = self.head.offsets[kind]
            return LabelRows.of([(row,) for row in range(first, first + len(labels))])
        found = tuple(tuple(tokenizer.encode(label, add_special_tokens=False)) for label in labels)
        unknown = tokenizer.added_tokens.get(self.chat.special_tokens.get("unk_token", ""))
        are_codes = kind not in self.labels and len(labels) > len(LETTERS)
        are_sound = all(tokens and unknown not in tokens and (are_codes or len(tokens) == 1) for tokens in found)
        if are_sound and len(set(found)) == len(found):
            return LabelRows.of(found)
        named = ", ".join(repr(label) for label in labels[:3])
        message = f"{path}: the labels of the model, such as {named}, are not distinct single tokens"
        return Fault(ErrorCode.LABELS_NOT_SINGLE_TOKENS, path, message)


@dataclass(frozen=True, slots=True)
class LabelRows:
    """The rows by which the labels of a question are read: labels of several tokens take further rows.

    The probability of such a label is that of its first token behind the prompt times that of its second behind both.
    So each row has labels of one token, like any other.
    """

    behind: tuple[Tokens, ...]  # of each row: the tokens behind the prompt; none of the first
    labels: tuple[tuple[int, ...], ...]  # of each row: the ids of its labels, or their rows in a decision head
    places: tuple[tuple[tuple[int, int], ...], ...]  # of each label: its tokens, as a row and a place in its labels

    @classmethod
    def of(cls, labels: Sequence[Tokens]) -> LabelRows:
        """Return the rows for labels that are given as tokens."""
        rows: dict[Tokens, dict[int, int]] = {(): {}}
        places = []
        for tokens in labels:
            of_label = []
            for n, token in enumerate(tokens):
                row = rows.setdefault(tokens[:n], {})
                of_label.append((tokens[:n], row.setdefault(token, len(row))))
            places.append(of_label)
        index = {behind: n for n, behind in enumerate(rows)}
        return cls(
            behind=tuple(rows),
            labels=tuple(tuple(row) for row in rows.values()),
            places=tuple(tuple((index[behind], place) for behind, place in one) for one in places),
        )
