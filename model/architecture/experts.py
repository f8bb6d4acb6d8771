"""Mixtures of experts: how many MLPs a layer has, and how many of them a token passes."""

from __future__ import annotations

from typing import NamedTuple

from model.architecture.configuration_reader import ConfigurationReader, UnsupportedModelError
from model.architecture.families import Family


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
    shared: int = 0  # the width of a further MLP, which all tokens pass by a gate; 0: there is none

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
}
"""Fields of other mixtures, and the values that all published models of the family have."""

_SHARED = "shared_expert_intermediate_size"


def read_mixture(fields: ConfigurationReader, family: Family) -> Mixture:
    """Return the mixture of a family that has one. Raises :class:`UnsupportedModelError`."""
    is_gpt_oss = family.is_gpt_oss
    for name, only in (_NOTHING_ELSE if family.has_shared_expert else _NOTHING_ELSE | {_SHARED: 0}).items():
        fields.require(name, only)
    experts = fields.integer(_LOCAL if _LOCAL in fields else "num_experts")
    clamped = ClampedGate(*map(fields.number, _CLAMPED, (1.702, 7.0))) if is_gpt_oss else None
    normalised = family.always_normalises or fields.flag("norm_topk_prob", family.has_shared_expert)
    shared = fields.integer(_SHARED, 512) if family.has_shared_expert else 0
    found = Mixture(experts, fields.integer("num_experts_per_tok"), normalised, clamped, shared)
    if found.chosen > experts:
        raise UnsupportedModelError(f"num_experts_per_tok {found.chosen} is more than the {experts} experts")
    return found
