"""Writes a decoder as a checkpoint in HuggingFace's format. The service itself only reads checkpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from model.architecture.config import DecoderConfig
from model.architecture.decoder import Decoder
from model.architecture.experts import Mixture
from model.architecture.recurrence import KINDS as RECURRENT_KINDS
from model.architecture.recurrence import Recurrence
from model.architecture.rope import LinearScaling, Llama3Scaling, LongScaling, Rope, Scaling, Still, YarnScaling
from model.architecture.stored.experts import IN_TURN, ONE_AFTER_ANOTHER, Together
from model.architecture.stored.fused import Fused
from model.architecture.stored.tensors import SINGLE_FILE
from model.architecture.weights import EMBEDDING, fused_tensors, parameters, params
from model.architecture.windows import KINDS, Window

_OF_EXPERT = re.compile(r"(.*\.experts\.)(\d+)\.(\w+)\.(weight|bias)")
_PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""The tensors of all experts of a layer, and the projections that each holds."""


def save(decoder: Decoder, directory: Path) -> None:
    """Write ``config.json`` and ``model.safetensors``. Creates the folder."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, npt.NDArray[Any]] = {}
    for parameter in parameters(decoder):
        value = np.asarray(params(decoder)[parameter.path].get_value()).reshape(-1, *parameter.own_shape)
        for name, tensor in zip(parameter.names, value, strict=True):
            tensors[name] = np.ascontiguousarray(tensor.T if parameter.transposed else tensor)
    tensors = joined(tensors, fused_tensors(decoder.config))
    together = {"gpt_oss": IN_TURN, "qwen3_5_moe_text": ONE_AFTER_ANOTHER}.get(decoder.config.family)
    tensors = tensors if together is None else _experts_together(tensors, together)
    config = config_fields(decoder.config) | {"dtype": str(tensors[EMBEDDING].dtype)}
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, directory / SINGLE_FILE, metadata={"format": "pt"})


def joined(arrays: Mapping[str, npt.NDArray[Any]], fused: Fused) -> dict[str, npt.NDArray[Any]]:
    """Return weights by name with one for several projections, in place of one for each."""
    found = dict(arrays)
    for name, parts in fused.items():
        of_parts = [found.pop(part) for part in parts]
        found[name] = np.concatenate(of_parts)[np.argsort(np.concatenate(list(parts.values())))]
    return found


def _experts_together(arrays: Mapping[str, npt.NDArray[Any]], together: Together) -> dict[str, npt.NDArray[Any]]:
    """Return weights by name with those of all experts in place of those of single ones."""
    joined_as = {part: name for name, parts in _PARTS.items() for part in parts}
    found: dict[str, npt.NDArray[Any]] = {}
    of_experts: dict[tuple[str, str], dict[int, npt.NDArray[Any]]] = {}
    for name, array in arrays.items():
        match = _OF_EXPERT.fullmatch(name)
        if match is None:
            found[name] = array
            continue
        module, expert, projection, kind = match.groups()
        in_file = f"{module}{joined_as[projection]}{'_bias' if kind == 'bias' else ''}"
        of_experts.setdefault((in_file, projection), {})[int(expert)] = array
    stacked = {key: np.stack([one[expert] for expert in sorted(one)]) for key, one in of_experts.items()}
    for in_file in dict.fromkeys(name for name, _ in stacked):
        parts = [stacked[in_file, part] for part in _PARTS[in_file.rpartition(".")[2].removesuffix("_bias")]]
        joined = np.stack(parts, axis=2 if together.in_turn else 1)  # [experts, out, parts, …], or parts before out
        outputs = joined.reshape(len(joined), -1, *joined.shape[3:])
        is_turned = together.transposed and outputs.ndim == 3
        found[in_file] = np.ascontiguousarray(outputs.swapaxes(1, 2)) if is_turned else outputs
    return found


def config_fields(config: DecoderConfig) -> dict[str, object]:
    """Return the fields of a ``config.json`` that HuggingFace loads as the same model. Classes have no names."""
    family = config.traits
    biases = {"attention_bias": config.attention_bias, "mlp_bias": config.mlp_bias}
    fields: dict[str, object] = {
        "architectures": [family.classifier if config.classes else family.architecture],
        "model_type": config.family,
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.query_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.mlp_width,
        family.mlp_width_field: config.mlp_width,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": config.tied,
        "hidden_activation" if family.is_gemma else "hidden_act": family.activation,
        "pad_token_id": None,  # HuggingFace's own for Phi-3 may not be in the vocabulary
        **{field: biases[field] for field in sorted(family.bias_fields)},
    }
    if config.classes:
        fields["num_labels"] = config.classes
    if family.has_shared_mlp:
        layers = ["full_attention"] * config.layers
        fields |= {"num_local_experts": 0, "position_embedding_type": "rope", "layer_types": layers}
    if family.has_multipliers:
        fields |= config.multipliers._asdict()
    if family.has_scalar:
        multiplier = config.multipliers.attention_multiplier
        fields["query_pre_attn_scalar"] = config.head_dim if multiplier is None else round(multiplier**-2)
    if family.has_caps:
        fields |= {"attn_logit_softcapping": config.caps.scores, "final_logit_softcapping": config.caps.logits}
    fields |= _position_fields(config)
    fields |= {} if config.recurrence is None else _recurrence_fields(config.recurrence)
    return fields | ({} if config.mixture is None else _mixture_fields(config.mixture))


def _position_fields(config: DecoderConfig) -> dict[str, object]:
    """Return the fields about positions and sliding windows."""
    windows, window = config.traits.windows, config.window
    rope = rope_fields(config.ropes[-1] if windows is not None and windows.is_still else config.rope)
    if config.family == "ministral3":
        rope |= {"llama_4_scaling_beta": 0.1}  # of positions behind the context
    plain: dict[str, object] = {"rope_theta": config.rope.theta, "rope_parameters": rope}
    if windows is None:
        return plain
    if windows.is_still and windows.default is None:
        return {**plain, "no_rope_layers": [int(one) for one in config.windowed]}
    if windows.is_still and window is None:
        return {**plain, "sliding_window": None, "layer_types": ["full_attention"] * config.layers}
    if window is None and windows.pattern:
        window = Window(config.context, (False,) * config.layers)
    switch = {"use_sliding_window": window is not None} if windows.switch else {}
    if window is None:
        return {**plain, **(switch or {"sliding_window": None})}
    names = [tuple(KINDS)[is_windowed] for is_windowed in window.layers]
    kinds = {"layer_types": names} if windows.switch or windows.pattern else {}
    if windows.bases is not None:
        own = config.rope if window.rope is None else window.rope
        plain = {"rope_parameters": dict(zip(KINDS, (rope, rope_fields(own)), strict=True))}
    return {**plain, **switch, **kinds, "sliding_window": window.size}


def rope_fields(rope: Rope) -> dict[str, object]:
    """Return the value of ``rope_parameters``."""
    scaling = {"rope_type": "default"} if rope.scaling is None else scaling_fields(rope.scaling)
    share = {} if rope.turned == 1.0 else {"partial_rotary_factor": rope.turned}
    return {**scaling, "rope_theta": rope.theta, **share}


def scaling_fields(scaling: Scaling) -> dict[str, object]:
    """Return the fields of ``rope_parameters`` that say how positions are stretched."""
    match scaling:
        case LinearScaling():
            return {"rope_type": "linear", "factor": scaling.factor}
        case Llama3Scaling():
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low,
                "high_freq_factor": scaling.high,
                "original_max_position_embeddings": scaling.original_context,
            }
        case YarnScaling():
            return {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "beta_fast": scaling.fast,
                "beta_slow": scaling.slow,
                "original_max_position_embeddings": scaling.original_context,
                "truncate": scaling.whole_dimensions,
                "attention_factor": scaling.magnitude,
            }
        case Still():
            return {}  # It is not stretched. Which layers have no positions stands elsewhere.
        case LongScaling():
            return {
                "rope_type": "longrope",
                "short_factor": list(scaling.factors),
                "long_factor": list(scaling.factors),  # of longer sequences, which are never served
                "original_max_position_embeddings": scaling.original_context,
                "attention_factor": scaling.magnitude,
            }


def _recurrence_fields(recurrence: Recurrence) -> dict[str, object]:
    return {
        "layer_types": [tuple(RECURRENT_KINDS)[is_recurrent] for is_recurrent in recurrence.layers],
        "linear_num_key_heads": recurrence.key_heads,
        "linear_num_value_heads": recurrence.value_heads,
        "linear_key_head_dim": recurrence.key_dim,
        "linear_value_head_dim": recurrence.value_dim,
        "linear_conv_kernel_dim": recurrence.inputs,
    }


def _mixture_fields(mixture: Mixture) -> dict[str, object]:
    found: dict[str, object] = {"num_experts_per_tok": mixture.chosen}
    if mixture.shared:
        found["shared_expert_intermediate_size"] = mixture.shared
    if mixture.clamped is None:
        return found | {"num_experts": mixture.experts, "norm_topk_prob": mixture.normalised}
    gain, limit = mixture.clamped
    return found | {"num_local_experts": mixture.experts, "swiglu_alpha": gain, "swiglu_limit": limit}
