"""The engine takes groups of rows and returns the scores of their labels, by the algorithm that suits each row.

Rows of different requests share steps. In ``serial`` and ``prefill_extend``, the bits of a row's scores depend on its
own tokens alone: its prefix and length select the algorithm and the programs, and neither its place nor the other rows
change a bit (``tests/model/isolation/test_row_independence.py``). In packed sequences, other rows change the rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from checkpoints.adapter_folder import AdapterFolder
from checkpoints.card import ModelCard
from checkpoints.files import read_config, read_decision_head
from model.adapters import Adapters
from model.architecture import weights
from model.architecture.config import DecoderConfig
from model.architecture.configuration_reader import ConfigurationReader, UnsupportedModelError
from model.architecture.decoder import Decoder
from model.architecture.stored.reading import encoding_of
from model.attention.contract import Attention
from model.buckets import Buckets
from model.checks.known_answer import ModelChecks
from model.chips.loading import DividedParameter, bytes_of_a_chip
from model.chips.shares import Shares
from model.executable_table import ProgramShelf
from model.forward import Forward
from model.known_states import KnownStates
from model.phases import OnPhase
from model.platform_forward import make_forward
from model.platforms import Platform
from model.prefixes.cache import PrefixCache
from model.prefixes.pool import PoolShape, bytes_of_block
from model.running.extending import Extender
from model.running.head_runner import HeadRunner
from model.running.lookahead import Lookahead
from model.running.pipeline import Pipeline
from model.score_buffer import EngineError, ScoreBuffer
from model.work.ahead import PlanAhead
from model.work.dispatching import Steps
from model.work.planned import PlannedGroup, WorkPlanner
from scoring.layout import AdapterError, GroupWork, ScoredChunk
from scoring.planning.algorithms import AlgorithmSetting, Choice, Policy
from scoring.planning.calibration import Calibration, Stopwatch
from scoring.planning.cut import Cut
from scoring.planning.estimates import NOTHING, Estimator
from scoring.planning.planner import Planner
from settings.engine import EngineSettings

COMPILING_THREADS = 2  # the compiler runs outside Python's global lock, mostly on one core
SAMPLED_GROUPS = 8  # groups of a call whose time is estimated at most, to compare it with the measured time

log = structlog.stdlib.get_logger("engine")


class Engine:
    """A loaded model on a device. One thread at a time may score; any thread may compile.

    algorithm: as the settings ask for it; attention: None for the platform's own; shelf: of the programs of several
    engines.
    """

    def __init__(
        self,
        decoder: Decoder,
        settings: EngineSettings,
        card: ModelCard,
        weights_fingerprint: str,
        platform: Platform,
        algorithm: AlgorithmSetting = "auto",
        attention: Attention | None = None,
        adapters: AdapterFolder | None = None,
        shelf: ProgramShelf | None = None,
    ) -> None:
        step_tokens = platform.step_tokens(settings.step_tokens)
        buckets = Buckets.of(
            step_tokens,
            one_size=not platform.has_row_floor(step_tokens),
            first=settings.multi_item_warmup_chunk_sizes,
            max_rows=settings.multi_item_extend_batch_size,
            packed=settings.multi_item_precompile_buckets,
            max_packed_tokens=settings.max_multi_item_seq_len,
            block_tokens=platform.block_tokens(step_tokens),
        )
        dtype = decoder.head_kernel().dtype
        chips = platform.chips
        weight_bytes = weights.size_in_bytes(decoder) if chips is None else bytes_of_a_chip(decoder, chips)
        memory = None if platform.memory is None else platform.memory - weight_bytes
        config = decoder.config if chips is None else Shares.of(decoder.config, chips.count).own
        head_dim = platform.pool_head_dim(dtype, config.head_dim, plain=config.has_plain_attention)
        pool = PoolShape.of(
            config,
            card.context_length,
            dtype.itemsize,
            buckets.block_tokens,
            settings.prefix_cache_bytes,
            memory,
            head_dim,
        )
        of_block = bytes_of_block(config, dtype.itemsize, buckets.block_tokens, head_dim)
        self.nbytes = weight_bytes + (pool.blocks if memory is not None else pool.budget) * of_block
        """What weights and prefixes take of a device, or of the host's memory if nobody scores long sequences."""
        self._shelf = shelf or ProgramShelf()
        self._forward, self._known_answers = make_forward(decoder, platform, buckets, pool, attention, self._shelf)
        self._adapters: Adapters | None = None
        if adapters is not None:
            decoders = self._forward.decoders
            base = decoders.base.decoder.shared(decoder)
            self._adapters = Adapters(adapters, base, weights_fingerprint, decoders, self.check_model)
        self.card = card
        self.weights_fingerprint = weights_fingerprint
        self.dtype: str = dtype.name
        self.device = str(platform)
        self.computed_tokens = 0  # by all steps so far, padding included
        self._width = decoder.config.width
        timeout = settings.multi_item_prefill_extend_cache_timeout
        self._lookahead = Lookahead(gives_way=not platform.whole_steps)
        self.prefix_cache = PrefixCache(self._forward, pool, timeout)
        self._keeps_prefixes = settings.enable_scoring_cache
        self._extender = Extender(self._forward, self.prefix_cache)
        policy = Policy(
            algorithm=algorithm,
            mask=settings.multi_item_mask_impl,
            prefill_extend_enabled=settings.multi_item_enable_prefill_extend,
            min_prefix_tokens=settings.multi_item_algorithm_query_threshold,
            max_packed_tokens=settings.max_multi_item_seq_len,
            batch_invariant=settings.batch_invariant,
            min_extended_rows=settings.multi_item_algorithm_items_threshold,
            max_dense_tokens=settings.multi_item_segment_fallback_threshold,
            may_pack=decoder.config.recurrence is None,
        )
        self.planner = Planner(policy, Estimator(decoder.config.size, platform.rates, self._forward.shapes))
        self._work_planner = WorkPlanner(self.planner, self.prefix_cache, card.context_length)
        self._pipeline: Pipeline | None = None  # of the work that is being computed
        self._planned_step = step_tokens if platform.whole_steps else None  # see PlanAhead
        self._calibration = Calibration()
        self._is_compiling = False
        self._clock = time.perf_counter

    @classmethod
    def load(
        cls,
        directory: Path,
        settings: EngineSettings,
        card: ModelCard,
        platform: Platform,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        algorithm: AlgorithmSetting = "auto",
        adapter: Path | None = None,
        adapters: AdapterFolder | None = None,
        shelf: ProgramShelf | None = None,
    ) -> Engine:
        """Load the checkpoint in ``directory``, with a LoRA adapter merged into it if there is one.

        adapters: those that groups may name, which are not merged.

        ``on_progress(done, total)`` is called with the bytes that are read. Raises
        :class:`checkpoints.files.CheckpointError`:
        :class:`model.architecture.configuration_reader.UnsupportedModelError` for the configuration,
        :class:`model.architecture.stored.tensors.WeightsError` for the weights.
        """
        fields = read_config(directory)
        head = read_decision_head(directory)
        config = DecoderConfig.from_huggingface(fields, head)
        if adapter is None and head is not None and head.adapter is not None:
            adapter = directory / head.adapter
        dtype, chips = platform.serving_dtype(settings.dtype), platform.chips
        if config.recurrence is not None:
            _refuse_what_recurrent_layers_can_not(algorithm)
        if chips is not None and adapters is not None:
            raise UnsupportedModelError(
                "SCORELINE_ADAPTER_FOLDER is not implemented for a worker of several devices: SCORELINE_ADAPTERS "
                "merges one adapter"
            )
        computed: DecoderConfig = config
        destination: weights.MakesDestination = weights.InHostMemory
        if chips is not None:
            shares = Shares.of(config, chips.count)
            computed, destination = shares.whole, partial(DividedParameter, chips, shares)
        decoder, fingerprint = weights.load(
            directory,
            config,
            dtype,
            on_progress,
            tied_as_rows=platform.tied_as_rows,
            computed=computed,
            encoding=encoding_of(ConfigurationReader(fields)),
            adapter=adapter,
            destination=destination,
        )
        return cls(decoder, settings, card, fingerprint, platform, algorithm, adapters=adapters, shelf=shelf)

    def warm_up(self, on_progress: Callable[[int, int, str], None]) -> None:
        """Compile the core set of programs, and check that they compute the model. To be called before any scoring.

        ``on_progress(done, total, program)`` is called after each program; an error that it raises ends the warm-up.
        Raises :class:`model.checks.known_answer.KnownAnswerError`, as does any later call that compiles a program
        whose results are wrong.
        """
        self._compile(self._forward.core(), COMPILING_THREADS, on_progress)
        # The same weights in the same programs, when a model comes back, give what they gave before.
        model = self._forward.decoders.base.decoder.config, self._forward.shapes, self.weights_fingerprint
        if model not in self._shelf.checked:
            self.check_model()
            self._shelf.checked.add(model)
        if self._adapters is not None:
            self._adapters.load_all()

    def warm_up_rest(self, on_progress: Callable[[int, int, str], None]) -> None:
        """Compile the rest of the declared programs, one at a time. Scoring may go on meanwhile."""
        policy = self.planner.policy
        keys = self._forward.rest(packed=policy.may_use_segments, dense=policy.may_use_dense_mask)
        self._is_compiling = True
        try:
            self._compile(keys, 1, on_progress)
        finally:
            # Beside the compiler, work takes longer than it will. That holds as well for work that has begun beside it
            # and still goes on, which is compared in the calibration that it began with.
            self._calibration = Calibration()
            self._is_compiling = False

    def _compile(self, keys: Sequence[Hashable], threads: int, on_progress: Callable[[int, int, str], None]) -> None:
        pool = ThreadPoolExecutor(threads)
        try:
            compiling = {pool.submit(self._forward.compile, key): key for key in keys}
            for done, future in enumerate(as_completed(compiling), start=1):
                future.result()
                on_progress(done, len(keys), str(compiling[future]))
        finally:
            pool.shutdown(cancel_futures=True)

    def check_model(self, checks: ModelChecks[Any] | None = None, adapter: str | None = None) -> None:
        """Score known prompts with and without a prefix in the pool, and compare both with NumPy.

        adapter: the key of one to score them with, and checks: those of its programs. Raises
        :class:`model.checks.known_answer.KnownAnswerError`.
        """
        checks = checks or self._known_answers
        known = checks.prompts(self.card.context_length)
        companies = [
            [replace(group, owner=adapter or group.owner, adapter=adapter) for group in groups]
            for groups in known.companies
        ]
        states = KnownStates(self._extender, self.prefix_cache, self._width, self._forward.shapes.step_tokens)
        found, read = states.by_algorithm(companies), states.everywhere(companies)
        checks.check_model(known, found, read, same_bits=self.planner.policy.batch_invariant)

    def score(
        self, groups: Sequence[GroupWork], on_step: Callable[[], None], on_phase: OnPhase | None = None
    ) -> Iterator[ScoredChunk]:
        """Score every row of every chunk. Each chunk is yielded once its last row is scored, in any order.

        ``on_step`` is called after every step on the device, behind the chunks that the step has finished. It may raise
        an error to end the work, and it may call :meth:`score` for other work, which changes no bit of any score.
        ``on_phase`` is called with each part of the work: see :data:`model.phases.OnPhase`.
        Raises :class:`EngineError` for a sequence that is empty or longer than the context, and for a score that is NaN
        or +inf; :class:`scoring.layout.AdapterError` for an adapter that can't be served.
        """
        named = dict.fromkeys(group.adapter for group in groups if group.adapter is not None)
        if not named:
            yield from self._score(groups, on_step, on_phase)
            return
        if self._adapters is None:
            raise AdapterError("this worker serves no adapters: set SCORELINE_ADAPTER_FOLDER")
        with self._adapters.used(named) as found:
            used = {chunk.id: found[name].used for group in groups if (name := group.adapter) for chunk in group.chunks}
            keyed = [group if group.adapter is None else found[group.adapter].keyed(group) for group in groups]
            for scored in self._score(keyed, on_step, on_phase):
                yield replace(scored, adapter=used.get(scored.id))

    def _score(
        self, groups: Sequence[GroupWork], on_step: Callable[[], None], on_phase: OnPhase | None
    ) -> Iterator[ScoredChunk]:
        """Do the same for groups whose adapters are named by their keys."""
        calibration = self._calibration
        buffers = [(group, list(map(ScoreBuffer.of, group.chunks))) for group in groups]
        yield from (buffer.scored() for _, of_group in buffers for buffer in of_group if not buffer.missing)
        ahead = PlanAhead(self._work_planner, buffers, self._planned_step)
        stopwatch = Stopwatch(self._clock)
        computed, shared_before = 0, self.prefix_cache.shared_tokens
        try:
            with self._lookahead.working():
                for event in stopwatch.timed(self._run(ahead, on_phase)):
                    if isinstance(event, ScoredChunk):
                        yield event
                    else:
                        computed += event
                        self.computed_tokens += event
                        on_step()
        except EngineError:
            # A score was no number, and so may be what a sequence has left in a block that another one takes.
            self.prefix_cache.clean()
            raise
        finally:
            if not self._keeps_prefixes:
                self.prefix_cache.clear()
            # Behind the work, so that nobody waits for the lines.
            _log_choices(ahead.choices)
        shared = self.prefix_cache.shared_tokens > shared_before or len(ahead.cuts) > len(groups)
        estimated = self._calibrate(calibration, ahead.cuts, computed, stopwatch.seconds, shared=shared)
        log.info(
            "computed",
            tokens=computed,
            seconds=round(stopwatch.seconds, 3),
            estimated_seconds=None if estimated is None else round(estimated, 3),
            estimate_ratio=round(self.estimate_ratio, 3),
            prefixes=self.prefix_cache.counts(),
        )

    def cut(self, group: GroupWork, buffers: Sequence[ScoreBuffer]) -> Cut:
        """Return how chunks of one kind of a group would be computed."""
        return self._work_planner.cut(group, buffers)

    @property
    def forward(self) -> Forward:
        """The model on its device, whose programs may also be compiled without being called."""
        return self._forward

    @property
    def runs_ahead(self) -> bool:
        """Whether its device would wait while more work is claimed. A CPU that does other things computes less."""
        return self._planned_step is not None

    @property
    def estimate_ratio(self) -> float:
        """Measured over estimated seconds of recent work: see :class:`scoring.planning.calibration.Calibration`."""
        return self._calibration.ratio

    @property
    def measured_estimate_ratio(self) -> float | None:
        """That ratio; None before enough work was compared, and while programs are compiled beside it."""
        return None if self._is_compiling else self._calibration.measured_ratio

    def _calibrate(
        self, calibration: Calibration, plans: Sequence[PlannedGroup], tokens: int, seconds: float, *, shared: bool
    ) -> float | None:
        """Compare finished work with its estimate, if that is due. Returns the estimated seconds, None without one.

        At most :data:`SAMPLED_GROUPS` groups are estimated, as if they shared nothing with one another. shared: whether
        they did. Then, or if there are more groups, the estimate is in proportion to the computed tokens.
        """
        if not tokens or not calibration.is_due(seconds):
            return None
        sample = plans[:: -(-len(plans) // SAMPLED_GROUPS)]
        estimate = sum((planned.estimate(self.planner.estimator) for planned in sample), NOTHING)
        if not estimate.tokens:  # for example, a prefix that was cached when the work was planned, and evicted since
            return None
        share = 1.0 if len(sample) == len(plans) and not shared else estimate.tokens / tokens
        by_stored_rates = estimate.seconds / share
        estimated = by_stored_rates * calibration.ratio
        calibration.compare(by_stored_rates, seconds)
        return estimated

    def _run(self, ahead: PlanAhead, on_phase: OnPhase | None) -> Iterator[ScoredChunk | int]:
        """Yield each chunk once it is scored, and behind each step the number of tokens that it computed.

        Steps, and heads behind them, are dispatched before earlier ones are awaited, as far as the lookahead says.
        """
        steps = Steps(self._forward, self._extender, self.planner.policy.max_packed_tokens, on_phase)
        dispatched = (step for parts in ahead.slices() for step in steps.of(parts))
        pipeline = Pipeline(dispatched, HeadRunner(self._forward.heads), ahead.go_on, on_phase)
        preempted, self._pipeline = self._pipeline, pipeline
        try:
            while pipeline.dispatch():
                while pipeline.steps > self._lookahead.steps():
                    yield from pipeline.finish_first()
            if preempted is not None:
                preempted.dispatch_for_later(self._lookahead.steps_of_preempted())
            while pipeline.is_running:
                yield from pipeline.finish_first()
        finally:
            self._pipeline = preempted


def _refuse_what_recurrent_layers_can_not(algorithm: AlgorithmSetting) -> None:
    if algorithm == "packed":
        raise UnsupportedModelError(
            "SCORELINE_MULTI_ITEM_ALGORITHM=packed is not implemented for recurrent layers: one state would go through "
            "all items of a packed sequence"
        )


def _log_choices(choices: Mapping[Choice, Sequence[int]]) -> None:
    """Log how groups were computed; choices: the items of each group, by how they were."""
    for choice, of_groups in choices.items():
        tell, event = (log.warning, "fallback") if choice.fallback else (log.info, "planned")
        tell(event, algorithm=choice.algorithm, reason=choice.reason, groups=len(of_groups), rows=sum(of_groups))
