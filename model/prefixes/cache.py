"""The prefix cache: keys and values of prefilled prefixes, in blocks of one pool on the device.

A prefix is found again by its key, so a query is computed once for many chunks and jobs. The most recently used
prefixes are kept, within a budget of blocks and for a limited time. A sequence that is being computed may take any
block that no pinned prefix has. The pool has a fixed size, with room for at least one sequence of the greatest length.

Urgent work may preempt other work between two steps. So several prefixes can be pinned and several sequences be under
computation at once. If the pool has no room for both, the urgent work takes the blocks of the work that it preempts.
That work then computes them again, which changes no bit. Only one thread at a time may call.
"""

from __future__ import annotations

import heapq
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import jax
import numpy as np
import structlog
from jax import Array

from model.forward import Forward
from model.lookahead import Lookahead
from model.prefixes.pool import PoolShape
from model.prefixes.prefill import Allocation, CachedPrefix, Prefill
from model.score_buffer import Floats
from scoring.layout import TokenIds

log = structlog.stdlib.get_logger("engine")


class Pin:
    """A prefix in use, which protects its blocks from eviction, except by work that preempts this work."""

    def __init__(self, cache: PrefixCache, key: str, tokens: TokenIds) -> None:
        self._cache = cache
        self.key = key
        self.tokens = tokens
        self.base: Pin | None = None  # another prefix in use, whose blocks this one may share
        self.prefix: CachedPrefix | None = None  # until it is obtained, and again once its blocks were taken
        self.hidden: Floats | None = None  # once it was obtained: the final hidden state of its last token, [width]

    def obtain(self) -> Iterator[int]:
        """Find the prefix in the cache, or prefill it. Yields the tokens that each step has computed.

        Its blocks may be taken again when it is obtained and the last tokens are yielded.
        """
        if self.found():
            return
        with self.prefill() as prefill:
            yield from prefill.steps()
            self.add(prefill.finished())
        if prefill.uncounted:
            yield prefill.uncounted

    def prefill(self) -> AbstractContextManager[Prefill]:
        """Begin to prefill it."""
        return self._cache.prefill(self.tokens)

    def found(self) -> bool:
        """Find the prefix in the cache. Returns whether it is there."""
        found = self._cache.find(self.key)
        if found is not None:
            self.prefix, self.hidden = found, found.hidden
        return found is not None

    def add(self, prefix: CachedPrefix) -> None:
        """Add the prefix to the cache."""
        self._cache.add(self.key, prefix)
        self.prefix, self.hidden = prefix, prefix.hidden

    def lose(self) -> None:
        """Protect its blocks no longer."""
        self.prefix = None


class BranchPin(Pin):
    """A prefix that is in use, and never in the cache: its blocks are released with the pin.

    base: another prefix in use, or None; common: how many of its first tokens are also those of this one.
    """

    def __init__(self, cache: PrefixCache, tokens: TokenIds, common: int, base: Pin | None) -> None:
        super().__init__(cache, "", tokens)
        self.base = base
        self._common = common

    def prefill(self) -> AbstractContextManager[Prefill]:
        """See :class:`Pin`."""
        return self._cache.prefill(self.tokens, self._common, self.base)

    def found(self) -> bool:
        """Return whether it was computed and not lost since."""
        return self.prefix is not None

    def add(self, prefix: CachedPrefix) -> None:
        """Keep the blocks until they are lost."""
        self.prefix, self.hidden = prefix, prefix.hidden

    def lose(self) -> None:
        """Release the blocks."""
        if self.prefix is not None:
            self._cache.release(self.prefix.blocks)
        self.prefix = None


class PrefixCache:
    """The blocks of the pool, and the prefixes that have them.

    timeout: a prefix is removed this many seconds after its last use.
    """

    def __init__(
        self,
        forward: Forward,
        shape: PoolShape,
        timeout: float,
        lookahead: Lookahead,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._forward = forward
        self._shape = shape
        self._free = list(range(shape.blocks))  # a heap: the lowest are used first, and others may never be touched
        self._timeout = timeout
        self._lookahead = lookahead
        self._clock = clock
        self._prefixes: OrderedDict[str, CachedPrefix] = OrderedDict()  # the least recently used first
        self._used_at: dict[str, float] = {}
        self._pins: list[Pin] = []
        self._prefills: list[tuple[Prefill, Pin | None]] = []  # under computation, and the prefixes that they share
        self._counts = dict.fromkeys(("prefills", "hits", "evictions", "expirations"), 0)

    def counts(self) -> dict[str, int]:
        """Return how many prefixes were added, found, removed for want of blocks, and removed after the timeout."""
        return self._counts.copy()

    @contextmanager
    def pinned(self, key: str, tokens: TokenIds) -> Iterator[Pin]:
        """Protect the blocks of a prefix while it is in use. Afterwards it is kept if the budget has room for it."""
        pin = Pin(self, key, tokens)
        self._pins.append(pin)
        try:
            yield pin
        finally:
            self._pins.remove(pin)
            if key in self._prefixes:
                self._touch(key)
            while self._used > self._shape.budget and self._evict():
                pass

    @contextmanager
    def branch(self, tokens: TokenIds, common: int, base: Pin | None) -> Iterator[BranchPin]:
        """Hold the blocks of a prefix of its own: see :class:`BranchPin`."""
        pin = BranchPin(self, tokens, common, base)
        self._pins.append(pin)
        try:
            yield pin
        finally:
            self._pins.remove(pin)
            pin.lose()

    @property
    def _used(self) -> int:
        """Blocks that are not free."""
        return self._shape.blocks - len(self._free)

    def find(self, key: str) -> CachedPrefix | None:
        """Return a prefix that is in the cache, and count the hit."""
        self._expire()
        prefix = self._prefixes.get(key)
        if prefix is not None:
            self._touch(key)
            self._counts["hits"] += 1
        return prefix

    def __contains__(self, key: str) -> bool:
        self._expire()
        return key in self._prefixes

    def add(self, key: str, prefix: CachedPrefix) -> None:
        """Make a prefix available under its key, which the caller has pinned."""
        # Preempting work may have added the same prefix while this one was prefilled. It has finished with it by now.
        self._remove(key)
        self._prefixes[key] = prefix
        self._touch(key)
        self._counts["prefills"] += 1

    def drop(self, key: str) -> None:
        """Remove a prefix that the caller has pinned, unless it is pinned by others, too."""
        if sum(pin.key == key and pin.prefix is not None for pin in self._pins) <= 1:
            self._remove(key)

    def release(self, blocks: tuple[int, ...]) -> None:
        """Take back blocks that belong to no prefix in the cache."""
        for block in blocks:
            heapq.heappush(self._free, block)

    @contextmanager
    def prefill(self, tokens: TokenIds, common: int = 0, pin: Pin | None = None, read: int = 1) -> Iterator[Prefill]:
        """Begin to prefill a sequence, at most as long as the context. Evicts prefixes to make room.

        common: how many of its first tokens are also those of the prefix pinned by ``pin``; whole steps of them are
        shared and not computed again. read: how many of its last tokens are read. Whoever finishes it has its blocks.
        """
        prefill = Prefill(
            self._forward,
            tokens,
            read,
            lambda: self._allocate(len(tokens), common, pin),
            self.release,
            self._lookahead,
        )
        begun = prefill, pin
        self._prefills.append(begun)
        try:
            yield prefill
        except BaseException:
            prefill.lose()
            raise
        finally:
            self._prefills.remove(begun)

    @property
    def budget_tokens(self) -> int:
        """Tokens of prefixes, padded to blocks, that can be in use together."""
        return self._shape.budget * self._forward.block_tokens

    def obtain(self, pins: Sequence[Pin]) -> Iterator[int]:
        """Find several pinned prefixes, or prefill them in steps that they share. Yields the tokens of each step.

        They have to fit into the budget together. Where blocks are taken from any of them, by preempting work or for
        another one of them, those that are not complete are prefilled one after another.
        """
        missing = [pin for pin in pins if not pin.found()]
        if len(missing) > 1:
            with ExitStack() as stack:
                prefills = [stack.enter_context(pin.prefill()) for pin in missing]
                yield from self._together(prefills)
                complete = [(pin, one) for pin, one in zip(missing, prefills, strict=True) if one.is_complete]
                finished = [(pin, prefill.finished()) for pin, prefill in complete]
                for prefill in prefills:
                    if not prefill.is_complete:
                        prefill.lose()
            for pin, prefix in finished:
                pin.add(prefix)
        for pin in pins:
            if pin.prefix is None:
                yield from pin.obtain()

    def _together(self, prefills: Sequence[Prefill]) -> Iterator[int]:
        """Compute several sequences in shared steps, until all are complete or their blocks are taken."""
        before: Array | None = None
        steps = self._forward.fill([piece for prefill in prefills for piece in prefill.pieces()])
        while not any(prefill.is_lost for prefill in prefills) and (step := next(steps, None)) is not None:
            computed = self._forward.run(step)
            for prefill in prefills:
                prefill.note(step, computed)
            jax.block_until_ready(before)  # type: ignore[no-untyped-call]
            before = computed.states
            yield computed.tokens

    def _allocate(self, tokens: int, common: int, pin: Pin | None) -> Allocation:
        """Take blocks for a sequence whose first ``common`` tokens are those of a pinned prefix."""
        size, step = self._forward.block_tokens, self._forward.shapes.step_tokens
        blocks = -(-tokens // size)
        shared = None if pin is None else pin.prefix
        # A sequence is cut into steps at the same places whatever it shares, so its bits are the same.
        reused = 0 if shared is None else common // step * step // size
        if not self._make_room(blocks - reused):
            # There is no room for both. The pinned prefix goes; who needs it next prefills it again.
            if pin is not None and shared is not None:
                self._lose(pin)
            shared, reused = None, 0
            if not self._make_room(blocks):
                self._take_from_preempted()
                self._make_room(blocks)
        table = np.zeros(self._shape.longest, np.int32)
        if shared is not None:
            table[:reused] = shared.table[:reused]
        own = tuple(heapq.heappop(self._free) for _ in range(blocks - reused))
        table[reused:blocks] = own
        return Allocation(own, table, reused * size)

    def _make_room(self, blocks: int) -> bool:
        """Evict prefixes that would take the used blocks past the budget. Returns whether ``blocks`` are free."""
        while self._used + blocks > self._shape.budget and self._evict():
            pass
        return len(self._free) >= blocks

    def _lose(self, pin: Pin) -> None:
        """End the protection of the blocks of a prefix, and of all prefixes that share them."""
        pin.lose()
        for other in self._pins:
            if other.base is pin:
                self._lose(other)
        for prefill, base in self._prefills:
            if base is pin:
                prefill.lose()

    def _take_from_preempted(self) -> None:
        """Release the blocks of all work that was preempted: pinned prefixes, and sequences under computation."""
        for pin in self._pins:
            pin.lose()
        for prefill, _ in self._prefills:
            prefill.lose()
        while self._evict():
            pass
        log.info("preempting work takes the blocks of prefixes", blocks=len(self._free))

    def _evict(self) -> bool:
        """Remove the least recently used prefix that is not pinned. Returns whether there was one."""
        pinned = {pin.key for pin in self._pins if pin.prefix is not None}
        oldest = next((key for key in self._prefixes if key not in pinned), None)
        if oldest is not None:
            self._remove(oldest)
            self._counts["evictions"] += 1
        return oldest is not None

    def _touch(self, key: str) -> None:
        self._prefixes.move_to_end(key)
        self._used_at[key] = self._clock()

    def _expire(self) -> None:
        pinned = {pin.key for pin in self._pins if pin.prefix is not None}
        oldest = self._clock() - self._timeout
        for key in [key for key, used_at in self._used_at.items() if used_at < oldest and key not in pinned]:
            self._remove(key)
            self._counts["expirations"] += 1

    def _remove(self, key: str) -> None:
        if key in self._prefixes:
            del self._used_at[key]
            self.release(self._prefixes.pop(key).blocks)
