"""Makes the forward pass of a decoder that suits its platform: layer by layer, or by whole steps."""

from __future__ import annotations

from functools import partial
from typing import Any

from model.adapted_decoders import AdaptedDecoders
from model.architecture.decoder import Decoder
from model.attention.contract import Attention
from model.buckets import Buckets
from model.checks.known_answer import ModelChecks
from model.executable_table import ExecutableTable, ProgramShelf, Shared
from model.forward import Forward
from model.layerwise.decoder import LayerwiseDecoder
from model.layerwise.forward import LayerwiseForward
from model.platforms import Platform
from model.prefixes.pool import PoolShape
from model.programs.decoder import DecoderParts
from model.whole_steps.decoder import StackedDecoder
from model.whole_steps.forward import WholeStepForward
from model.whole_steps.full_steps import full_steps
from model.whole_steps.shape import StepShape


def make_forward(
    decoder: Decoder,
    platform: Platform,
    buckets: Buckets,
    pool: PoolShape,
    attention: Attention | None = None,
    shelf: ProgramShelf | None = None,
) -> tuple[Forward, ModelChecks[Any]]:
    """Return the forward pass of a decoder, and the checks of its programs.

    attention: None for the platform's own; of programs by layer alone. shelf: keeps programs for other models.
    """

    def shared(decoder: DecoderParts) -> Shared | None:
        return None if shelf is None else shelf.of((decoder.config, decoder.dtype, decoder.structure, buckets, pool))

    if not platform.whole_steps:

        def by_layer(decoder: Decoder) -> LayerwiseDecoder:
            return LayerwiseDecoder(decoder, platform, buckets, pool.longest, attention)

        def checked(decoder: LayerwiseDecoder) -> tuple[ExecutableTable[LayerwiseDecoder], ModelChecks[Any]]:
            checks = ModelChecks(decoder, platform)
            return ExecutableTable(decoder, platform, checks.check, shared(decoder)), checks

        decoders = AdaptedDecoders(decoder, by_layer, checked)
        return LayerwiseForward(decoders, platform, pool.blocks), decoders.checks
    config = decoder.config
    attention_of_steps = platform.whole_step_attention(
        decoder.head_kernel().dtype, config.head_dim, plain=config.has_plain_attention, cap=config.caps.scores
    )
    recurrence = config.recurrence
    inputs = 0 if recurrence is None else recurrence.inputs
    shape = StepShape.of(buckets.step_tokens, buckets.block_tokens, pool.blocks, pool.longest, buckets.max_rows, inputs)

    def stacked(decoder: Decoder) -> StackedDecoder:
        return StackedDecoder(decoder, attention_of_steps, shape, platform.chips)

    def checked_together(decoder: StackedDecoder) -> tuple[ExecutableTable[StackedDecoder], ModelChecks[Any]]:
        checks = ModelChecks(decoder, platform, partial(full_steps, decoder.config.vocabulary, shape))
        return ExecutableTable(decoder, platform, checks.check, shared(decoder)), checks

    of_steps = AdaptedDecoders(decoder, stacked, checked_together)
    return WholeStepForward(of_steps, buckets), of_steps.checks
