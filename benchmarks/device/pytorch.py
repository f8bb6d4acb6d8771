"""PyTorch on the same device and the same workload, where torch is installed and has the device."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator

from benchmarks.device.findings import Finding
from benchmarks.device.scale import Scale
from benchmarks.engine import described
from benchmarks.shapes import SHAPES
from benchmarks.timing import timed

WAYS = {"cached": "prefix cache with SDPA, compiled", "packed": "packed with FlexAttention, compiled"}
PART = "PyTorch, on the target workload"


def absence(platform: str) -> str | None:
    """Return why PyTorch is not measured on a device of a platform, None if it is."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed, so nothing was measured beside it"
    if platform == "cpu":
        return None
    if platform != "gpu":
        return f"torch has no device of the kind {platform} here, so nothing was measured beside it"
    import torch

    return None if torch.cuda.is_available() else "torch sees no GPU here, so nothing was measured beside it"


def pytorch(way: str, platform: str, scale: Scale, gflops: float) -> Iterator[Finding]:
    """Measure one of :data:`WAYS`."""
    reason = absence(platform)
    if reason is not None:
        yield Finding(PART, WAYS[way], {"note": reason})
        return
    import torch

    from benchmarks.device.torch_decoder import TorchDecoder

    config, workload = SHAPES[scale.shape], scale.workload("target")
    device = "cuda" if platform == "gpu" else "cpu"
    torch.manual_seed(0)
    decoder = TorchDecoder(config, device, "bfloat16", compiled=not scale.tiny)
    groups = workload.sequences(config.vocabulary)
    score = decoder.cached if way == "cached" else decoder.packed
    started = time.perf_counter()
    score(groups)
    compiling = time.perf_counter() - started
    measured = timed(lambda: score(groups), scale.repeats, workload.items, lambda: score(groups))
    values = described(measured, workload, config, gflops)
    yield Finding(PART, WAYS[way], {"torch": torch.__version__, "first_run_s": compiling, **values})
