"""Puts a decoder on its device in the way of its platform: layer by layer, or whole steps."""

from __future__ import annotations

from typing import Any

from model.architecture.decoder import Decoder
from model.attention.contract import Attention
from model.buckets import Buckets
from model.checks.known_answer import KnownAnswers, ModelChecks
from model.checks.known_whole_steps import KnownWholeSteps
from model.forward import Forward
from model.layerwise.executables import Executables
from model.layerwise.forward import LayerwiseForward
from model.layerwise.programs import Programs
from model.platforms import Platform
from model.pool import PoolShape
from model.whole_steps.executables import WholeStepExecutables
from model.whole_steps.forward import WholeStepForward
from model.whole_steps.programs import WholeStepPrograms
from model.whole_steps.shape import StepShape


def served(
    decoder: Decoder, platform: Platform, buckets: Buckets, pool: PoolShape, attention: Attention | None = None
) -> tuple[Forward, ModelChecks[Any]]:
    """Return the forward pass of a decoder, and the checks of its programs.

    attention: None for the platform's own; of programs by layer alone.
    """
    if not platform.whole_steps:
        programs = Programs(decoder, platform, buckets, attention)
        checks = KnownAnswers(programs, platform, buckets, pool.longest)
        executables = Executables(programs, platform, buckets, pool.longest, checks.check)
        return LayerwiseForward(programs, platform, executables, buckets, pool.blocks), checks
    attends = platform.whole_step_attention(decoder.head_kernel().dtype)
    whole = WholeStepPrograms(decoder, attends)
    tokens = buckets.step_tokens
    shape = StepShape.of(tokens, buckets.block_tokens, pool.blocks, pool.longest, buckets.max_rows)
    whole_checks = KnownWholeSteps(whole, platform, shape)
    whole_executables = WholeStepExecutables(whole, platform, shape, whole_checks.check)
    return WholeStepForward(whole, whole_executables, buckets, shape), whole_checks
