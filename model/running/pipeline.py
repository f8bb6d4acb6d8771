"""The steps of one piece of work that are dispatched, and the heads behind them, in the order of the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from model.phases import OnPhase, timed, watched
from model.running.extending import StepOutput
from model.running.head_runner import HeadRunner, RunningHeads
from model.states import Computed
from scoring.layout import ScoredChunk


class Pipeline:
    """Dispatches steps, and has heads run behind them, before earlier ones are awaited.

    steps: dispatches a step each, and yields it with the phase that it is in. meanwhile: called once a step is
    dispatched.
    """

    def __init__(
        self,
        steps: Iterator[tuple[str, StepOutput]],
        heads: HeadRunner,
        meanwhile: Callable[[], None],
        on_phase: OnPhase | None,
    ) -> None:
        self.steps = 0
        """Steps that are dispatched and not awaited."""
        self._source = steps
        self._heads = heads
        self._meanwhile = meanwhile
        self._on_phase = on_phase
        self._running = deque[tuple[str, Computed, RunningHeads | None]]()
        self._error: Exception | None = None

    def dispatch(self) -> bool:
        """Dispatch the next step, and the heads that are due. Returns whether there was a step."""
        if self._error is not None:
            raise self._error
        for phase, (states, computed) in self._source:
            self._running.append((phase, computed, self._heads.add(states, computed.tokens)))
            if computed.states is not None:  # else it was known before, or computed without a pause
                self.steps += 1
                self._meanwhile()
                return True
        last = self._heads.flush()
        if last is not None:
            # The last step had no heads run: none would be left for these.
            phase, computed, _ = self._running.pop() if self._running else ("heads", Computed(None, 0), None)
            self._running.append((phase, computed, last))
        return False

    def dispatch_for_later(self, steps: int) -> None:
        """Dispatch some steps while other work, which preempts this work, is awaited. An error waits, too."""
        try:
            while steps and self.dispatch():
                steps -= 1
        except Exception as error:
            self._error = error

    @property
    def is_running(self) -> bool:
        """Whether there is something to wait for."""
        return bool(self._running)

    def finish_first(self) -> Iterator[ScoredChunk | int]:
        """Wait for the first step that is running. Yields the chunks that it finishes, and then the tokens of it."""
        phase, computed, heads = self._running.popleft()
        self.steps -= computed.states is not None
        with timed(phase, self._on_phase):
            computed.wait()
        if heads is not None:
            yield from watched(heads.finish(), lambda _: "heads", self._on_phase)
        if computed.tokens:
            yield computed.tokens
