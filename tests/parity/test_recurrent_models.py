"""Models with recurrent layers against HuggingFace's implementation, computed side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from demonstration.saving import config_fields
from model.architecture.config import DecoderConfig
from model.architecture.recurrence import Recurrence
from model.engine import Engine
from scoring.layout import ChunkWork, GroupWork, Head, Rows
from tests.model import engines
from tests.model.checkpoints import EVERY, sequences, tensors, write
from tests.model.engines import DType
from tests.model.references import SEED, huggingface
from tests.model.references.gates import FLOAT32_LOGPROBS, assert_bfloat16

pytestmark = pytest.mark.parity

SMALL = replace(EVERY["qwen35"], context=4_096, tied=True)
SHAPES = {
    "three of four": SMALL,
    "one of two": replace(EVERY["qwen35 in turn"], context=4_096, tied=True),
    "five of six, a head of keys": replace(
        SMALL, layers=6, recurrence=Recurrence((*(True,) * 5, False), 1, 4, 32, 24, 2)
    ),
}
SHAPES["a mixture"] = replace(EVERY["qwen35 moe"], context=4_096, tied=True)
PREFIXES = (1, 2, 61, 256, 257, 700, 2_000)
ITEMS = (0, 1, 2, 63, 64, 65, 300)
LABELS = (2, 19, 47, 88)
Loaded = Callable[[str, DType], tuple[DecoderConfig, Engine, Path]]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    @cache
    def loaded(shape: str, dtype: DType) -> tuple[DecoderConfig, Engine, Path]:
        config = SHAPES[shape]
        directory = write(tmp_path_factory.mktemp("model"), config, tensors(config, 21))
        return config, engines.load(directory, dtype, "prefill_extend"), directory

    return loaded


def behind(engine: Engine, prefix: np.ndarray, items: Sequence[np.ndarray], ends: Sequence[int]) -> np.ndarray:
    """Log-probabilities of all tokens behind items of which each sees a part of the prefix."""
    chunk = ChunkWork(0, Rows.pack(items, ends), tuple(range(engine.card.vocabulary)), Head.LOGPROBS)
    return engines.logprobs_of(engines.score(engine, [GroupWork("one", prefix, (chunk,))])[0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("length", PREFIXES)
def test_float32_logprobs_behind_a_prefix_are_huggingfaces(shape: str, length: int, load: Loaded) -> None:
    config, engine, directory = load(shape, "float32")
    prefix, *items = sequences(config, length, (length, *ITEMS, 3, 70))
    ends = [length] * len(ITEMS) + [max(1, length - 1)] * 2
    whole = [np.concatenate([prefix[:end], item]) for item, end in zip(items, ends, strict=True)]
    found = behind(engine, prefix, items, ends)
    assert np.abs(found - huggingface.logprobs(directory, whole, "float32")).max() <= FLOAT32_LOGPROBS


# Rounding chooses other experts somewhere in so many tokens, in HuggingFace as here: mixtures have short references.
@pytest.mark.parametrize("shape", [name for name, config in SHAPES.items() if config.mixture is None])
def test_bfloat16_scores_behind_a_prefix_are_as_close_as_huggingfaces_own(shape: str, load: Loaded) -> None:
    config, engine, directory = load(shape, "bfloat16")
    prefix, *items = sequences(config, 5, (400, *ITEMS, *ITEMS))
    whole = [np.concatenate([prefix, item]) for item in items]
    float32, bfloat16 = (huggingface.logprobs(directory, whole, dtype) for dtype in ("float32", "bfloat16"))
    assert_bfloat16(behind(engine, prefix, items, [400] * len(items)), float32, bfloat16, LABELS)


def test_the_text_part_of_a_model_that_takes_pictures_is_huggingfaces(tmp_path: Path) -> None:
    import torch  # type: ignore[import-not-found,unused-ignore]
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    config = SMALL
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": config.width}
    whole = Qwen3_5ForConditionalGeneration(
        Qwen3_5Config(text_config=config_fields(config), vision_config=vision, tie_word_embeddings=True)
    )
    whole.train(False)
    weights_of_text = {name.removeprefix("model."): torch.tensor(each) for name, each in tensors(config, SEED).items()}
    whole.model.language_model.load_state_dict(weights_of_text)
    whole.save_pretrained(tmp_path)
    rows = sequences(config, 15, (1, 3, 30, 200))
    ours = engines.logprobs(engines.load(tmp_path, "float32"), rows)
    with torch.inference_mode():
        logits = [whole(torch.tensor(row[None].astype(np.int64))).logits[0, -1] for row in rows]
    assert np.abs(ours - torch.log_softmax(torch.stack(logits), dim=-1).numpy()).max() <= FLOAT32_LOGPROBS
