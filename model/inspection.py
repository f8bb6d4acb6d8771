"""What can be said of a checkpoint without its weights: ``python -m model.inspection``, which is ``scoreline check``.

Only its configuration, its tokenizer and the headers of an adapter are read, and nothing is compiled.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from checkpoints.classification import Activation
from checkpoints.files import CheckpointError, read_config, read_decision_head
from checkpoints.source import Contents, find_adapter, find_checkpoint, name_of_adapter
from model.architecture.config import DecoderConfig
from model.architecture.stored.lora import open_adapter
from model.architecture.stored.reading import method_of
from scoring.decisions.checkpoint import DecisionCheckpoint
from scoring.decisions.questions import Kind
from scoring.served_checkpoint import ServedCheckpoint
from scoring.templates.known import KnownTemplates, require_fit
from scoring.templates.wording import TemplateError
from settings.errors.endings import Ending

REFUSED = 1
"""Exit status where the checkpoint can't be served."""

_BFLOAT16_BYTES, _FLOAT32_BYTES = 2, 4
_TOKENS = 1_000


@dataclass(frozen=True, slots=True)
class Inspection:
    """How a checkpoint is served."""

    name: str  # that requests give, unless the settings have another
    family: str
    classes: tuple[str, ...]  # or the labels of a decision head; none: the head gives probabilities of next tokens
    activation: str | None  # how outputs for classes become scores
    stored: str  # the format of the weights
    adapter: str | None
    context: int  # tokens of the longest sequence
    parameters: int
    parameters_of_a_token: int  # that a token is computed with: fewer in a mixture of experts
    weight_bytes: int  # in bfloat16; float32 takes twice as much
    bytes_per_1000_tokens: int  # of keys and values in bfloat16
    state_bytes: int  # of what recurrent layers keep behind each block of tokens, in float32; 0: there are none
    template: str | None  # by which documents are ranked; None: by none that is known
    decisions: str  # by whose prompt decisions are asked, or why there are none

    @classmethod
    def of(cls, model: str, revision: str | None, adapter: str | None) -> Inspection:
        """Look at a folder, or at a model on the hub, whose description is downloaded.

        Raises :class:`checkpoints.files.CheckpointError` where it can't be served.
        """
        checkpoint = find_checkpoint(model, revision, Contents.DESCRIPTION)
        fields = read_config(checkpoint.directory)
        config = DecoderConfig.from_huggingface(fields, read_decision_head(checkpoint.directory))
        merged = find_adapter(model, checkpoint, adapter)
        if merged is not None:
            with open_adapter(merged):
                pass  # Whether its tensors fit is seen when they are merged.
        name = name_of_adapter(adapter)
        served = ServedCheckpoint.load(checkpoint, name=name, delimiter=None, context_length=None)
        classes = served.card.classes
        key_values = 2 * config.attention_layers * config.kv_heads * config.head_dim  # numbers of a token
        return cls(
            name=served.card.name,
            family=config.family,
            classes=() if classes is None else classes.names,
            activation=None if classes is None else classes.activation.value,
            stored=method_of(fields) or "plain",
            adapter=name if merged is None or name is not None else merged.name,
            context=config.context,
            parameters=config.parameters,
            parameters_of_a_token=config.parameters_of_a_token,
            weight_bytes=_BFLOAT16_BYTES * config.parameters,
            bytes_per_1000_tokens=_TOKENS * _BFLOAT16_BYTES * key_values,
            state_bytes=config.state_bytes,
            template=_template(served),
            decisions=_decisions(checkpoint.directory, served),
        )

    def lines(self) -> list[str]:
        """Return what people read."""
        head = f"{len(self.classes)} classes ({self.activation})" if self.classes else "next tokens"
        if self.activation == Activation.DECISIONS:
            head = f"decisions ({len(self.classes)} labels)"
        gigabytes = self.weight_bytes / 1e9
        megabytes = self.bytes_per_1000_tokens / 1e6
        states = (
            f", and {self.state_bytes / 1e6:.3g} MB for a state behind each step of them" if self.state_bytes else ""
        )
        of_a_token = self.parameters_of_a_token
        share = f", {of_a_token / 1e9:.3g} of them for each token" if of_a_token < self.parameters else ""
        return [
            f"served       {self.name}: {self.family}, a head for {head}, weights stored as {self.stored}",
            *([] if self.adapter is None else [f"adapter      {self.adapter}, merged into the weights"]),
            f"size         {self.parameters / 1e9:.3g} billion parameters{share}, sequences of {self.context:,} tokens",
            f"memory       {gigabytes:.3g} GB of weights in bfloat16, {2 * gigabytes:.3g} GB in float32; "
            f"{megabytes:.3g} MB for the keys and values of {_TOKENS:,} tokens in bfloat16{states}",
            f"rankings     {'no template is known to suit' if self.template is None else f'template {self.template}'}",
            f"decisions    {self.decisions}",
        ]


def _template(served: ServedCheckpoint) -> str | None:
    """Return the name of the template by which the model ranks, if it fits."""
    known = KnownTemplates.read(None, served.card.name, served.card.classes).default
    if known is None:
        return None
    try:
        require_fit(known, served.tokenizer, has_classes=served.card.classes is not None)
    except TemplateError:
        return None
    return known.name


def _decisions(directory: Path, served: ServedCheckpoint) -> str:
    asked = DecisionCheckpoint.read(directory, served.tokenizer)
    if served.card.classes is not None and asked.head is None:
        return "none: the model has classes"
    if asked.fault is not None:
        return f"none: {asked.fault}"
    if asked.head is not None:
        most = ", ".join(f"{len(asked.labels[kind])} for {kind}" for kind in Kind)
        return f"by the prompt of its head, with at most so many options: {most}"
    return "by the generic prompt" if asked.template is None else "by the checkpoint's own prompt"


def main() -> int:
    """Print how a checkpoint is served, or why it is not. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="scoreline check")
    parser.add_argument("--model", required=True)
    parser.add_argument("--revision")
    parser.add_argument("--adapters")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        found = Inspection.of(given.model, given.revision, given.adapters)
    except CheckpointError as error:
        print(json.dumps({"served": False, "reason": str(error)}) if given.json else f"refused      {error}")
        return REFUSED
    if given.json:
        print(json.dumps({"served": True, **asdict(found)}))
    else:
        print("\n".join(found.lines()))
    return Ending.DONE


if __name__ == "__main__":
    sys.exit(main())
