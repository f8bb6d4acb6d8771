"""Reads from a ``config.json`` in which format the weights are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from model.architecture.configuration_reader import ConfigurationReader, UnsupportedModelError
from model.architecture.stored.awq import Awq
from model.architecture.stored.compressed_tensors import CompressedTensors
from model.architecture.stored.encoding import Encoding
from model.architecture.stored.fp8 import Fp8
from model.architecture.stored.gptq import Gptq
from model.architecture.stored.mxfp4 import Mxfp4

FIELD = "quantization_config"

MXFP4 = "mxfp4"
"""The format of experts that share their tensors, which has no other."""

FORMATS: dict[str, Callable[[ConfigurationReader], Encoding]] = {
    "fp8": Fp8.of,
    "fbgemm_fp8": Fp8.of,
    "modelopt": Fp8.of_model_optimizer,
    "compressed-tensors": CompressedTensors.of,
    "awq": Awq.of,
    "gptq": Gptq.of,
    MXFP4: Mxfp4.of,
}
"""Formats by ``quant_method``."""


def encoding_of(fields: ConfigurationReader) -> Encoding | None:
    """Return the format of quantised weights, or None where no weight is quantised.

    fields: of the whole file. Raises UnsupportedModelError, which names the field.
    """
    section = _section(fields)
    if section is None:
        return None
    method = section.get("quant_method")
    if method not in FORMATS:
        known = ", ".join(FORMATS)
        raise UnsupportedModelError(f"{section.named('quant_method')} {method!r} is not implemented; known: {known}")
    return FORMATS[method](section)


def method_of(config: Mapping[str, Any]) -> str | None:
    """Return the name of the format of quantised weights, or None where no weight is quantised. config: the file."""
    section = _section(ConfigurationReader(config))
    return None if section is None else str(section.get("quant_method"))


def _section(fields: ConfigurationReader) -> ConfigurationReader | None:
    # Older files of compressed-tensors have another name.
    name = FIELD if FIELD in fields or "compression_config" not in fields else "compression_config"
    return fields.section(name) if name in fields else None
