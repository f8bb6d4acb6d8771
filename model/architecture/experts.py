"""Mixtures of experts: how many MLPs a layer has, and how many of them a token passes."""

from __future__ import annotations

from typing import NamedTuple

from model.architecture.configuration_reader import ConfigurationReader, UnsupportedModelError


class Mixture(NamedTuple):
    """The MLPs of every layer, of which a router chooses some for each token."""

    experts: int  # MLPs of a layer
    chosen: int  # that a token passes
    normalised: bool  # whether the weights of those that are chosen are divided by their sum

    def to_huggingface(self, mlp_width: int) -> dict[str, object]:
        """Return the fields of a ``config.json``; mlp_width: of each expert."""
        return {
            "num_experts": self.experts,
            "num_experts_per_tok": self.chosen,
            "norm_topk_prob": self.normalised,
            WIDTH: mlp_width,
        }


EXPERTS = "experts"
"""The module that holds the experts of a layer, in names of tensors and in the decoder."""

WIDTH = "moe_intermediate_size"
"""The field with the width of each expert's MLP."""

_LOCAL = "num_local_experts"  # what HuggingFace writes since version 5, and prefers where a file has both

_NOTHING_ELSE = {
    "decoder_sparse_step": 1,  # each so-many-eth layer is a mixture
    "mlp_only_layers": [],  # the layers that are none
    "use_sliding_window": False,  # HuggingFace has it in all layers here, and not by max_window_layers
    "shared_expert_intermediate_size": 0,
}
"""Fields of other mixtures, and the values that all published models of the family have."""


def read_mixture(fields: ConfigurationReader) -> Mixture:
    """Return the mixture of a family that has one. Raises :class:`UnsupportedModelError`."""
    for name, only in _NOTHING_ELSE.items():
        fields.require(name, only)
    experts = fields.integer(_LOCAL if _LOCAL in fields else "num_experts")
    found = Mixture(experts, fields.integer("num_experts_per_tok"), fields.flag("norm_topk_prob", False))
    if found.chosen > experts:
        raise UnsupportedModelError(f"num_experts_per_tok {found.chosen} is more than the {experts} experts")
    return found
