"""Made-up provenances."""

from __future__ import annotations

from dataclasses import replace

from jobs.store.provenance import Provenance

SOME = Provenance(
    model="tiny",
    revision="0" * 40,
    weights_fingerprint="made-up",
    tokenizer_fingerprint="f" * 64,
    dtype="float32",
    device="none",
    processor=None,
    step_tokens=256,
    batch_invariant=True,
    versions={"scoreline": "1", "jax": "2", "jaxlib": "3"},
)
OTHER = replace(SOME, weights_fingerprint="other")
