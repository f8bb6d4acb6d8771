"""Which heads, and how much of the MLP and of the vocabulary, each of several chips has."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from model.architecture.config import DecoderConfig
from model.architecture.configuration_reader import UnsupportedModelError
from model.architecture.families import QKNorm

Ranges = tuple[tuple[int, int], ...]
"""Where the numbers of a chip begin and end along the axis of a tensor that is divided, in the chip's order."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The equal shares of a model.

    A chip needs the key heads of its query heads. If key heads can't be divided, some are on several chips: then the
    model is computed as one with more key heads, of which some are the same (:attr:`key_heads`). A chip never has more
    of them than the model.
    """

    whole: DecoderConfig
    """The model as it is computed, with repeated key heads."""
    own: DecoderConfig
    """What one chip computes of it."""
    key_heads: tuple[int, ...]
    """The key head of the checkpoint that each key head of :attr:`whole` is."""

    @classmethod
    def of(cls, config: DecoderConfig, chips: int) -> Shares:
        """Divide a model. Raises UnsupportedModelError, which names all that can't be divided."""
        sizes = {
            "num_attention_heads": config.query_heads,
            config.traits.mlp_width_field: config.mlp_width,
            "vocab_size": config.vocabulary,
        }
        recurrence = config.recurrence
        if recurrence is not None:
            sizes["linear_num_key_heads"] = recurrence.key_heads
        if chips > 1 and config.traits.qk_norm is QKNorm.ALL_HEADS:
            reason = f"{config.family} norms queries and keys over all heads"
            raise UnsupportedModelError(f"{chips} devices can't share this model, because {reason}")
        mixture = config.mixture
        if mixture is not None and mixture.shared:
            sizes["shared_expert_intermediate_size"] = mixture.shared
        faults = [f"{name} {size}" for name, size in sizes.items() if size % chips]
        if faults:
            raise UnsupportedModelError(
                f"{chips} devices can't share this model equally, because {chips} does not divide {', '.join(faults)}"
            )
        queries = config.query_heads // chips
        of_one_key = config.query_heads // config.kv_heads
        together = math.gcd(queries, of_one_key)  # neighbouring query heads of one chip with the same key head
        repeated = config.query_heads // together
        whole = replace(config, kv_heads=repeated)
        own = replace(
            whole,
            query_heads=queries,
            kv_heads=repeated // chips,
            mlp_width=config.mlp_width // chips,
            vocabulary=config.vocabulary // chips,
            recurrence=None if recurrence is None else recurrence.share(chips),
            mixture=None if mixture is None else mixture._replace(shared=mixture.shared // chips),
        )
        return cls(whole, own, tuple(head * together // of_one_key for head in range(repeated)))

    @property
    def channels(self) -> list[Ranges]:
        """Return the channels of each chip in recurrent layers: those of its queries, of its keys, and of its values.

        In a checkpoint, the queries of all heads come first, then all keys, and then all values.
        """
        whole, own = self.whole.recurrence, self.own.recurrence
        assert whole is not None
        assert own is not None
        keys, own_keys = whole.key_heads * whole.key_dim, own.key_heads * own.key_dim
        parts = (0, own_keys), (keys, own_keys), (2 * keys, own.output)
        return [
            tuple((first + chip * size, first + (chip + 1) * size) for first, size in parts)
            for chip in range(whole.key_heads // own.key_heads)
        ]
