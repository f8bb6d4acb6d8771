"""Sliding windows: which layers have one, and their rotary positions."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from checkpoints.files import context_length, rope_field
from model.architecture.configuration_reader import ConfigurationReader, UnsupportedModelError
from model.architecture.families import Family, Windows
from model.architecture.rope import Rope, Still

KINDS = {"full_attention": False, "sliding_attention": True}
"""Whether a layer has a window, by its name in ``layer_types``."""


_OLDER_NAMES = {"attention": "full_attention"}
"""Older names of kinds of layers, and what HuggingFace reads in their place."""


class Window(NamedTuple):
    """A sliding window: in some layers, a token sees only the last tokens before it."""

    size: int  # tokens that it sees, itself among them
    layers: tuple[bool, ...]  # which layers have it
    rope: Rope | None = None  # the rotary positions in these layers, where they differ from those of the others


def read_positions(fields: ConfigurationReader, family: Family) -> tuple[Rope, Window | None]:
    """Return the rotary positions, and the sliding window if a layer has one that is shorter than the context."""
    windows, context = family.windows, context_length(fields.values)
    size = _window_size(fields, Windows(None) if windows is None else windows)
    if windows is None and size is not None and size < context:
        # HuggingFace ignores it. But the decoder of whoever wrote it may have one.
        raise UnsupportedModelError(f"sliding_window {size} is not implemented for {fields.get('model_type')}")
    layers = _windowed_layers(fields, family)
    if family.scalings == ("yarn",) and (rope_field(fields.values) not in fields or not _names_base(fields)):
        raise UnsupportedModelError("config.json lacks rope_scaling or rope_theta")  # HuggingFace would take YaRN
    if windows is not None and windows.is_still:
        rope = Rope.from_huggingface(fields, family.scalings)
        if windows.default is None:
            size, layers = context, _layers_with_positions(fields)
        still = replace(rope, scaling=Still())
        return (rope, None) if size is None else (still, Window(min(size, context), layers, rope))
    if windows is None or windows.bases is None:
        rope = Rope.from_huggingface(fields, family.scalings, family.turned)
        return rope, None if size is None or size >= context or not any(layers) else Window(size, layers)
    full, own = Rope.of_kinds(fields, tuple(KINDS), windows.bases, family.scalings)
    return full, Window(min(size or context, context), layers, None if own == full else own)


def _layers_with_positions(fields: ConfigurationReader) -> tuple[bool, ...]:
    """Return which layers have positions, of a family without windows: the ones in ``no_rope_layers``."""
    fields.require("use_sliding_window", False)
    if not _names_base(fields):
        raise UnsupportedModelError("config.json lacks rope_theta")  # HuggingFace has a default of the family's own
    count, given = fields.integer("num_hidden_layers"), fields.get("no_rope_layers")
    if given is None:
        each = fields.integer("no_rope_layer_interval", 4)
        return tuple((number + 1) % each != 0 for number in range(count))
    if not isinstance(given, list) or len(given) != count or any(one not in (0, 1) for one in given):
        raise UnsupportedModelError(f"no_rope_layers must be {count} numbers, each 0 or 1, not {given!r}")
    return tuple(map(bool, given))


def _names_base(fields: ConfigurationReader) -> bool:
    """Return whether a configuration names the base of rotary positions."""
    name = "rope_theta"
    return name in fields or name in fields.section(rope_field(fields.values))


def _window_size(fields: ConfigurationReader, windows: Windows) -> int | None:
    """Return the tokens of a sliding window; None: there is none. Defaults are HuggingFace's."""
    if windows.switch and not fields.flag("use_sliding_window", False):
        return None
    if "sliding_window" not in fields and ("sliding_window" in fields.values or windows.default is None):
        return None
    return fields.integer("sliding_window", windows.default)


def _windowed_layers(fields: ConfigurationReader, family: Family) -> tuple[bool, ...]:
    """Return which layers have the sliding window if there is one."""
    windows = family.windows
    count, given = fields.integer("num_hidden_layers"), fields.get("layer_types") or []
    by_layer = windows is not None and (windows.switch or windows.pattern > 0)
    known = tuple(KINDS) if by_layer else ("full_attention",)
    if windows is None and family.is_hybrid:
        return (False,) * count  # its kinds of layers are those of Recurrence
    if family.has_shared_mlp:  # HuggingFace would make all layers recurrent, or read the other name
        if not given:
            raise UnsupportedModelError("config.json lacks layer_types")
        fields.require("layers_block_type", given)
    names = [_OLDER_NAMES.get(name, name) for name in given] if isinstance(given, list) else given
    if not isinstance(names, list) or any(name not in known for name in names):
        raise UnsupportedModelError(f"layer_types {given!r} is not implemented, only {' and '.join(known)}")
    if names and len(names) != count:
        raise UnsupportedModelError(f"layer_types has {len(names)} entries for {count} layers")
    if windows is None or not by_layer:
        return (True,) * count
    if names:
        return tuple(KINDS[name] for name in names)
    if windows.switch:
        first = fields.integer("max_window_layers", 28, least=0)
        return tuple(number >= first for number in range(count))
    if not windows.reads_pattern:
        fields.require("sliding_window_pattern", windows.pattern)
    pattern = fields.integer("sliding_window_pattern", windows.pattern)
    return tuple((number + 1) % pattern != 0 for number in range(count))
