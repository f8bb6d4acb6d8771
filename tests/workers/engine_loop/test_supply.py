"""What a model of the catalogue takes of a device, before it is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks.shapes import SHAPES
from checkpoints.card import ModelCard
from checkpoints.source import Checkpoint
from jobs.catalogue import ListedModel
from model.platforms import Platform
from model.prefixes.pool import PROGRAM_BYTES, PoolShape
from settings.engine import EngineSettings
from settings.scoring import ScoringSettings
from workers.engine_loop.models import supply
from workers.engine_loop.models.loading import Described
from workers.engine_loop.models.supply import CatalogueModel, Device

CONFIG = SHAPES["qwen3-0.6b"]
CONTEXT = 40_960
CARD = ModelCard("triage", CONTEXT, CONFIG.vocabulary, "f" * 64, version=1)


def of_catalogue(memory: int | None, **settings: Any) -> CatalogueModel:
    platform = replace(Platform.of(jax.devices()[0]), memory=memory, default_step_tokens=2_048)
    device = Device(platform, [0], EngineSettings(**settings), 4.0)
    listed = ListedModel(1, "triage", {"model": "/nowhere"}, (), False, CARD, 0.0, None)
    model = CatalogueModel(listed, ScoringSettings(), device)
    model.__dict__["described"] = Described(
        ScoringSettings(), Checkpoint(Path("/nowhere"), "triage"), None, CONFIG, CARD
    )
    return model


def test_a_container_that_has_less_memory_than_its_machine_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(supply, "MEMORY_LIMITS", (tmp_path / "absent", limit))
    limit.write_text("max\n")
    whole = supply.memory_of_process()
    limit.write_text("1000000\n")
    assert supply.memory_of_process() == 1_000_000 < whole


def test_on_a_device_a_sequence_of_full_length_fits_beside_the_weights() -> None:
    """A gibibyte of prefixes, the default, is less than that."""
    expected = of_catalogue(80 * 2**30, dtype="bfloat16").expected_bytes()
    weights = 2 * CONFIG.parameters
    pool = PoolShape.of(CONFIG, CONTEXT, 2, 2_048, 2**30, expected + PROGRAM_BYTES - weights)
    assert pool.blocks >= pool.longest == 20
    assert expected < weights + 7 * 2**30, "and not all that the device has"


@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("bfloat16", 2)])
def test_weights_count_as_they_are_served(dtype: str, itemsize: int) -> None:
    """However they are stored."""
    model = of_catalogue(None, dtype=dtype, prefix_cache_bytes=2**20)
    assert model.expected_bytes() == itemsize * CONFIG.parameters + 2**20
