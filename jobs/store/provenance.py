"""Where scores come from: all that, with the same request, gives the same bits again.

Rows of scores refer to a small table of distinct provenances. The id of a provenance is a hash of its content, so a
worker knows it without asking, and an API that has read a provenance once never has to read it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from typing import Any, Self

ID_BYTES = 8  # of the hash; there are a few provenances for each release and kind of worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What computed some scores. The API that tokenized the request had the same tokenizer: claims ensure it."""

    model: str
    revision: str | None  # the commit on the hub; None for a folder, which the fingerprints tell apart
    weights_fingerprint: str
    tokenizer_fingerprint: str
    dtype: str  # of weights and activations
    device: str  # platform and kind, such as "tpu: TPU v6 lite"
    processor: str | None  # of a device that is a processor: its name and the cores that the worker may use
    step_tokens: int  # tokens of the largest step, on which the bits of large products may depend
    batch_invariant: bool  # false: the rounding may depend on what else was in a step
    versions: Mapping[str, str]  # of this service and of the libraries that compute, by name
    # A hash of the model's configuration, and of how algorithms are chosen; None: an earlier version did not say.
    configuration: str | None = None
    algorithms: tuple[str, ...] = ()  # by which the rows of the chunk were computed, in alphabetical order

    @property
    def id(self) -> int:
        """A signed integer of 64 bits, which is the same wherever the content is."""
        content = json.dumps(asdict(self), sort_keys=True).encode()
        return int.from_bytes(sha256(content).digest()[:ID_BYTES], "big", signed=True)

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Return what was stored as JSON. What a newer version has added is left out."""
        known = {field.name: stored[field.name] for field in fields(cls) if field.name in stored}
        return cls(**known | {"algorithms": tuple(stored["algorithms"])})


def merged(provenances: tuple[Provenance | None, ...]) -> tuple[Provenance | None, ...]:
    """Return the provenances of chunks as those of their job: ones that differ in the algorithms alone become one."""
    algorithms: dict[int | None, set[str]] = {}
    distinct: dict[int | None, Provenance | None] = {}
    for one in provenances:
        without = None if one is None else replace(one, algorithms=())
        key = None if without is None else without.id
        distinct[key] = without
        algorithms.setdefault(key, set()).update(() if one is None else one.algorithms)
    return tuple(
        None if one is None else replace(one, algorithms=tuple(sorted(algorithms[key])))
        for key, one in distinct.items()
    )
