"""Train the demonstration's model: ``python -m demonstration.train``.

The text, its order and the initial weights follow from one seed. The training has four stages, and the model is saved
after each.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array
from tokenizers import Tokenizer

from demonstration.corpus import DECISIONS, LOOKING_UP, MANY_OPTIONS, TEXTS, Batch, Mixture, batches, training_examples
from demonstration.decisions import save_decisions
from demonstration.progress import accuracies
from demonstration.saving import save
from demonstration.tokenizer import VOCABULARY, save_tokenizer, train_tokenizer
from demonstration.whole_sequences import hidden_states
from model.architecture.config import DecoderConfig
from model.architecture.decoder import Decoder
from model.architecture.mlp import MLP
from model.architecture.rope import Rope
from model.architecture.weights import load

MODEL = Path(__file__).parent / "model"
CONFIG = DecoderConfig(
    vocabulary=VOCABULARY,
    width=128,
    layers=4,
    query_heads=4,
    kv_heads=2,
    head_dim=32,
    mlp_width=384,
    context=1024,
    rope=Rope(10_000.0),
    norm_epsilon=1e-6,
    tied=True,
)
_WARM_UP_STEPS = 50
_TEXT_WEIGHT = 0.1
_MUON_RATE = 0.02
_ADAM_RATE = 0.003
_REPORT_STEPS = 200
_INITIAL_DEVIATION = 0.02
"""Standard deviation of the weights of a new :class:`Decoder`."""


@dataclass(frozen=True)
class Stage:
    """A part of the training, whose rates rise and fall by themselves."""

    mixture: Mixture
    steps: int
    peak: float = 1.0  # of the rates, as a share of those of the first stage


STAGES = (
    Stage(TEXTS, 2_000),
    Stage(LOOKING_UP, 500),
    Stage(DECISIONS, 1_500, peak=0.5),
    Stage(MANY_OPTIONS, 500, peak=0.3),
)


@dataclass(frozen=True)
class Recipe:
    """The settings of a training run."""

    seed: int = 0
    stages: Sequence[Stage] = STAGES
    tokens: int = 2_048  # of a step, padding included


def loss(decoder: Decoder, batch: Batch) -> tuple[Array, Array]:
    """Return the cross entropy to be minimised, and that of the answers alone: float32 scalars."""
    hidden = hidden_states(decoder.model, batch.tokens)  # [B, L, width]
    chosen = jnp.take_along_axis(hidden, batch.positions[..., None], axis=1)  # [B, T, width]
    logits = chosen @ decoder.head_kernel()  # [B, T, vocabulary]
    surprise = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
    answers = (surprise * batch.is_answer).sum() / batch.is_answer.sum()
    text = (surprise * batch.is_text).sum() / batch.is_text.sum()
    return answers + _TEXT_WEIGHT * text, answers


def optimizer(stage: Stage) -> optax.GradientTransformation:
    """Return Muon for the stacked kernels and Adam for the others, with warm-up and a cosine decay to nearly zero."""

    def rate(peak: float) -> optax.Schedule:
        peak *= stage.peak
        return optax.warmup_cosine_decay_schedule(0.0, peak, _WARM_UP_STEPS, stage.steps, peak * 0.02)

    def kernels(params: nnx.State) -> nnx.State:
        stacked = optax.contrib.MuonDimensionNumbers(reduction_axis=(1,), output_axis=(2,))
        return jax.tree.map(lambda leaf: stacked if leaf.ndim == 3 else None, params)

    muon = optax.contrib.muon(
        rate(_MUON_RATE),
        adam_learning_rate=rate(_ADAM_RATE),
        muon_weight_dimension_numbers=kernels,
        weight_decay=0.01,
    )
    return optax.chain(optax.clip_by_global_norm(1.0), muon)


def start(seed: int) -> Decoder:
    """Return a random decoder in which the first query head of each group equals its key head.

    So attention begins by matching equal tokens, which is half of comparing a query with a document. From a random
    start, training finds that late.
    """
    decoder = Decoder(CONFIG, rngs=nnx.Rngs(seed))
    body = decoder.model.layers
    assert isinstance(body.mlp, MLP)
    scale = 1.0 / (_INITIAL_DEVIATION * CONFIG.width**0.5)
    depth = (2 * CONFIG.layers) ** -0.5
    for linear, factor in (
        (body.self_attn.q_proj, scale),
        (body.self_attn.k_proj, scale),
        (body.self_attn.v_proj, scale),
        (body.self_attn.o_proj, scale * depth),
        (body.mlp.gate_proj, scale),
        (body.mlp.up_proj, scale),
        (body.mlp.down_proj, scale * depth * (CONFIG.width / CONFIG.mlp_width) ** 0.5),
    ):
        linear.weight.set_value(linear.weight[...] * factor)
    layers, width, heads, size = CONFIG.layers, CONFIG.width, CONFIG.query_heads, CONFIG.head_dim
    shared = heads // CONFIG.kv_heads
    queries = body.self_attn.q_proj.weight[...].reshape(layers, width, CONFIG.kv_heads, shared, size)
    keys = body.self_attn.k_proj.weight[...].reshape(layers, width, CONFIG.kv_heads, size)
    body.self_attn.q_proj.weight.set_value(queries.at[:, :, :, 0].set(keys).reshape(layers, width, heads * size))
    return decoder


def train(stage: Stage, recipe: Recipe, decoder: Decoder, tokenizer: Tokenizer) -> Decoder:
    """Return the decoder, in float32, after a stage of training."""
    graph, params = nnx.split(decoder, nnx.Param)
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    rule = optimizer(stage)
    state = rule.init(params)

    @jax.jit
    def step(params: nnx.State, state: optax.OptState, batch: Batch) -> tuple[nnx.State, optax.OptState, Array]:
        (_, answers), gradient = jax.value_and_grad(lambda p: loss(nnx.merge(graph, p), batch), has_aux=True)(params)
        updates, state = rule.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, answers

    began = time.monotonic()
    recent: list[Array] = []
    given = batches(tokenizer, recipe.tokens, recipe.seed, stage.mixture)
    for number, batch in enumerate(itertools.islice(given, stage.steps), 1):
        params, state, answers = step(params, state, batch)
        recent.append(answers)
        if number % _REPORT_STEPS == 0 or number == stage.steps:
            right = accuracies(nnx.merge(graph, params), tokenizer, seed=recipe.seed)
            told = ", ".join(f"{name} {share:.1%}" for name, share in right.items())
            mean = float(jnp.stack(recent).mean())
            print(f"step {number}, {time.monotonic() - began:.0f} s, loss {mean:.3f}; held out: {told}", flush=True)
            recent.clear()
    return nnx.merge(graph, params)


def write(decoder: Decoder, tokenizer: Tokenizer, directory: Path) -> None:
    """Save the model, in bfloat16, its tokenizer and how it is asked for decisions as a HuggingFace checkpoint."""
    graph, params = nnx.split(decoder, nnx.Param)
    save(nnx.merge(graph, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)), directory)
    save_tokenizer(tokenizer, directory, CONFIG.context)
    save_decisions(directory)


def main() -> None:
    """Train the tokenizer and the model. After each stage the model is written, and the next one begins from it."""
    arguments = argparse.ArgumentParser(description="Train the demonstration's model.")
    arguments.add_argument("--seed", type=int, default=Recipe.seed)
    arguments.add_argument("--directory", type=Path, default=MODEL)
    arguments.add_argument(
        "--begin-at", type=int, default=1, help="the first stage to run, from the model in the directory"
    )
    given = arguments.parse_args()
    recipe = Recipe(seed=given.seed)
    tokenizer = train_tokenizer(training_examples(recipe.seed))
    decoder = start(recipe.seed)
    for number, stage in enumerate(recipe.stages, 1):
        if number < given.begin_at:
            continue
        if number > 1:
            decoder, _ = load(given.directory, CONFIG, jnp.float32)
        print(f"stage {number}", flush=True)
        write(train(stage, recipe, decoder, tokenizer), tokenizer, given.directory)


if __name__ == "__main__":
    main()
