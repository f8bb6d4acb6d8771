"""Mixtures of experts: how many MLPs a layer has, and how many of them a token passes."""

from __future__ import annotations

from typing import NamedTuple

from model.architecture.configuration_reader import ConfigurationReader, UnsupportedModelError


class ClampedGate(NamedTuple):
    """The gate of gpt-oss: of g and u, numbers of the two first projections, it makes g * logistic(gain * g) * (u + 1).

    Before, g is at most the limit, and u is clipped to it on both sides.
    """

    gain: float
    limit: float


class Mixture(NamedTuple):
    """The MLPs of every layer, of which a router chooses some for each token."""

    experts: int  # MLPs of a layer
    chosen: int  # that a token passes
    normalised: bool  # whether the weights of those that are chosen are divided by their sum
    clamped: ClampedGate | None = None  # None: the gate of other MLPs

    @property
    def biased(self) -> bool:
        """Whether the router and all projections of the experts have biases."""
        return self.clamped is not None


ROUTER = "gate"
"""The module that chooses experts, in the decoder and in most names of tensors."""

EXPERTS = "experts"
"""The module that holds the experts of a layer, in names of tensors and in the decoder."""

_LOCAL = "num_local_experts"  # what HuggingFace writes since version 5, and prefers where a file has both

_CLAMPED = "swiglu_alpha", "swiglu_limit"
"""The fields of a :class:`ClampedGate`."""

_NOTHING_ELSE = {
    "decoder_sparse_step": 1,  # each so-many-eth layer is a mixture
    "mlp_only_layers": [],  # the layers that are none
    "use_sliding_window": False,  # HuggingFace has it in all layers here, and not by max_window_layers
    "shared_expert_intermediate_size": 0,
}
"""Fields of other mixtures, and the values that all published models of the family have."""


def read_mixture(fields: ConfigurationReader, *, is_gpt_oss: bool) -> Mixture:
    """Return the mixture of a family that has one. Raises :class:`UnsupportedModelError`."""
    for name, only in _NOTHING_ELSE.items():
        fields.require(name, only)
    experts = fields.integer(_LOCAL if _LOCAL in fields else "num_experts")
    clamped = ClampedGate(*map(fields.number, _CLAMPED, (1.702, 7.0))) if is_gpt_oss else None
    normalised = is_gpt_oss or fields.flag("norm_topk_prob", False)
    found = Mixture(experts, fields.integer("num_experts_per_tok"), normalised, clamped)
    if found.chosen > experts:
        raise UnsupportedModelError(f"num_experts_per_tok {found.chosen} is more than the {experts} experts")
    return found
