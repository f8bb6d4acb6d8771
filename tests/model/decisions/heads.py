"""Small checkpoints with a decision head, whose labels are far from equally probable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from transformers.models.jev.configuration_jev import JEV_TEMPLATE

from scoring.tokenizing.tokenization import TextTokenizer
from tests.model.architecture.stored.writers import write_adapter
from tests.model.checkpoints import EVERY, Tensors, tensors, write
from tests.model.decisions.checkpoints import CONTEXT
from tests.model.reranking.rerankers import write_checkpoint

LETTERS = "ABCDEFGHIJKLMNOP"
CODES = [*LETTERS, *(a + b for a in "XY" for b in LETTERS)]
SLOTS: dict[str, Any] = {
    "num_slots": 24,
    "verbalizers": ["no", "yes", *"012345", *LETTERS],
    "ranges": {"noul": [0, 2], "score": [2, 8], "choice": [8, 24]},
}
CALIBRATION = {"per_kind": {"noul": 0.7, "choice": 1.5, "score": 2}}
ASKED = ("three kinds", "json state", "one option", "ten options", "control tokens")
"""The requests whose answers are stored."""

_SEED = 31


@dataclass(frozen=True)
class Head:
    """The body of a checkpoint, and the files of its head."""

    body: str  # a key of EVERY
    files: Mapping[str, Any]
    bias: bool = True
    adapted: bool = False  # whether it has an adapter of its own

    @property
    def weight(self) -> str:
        """The name of its weight."""
        return "proj.weight" if self.bias else "weight"


def _slots(body: str, *, adapted: bool = False, **fields: Any) -> Head:
    own = {} if adapted else {"adapter_subfolder": None}
    judge = {"slots": SLOTS, "readout": "the last token", **own, **fields}
    return Head(body, {"judge_config.json": judge, "calibration.json": CALIBRATION}, adapted=adapted)


def _codes(body: str, **fields: Any) -> Head:
    config = {"format_version": 1, "codes": CODES, "temperature": 1.3, "attention_mode": "causal", "pooling": "last"}
    return Head(body, {"decision_config.json": config | fields}, bias=False)


HEADS = {
    "slots": _slots("tied"),
    "slots behind a soft cap and an adapter": _slots("untied", adapted=True, softcap=3.0),
    "slots on gemma3": _slots("gemma3", softcap=30.0),
    "codes": _codes("qwen2 tied"),
    "codes on qwen35": _codes("qwen35", prompt="d3"),
}
BODIES = {
    name: _slots(name, adapted=name != "phi3", softcap=5.0)
    for name in ("llama biased", "mistral with a window", "granite tied", "olmo2", "olmo3", "phi3", "qwen35 in turn")
}
"""The other families."""


def write_head(directory: Path, head: Head) -> Path:
    """Write a checkpoint with a head into a folder."""
    write_checkpoint(directory, "qwen3-reranker", ["Yes", "No"] * 200)
    config = replace(EVERY[head.body], vocabulary=TextTokenizer.load(directory).vocabulary, context=CONTEXT)
    write(directory, config, tensors(config, _SEED))
    for name, fields in head.files.items():
        (directory / name).write_text(json.dumps(fields))
    save_file(head_tensors(head, config.width), directory / f"{'head' if head.bias else 'readout'}.safetensors")
    if head.adapted:
        random = np.random.RandomState(_SEED)
        attending = [n for n, is_recurrent in enumerate(config.recurrent) if not is_recurrent]
        of_adapter = {}
        for module, out, layers in (
            ("mlp.up_proj", config.mlp_width, range(config.layers)),
            ("self_attn.k_proj", config.kv_heads * config.head_dim, attending),
        ):
            for n in layers:
                name = f"base_model.model.model.layers.{n}.{module}.lora_"
                of_adapter[f"{name}A.weight"] = random.standard_normal((4, config.width)).astype(np.float32) / 4
                of_adapter[f"{name}B.weight"] = random.standard_normal((out, 4)).astype(np.float32) / 4
        write_adapter(directory / "adapter", of_adapter, target_modules=["k_proj", "up_proj"])
    return directory


def write_as_saved(directory: Path) -> Path:
    """Turn a checkpoint with slots and no adapter into what transformers saves of it."""
    judge, config = (json.loads((directory / name).read_text()) for name in ("judge_config.json", "config.json"))
    offsets = {kind: start for kind, (start, _) in SLOTS["ranges"].items()}
    softcap, body = judge.get("softcap"), directory / "model.safetensors"
    saved = {"model_type": "jev", "architectures": ["JevForDecision"], "num_verbalizers": 24, "offsets": offsets}
    (directory / "config.json").write_text(json.dumps(saved | {"softcap": softcap, "text_config": config}))
    labels = {kind: SLOTS["verbalizers"][start:end] for kind, (start, end) in SLOTS["ranges"].items()}
    decision = {"labels": labels, "temperature": CALIBRATION["per_kind"], "noul_options": ["false", "true"]}
    (directory / "decision.json").write_text(json.dumps(decision))
    (directory / "decision_template.jinja").write_text(JEV_TEMPLATE)
    save_file(load_file(body) | load_file(directory / "head.safetensors"), body, metadata={"format": "pt"})
    for name in ("judge_config.json", "calibration.json", "head.safetensors"):
        (directory / name).unlink()
    return directory


def write_as_body(directory: Path) -> Path:
    """Turn a checkpoint into one whose weights are those of a model without any head but that for decisions."""
    config, path = json.loads((directory / "config.json").read_text()), directory / "model.safetensors"
    (name,) = config["architectures"]
    end = "TextModel" if config["model_type"].endswith("_text") else "Model"
    (directory / "config.json").write_text(json.dumps(config | {"architectures": [name.replace("ForCausalLM", end)]}))
    weights = {name.removeprefix("model."): tensor for name, tensor in load_file(path).items()}
    weights.pop("lm_head.weight", None)
    save_file(weights, path, metadata={"format": "pt"})
    return directory


def write_as_part(directory: Path) -> Path:
    """Turn a checkpoint of Gemma 3 or Qwen3.5 into one whose body sees pictures, too."""
    config, path = json.loads((directory / "config.json").read_text()), directory / "model.safetensors"
    text = {name: value for name, value in config.items() if name != "architectures"}
    kind, name, others = {
        "gemma3_text": ("gemma3", "Gemma3Model", ("vision_tower.post_layernorm.weight",)),
        "qwen3_5_text": ("qwen3_5", "Qwen3_5Model", ("visual.merger.norm.weight", "mtp.fc.weight")),
    }[config["model_type"]]
    whole = {"model_type": kind, "architectures": [name], "text_config": text, "tie_word_embeddings": True}
    (directory / "config.json").write_text(json.dumps(whole))
    weights = {name.replace("model.", "language_model.", 1): tensor for name, tensor in load_file(path).items()}
    weights.pop("lm_head.weight", None)
    save_file(weights | {name: np.zeros(16, np.float32) for name in others}, path)
    return directory


def head_tensors(head: Head, width: int) -> Tensors:
    """Return the tensors of a head, which spread the scores of labels."""
    random = np.random.RandomState(_SEED)
    rows = len(CODES) if "decision_config.json" in head.files else SLOTS["num_slots"]
    weight = (2.0 * random.standard_normal((rows, width)) / np.sqrt(width)).astype(np.float32)
    bias = {"proj.bias": random.standard_normal(rows).astype(np.float32)} if head.bias else {}
    return {head.weight: weight, **bias}
