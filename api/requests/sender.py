"""Who has sent a body, and what its headers ask for. It is plain data, since another process may read the body."""

from __future__ import annotations

from dataclasses import dataclass

from api.callers.authentication import Principal


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of one body."""

    principal: Principal
    idempotency_key: str | None = None
    is_strict: bool = False  # whether unknown fields are refused
    wants_computed: bool = False  # whether scores that are kept must not be used: see headers/cache_control.py
