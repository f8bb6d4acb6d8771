"""What a worker says of the model that it has loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from model.platforms import Platform
from settings.engine import EngineSettings
from settings.scoring import ScoringSettings
from tests.end_to_end.small_models import add_weights
from tests.scoring.tokenizing.tokenizer_families import qwen2_5
from workers.engine_loop.models.loading import LoadedModel, describe, load

FIELDS: dict[str, Any] = {"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True}


def loaded(folder: Path, *, batch_invariant: bool = True, **fields: Any) -> LoadedModel:
    directory = add_weights(qwen2_5(folder).directory, **FIELDS, **fields)
    settings = EngineSettings(
        dtype="float32", multi_item_enable_startup_warmup=False, batch_invariant=batch_invariant, step_tokens=64
    )
    scoring = ScoringSettings(model=str(directory), model_name="tiny")
    return load(describe(scoring), settings, Platform.of(jax.devices()[0]), 4.0, [0])


def test_a_changed_configuration_is_another_provenance_though_the_weights_are_the_same(tmp_path: Path) -> None:
    first, same = (loaded(tmp_path / name, rope_theta=1e6) for name in ("first", "same"))
    other = loaded(tmp_path / "other", rope_theta=1e4)
    assert first.worker.weights_fingerprint == other.worker.weights_fingerprint
    assert first.worker.provenance_id == same.worker.provenance_id == first.provenance.id
    assert other.worker.provenance_id not in (None, first.worker.provenance_id)


def test_scores_that_depend_on_others_have_no_provenance_to_be_kept_under(tmp_path: Path) -> None:
    assert loaded(tmp_path / "model", rope_theta=1e6, batch_invariant=False).worker.provenance_id is None
