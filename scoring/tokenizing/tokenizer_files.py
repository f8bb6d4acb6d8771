"""Loading the tokenizer of a model directory, and what its definition says."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as _quoted
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from checkpoints.files import CheckpointError, require_directory

_DEPTH = 2
"""How deep in a definition the vocabulary lies."""

_AT_ONCE = 5_000
"""Entries of a vocabulary, or merges, that are written at once."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """What a tokenizer's files say about chats."""

    template: str | None = None  # in Jinja; None: there is none
    special_tokens: Mapping[str, str] = field(default_factory=dict)  # such as bos_token, by the names of templates


_ANY_TEXT = "A text, 42 é 中 \U0001f9ee"
"""A vocabulary that is read by the wrong class has no token for some of it, nor one for what is unknown."""


def load_tokenizer(directory: Path) -> tuple[Tokenizer, bool, ChatFormat]:
    """Load the tokenizer in a model directory as transformers does.

    Returns it, whether special tokens written out in a text are ordinary text, and what it says about chats. Raises
    :class:`CheckpointError`.
    """
    require_directory(directory)
    _require_tokenizer_files(directory)
    # transformers would print a warning that torch is missing, which is not needed here.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoTokenizer

    try:
        # Without trust_remote_code=False, it would ask at the terminal whether to run code of the checkpoint.
        tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises anything from OSError to a bare Exception from Rust
        reason = " ".join(str(error).split())
        if "trust_remote_code" in reason:
            raise CheckpointError(
                f"the tokenizer of {directory} is code in the checkpoint (auto_map in tokenizer_config.json), "
                "which is not run here: save it as a tokenizer.json"
            ) from error
        raise CheckpointError(
            f"no tokenizer can be loaded from {_tokenizer_file(directory)}: {reason}; get the file again, or check "
            "that it belongs to the model"
        ) from error
    if not tokenizer.is_fast:
        raise CheckpointError(
            f"the tokenizer of {directory} ({type(tokenizer).__name__}) has no fast form, which is the only one "
            "served: tokenizer_class in tokenizer_config.json must name one that reads tokenizer.json"
        )
    try:
        tokenizer.backend_tokenizer.encode(_ANY_TEXT)
    except Exception as error:  # a bare one, from Rust
        raise CheckpointError(
            f"the tokenizer of {directory} ({type(tokenizer).__name__}) can't encode every text: {error}; check that "
            "tokenizer_class in tokenizer_config.json belongs to tokenizer.json"
        ) from error
    template = tokenizer.chat_template
    if isinstance(template, dict):  # several, of which the one with this name is for plain chats
        template = template.get("default")
    chat = ChatFormat(template, dict(tokenizer.special_tokens_map))
    return tokenizer.backend_tokenizer, bool(tokenizer.split_special_tokens), chat


def _tokenizer_file(directory: Path) -> Path:
    """Return the path that an error message should name: tokenizer.json if it exists, else the directory."""
    path = directory / "tokenizer.json"
    return path if path.exists() else directory


def _require_tokenizer_files(directory: Path) -> None:
    """Raise :class:`CheckpointError` if there is no tokenizer, or none in a form that is served."""
    if (directory / "tokenizer.json").exists() or all((directory / n).exists() for n in ("vocab.json", "merges.txt")):
        return
    found = [name for name in ("tokenizer.model", "tekken.json", "vocab.json") if (directory / name).exists()]
    if not found:
        raise CheckpointError(f"{directory} holds no tokenizer.json: add the model's tokenizer files to it")
    raise CheckpointError(
        f"{directory} holds {' and '.join(found)} but no tokenizer.json, which is the form that is served: add the "
        "model's tokenizer.json, or have transformers write one (AutoTokenizer, save_pretrained)"
    )


def marks_beginnings(step: Mapping[str, Any] | None) -> bool:
    """Whether a step of the tokenizer's pipeline puts a space, or a marker for one, before every text."""
    match step:
        case {"type": "Prepend"} | {"type": "Metaspace", "prepend_scheme": "always" | "first"}:
            return True
        case {"type": "ByteLevel", "add_prefix_space": True}:
            return True
        case {"type": "Sequence", "normalizers": steps} | {"type": "Sequence", "pretokenizers": steps}:
            return any(map(marks_beginnings, steps))
    return False


def size_of_vocabulary(vocabulary: Mapping[str, int] | Sequence[Any]) -> int:
    """Return one more than the highest id of a vocabulary, in the form of a tokenizer's definition."""
    ids = vocabulary.values() if isinstance(vocabulary, Mapping) else range(len(vocabulary))
    return max(ids, default=-1) + 1


def fingerprint_of(definition: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the definition of a tokenizer, as JSON with sorted keys and without spaces."""
    digest = hashlib.sha256()
    for piece in _canonical(definition, _DEPTH):
        digest.update(piece.encode())
    return digest.hexdigest()


def _canonical(value: object, depth: int) -> Iterator[str]:
    """Yield a value as JSON, in short pieces down to some depth.

    To write a large vocabulary or its merges at once would hold the interpreter's lock. Names and their numbers are
    written here in half of the time that ``json.dumps`` takes to sort them and to write them.
    """
    if isinstance(value, list) and len(value) > _AT_ONCE:
        for start in range(0, len(value), _AT_ONCE):
            yield f"{',' if start else '['}{_as_json(value[start : start + _AT_ONCE])[1:-1]}"
        yield "]"
    elif not isinstance(value, dict) or not value:
        yield _as_json(value)
    elif depth > 0:
        for n, key in enumerate(sorted(value)):
            yield f"{',' if n else '{'}{_quoted(key)}:"
            yield from _canonical(value[key], depth - 1)
        yield "}"
    elif set(map(type, value.values())) == {int}:
        names = sorted(value)
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            yield f"{',' if start else '{'}{','.join([f'{_quoted(name)}:{value[name]}' for name in some])}"
        yield "}"
    else:
        yield _as_json(value)


def _as_json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
