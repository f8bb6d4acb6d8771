"""Back-pressure: refuse work that could not be scored in time, with a ``Retry-After``.

The estimated wait is the work that is claimed before, in tokens to compute, divided by the measured tokens per second
of the live workers. Tenants have fair shares of the workers, so each waits for its own backlog, and not for that of
another tenant. Because both numbers are estimates, a call is only refused if other calls have actually been waiting. If
no work waits, no work is refused.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

from api.caching import ThrottledValue
from api.callers.compatibility import Compatibility, CompatibilityCheck
from api.callers.storage_quota import StorageQuota
from api.threads import Threads
from checkpoints.card import ModelCard
from jobs.queue.idempotency import is_known
from jobs.queue.statistics import WaitingWork, count_waiting, has_more_than
from jobs.store.database import Database, StorageUnavailable
from jobs.store.records import Origin, Submission
from jobs.store.tables import COUNTED_BYTES
from judgement.applying import read_rules
from scoring.error_codes import ErrorCode, RequestError
from scoring.quoting import quote
from scoring.work import work_of_group
from settings.api import ApiSettings

GOOD_FOR_SECONDS, MAX_GOOD_FOR_SECONDS = 1.0, 30.0
"""How long requests share a count of the waiting work. If a count that includes jobs takes long, it is kept longer."""

COUNTED_CALLS = 20_000
COUNTED_JOBS = 500_000
"""The most chunks that are counted, of interactive work and of all work. The chunks after them are ignored."""

ALWAYS_SHARE, MOST_ALWAYS = 1 / 100, 10_000
"""While too many chunks wait, the jobs of a tenant are accepted all the same until it has more than this share of them
waiting. This bounds what all tenants but those with most of the chunks can add, and what it costs to count."""

WAITED_SECONDS = 1.0
"""A call is refused only if another call has been waiting for this long: one of its own tenant, if one waits.
Before that, the waiting calls are a burst, even if the workers' pace in quieter times suggests a backlog."""

RETRY_SECONDS = (1.0, 60.0)
"""The least and the greatest ``Retry-After``, before jitter."""
JITTER = 0.5
"""The largest share that is added to a ``Retry-After``, so that refused clients do not all return at the same time."""


class Admission:
    """Refuses work that can't be accepted now.

    Calls and jobs are admitted on the event loop, mostly by what is known already. Uploads are admitted in threads.
    Every method raises RequestError OVERLOADED, MODEL_UNAVAILABLE or QUOTA_EXCEEDED to refuse, and StorageUnavailable.
    """

    def __init__(
        self,
        database: Database,
        threads: Threads,
        card: ModelCard,
        compatibility: CompatibilityCheck,
        settings: ApiSettings,
        storage_quota: StorageQuota,
        too_many: ThrottledValue[bool],
    ) -> None:
        """too_many: what :func:`too_many_chunks` returns, which the admissions of all models share."""
        self._database = database
        self._model = card.name
        self._threads = threads
        self._compatibility = compatibility
        self._settings = settings
        self._storage_quota = storage_quota
        self._looking: asyncio.Task[None] | None = None
        self._calls = ThrottledValue(
            lambda: count_waiting(database, card, COUNTED_CALLS, interactive_only=True), GOOD_FOR_SECONDS
        )
        self._jobs = ThrottledValue(
            lambda: count_waiting(database, card, COUNTED_JOBS, interactive_only=False),
            GOOD_FOR_SECONDS,
            MAX_GOOD_FOR_SECONDS,
        )
        self._too_many = too_many

    async def admit_call(self, submission: Submission, timeout: float) -> None:
        """Refuse a call that can probably not be scored within ``timeout`` seconds, or stored."""
        await self._take_storage(submission)
        compatibility, waiting = self._compatibility.recent(waits=False), self._calls.fresh()
        if compatibility is not None and waiting is not None:
            try:
                _check_weights(submission, compatibility)
                _check_time(submission, timeout, compatibility, waiting)
            except RequestError:
                pass  # a refusal rests on a query of its own
            else:
                self._look_ahead()
                return
        await self._unless_known(submission, lambda: self._check_call(submission, timeout))

    def _look_ahead(self) -> None:
        """Have what calls are admitted by looked up in the background, once for all of them, before it is too old."""
        if self._looking is None and (self._calls.is_due() or self._compatibility.is_due()):
            self._looking = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        try:
            # If the database is away, those who need it are told so when they ask for themselves.
            with suppress(StorageUnavailable):
                await self._threads.sql(lambda: (self._compatibility.current(), self._calls.refresh()))
        finally:
            self._looking = None

    async def admit_job(self, submission: Submission) -> None:
        """Refuse a job if there is no room for it."""
        await self._take_storage(submission)
        compatibility, is_full = self._compatibility.recent(waits=True), self._too_many.fresh()
        has_artefact = submission.options.artefact is not None  # so that the weights of the workers are looked at
        is_limited = self._settings.max_waiting_seconds is not None
        if compatibility is None or is_full is not False or is_limited or has_artefact:
            await self._unless_known(submission, lambda: self._check_whole_job(submission))

    def waiting_work(self) -> WaitingWork:
        """Return the work that waits, as far as it is counted. Blocks on the database."""
        return self._jobs.get()

    def refuse_other_weights(self, submission: Submission) -> None:
        """Refuse a request whose artefact was made for other weights than those of the live workers.

        Blocks on the database. Raises RequestError INVALID_ARTEFACT, StorageUnavailable.
        """
        if submission.options.artefact is not None:
            _check_weights(submission, self._compatibility.shared())

    def admit_upload(self, submission: Submission) -> None:
        """Refuse a job if there is no room for it. In a thread; of an upload, when its first items have arrived.

        submission: the job, of an upload without its items, whose number is not known yet.
        """
        compatibility = self._compatibility.check(waits=True)
        self._check_room(submission.tenant)
        max_seconds = self._settings.max_waiting_seconds
        if max_seconds is None:
            return
        seconds = _estimated_seconds(self._jobs.get(), compatibility, submission, max_seconds)
        if seconds > max_seconds:
            message = f"jobs wait about {seconds:.0f} s now, and {max_seconds:g} s at most"
            raise _overloaded(message, seconds - max_seconds)

    def admit_part(self, tenant: str) -> None:
        """Refuse a further part of an upload if there is no room for it. Others may have filled the queue meanwhile."""
        self._compatibility.check(waits=True)
        self._check_room(tenant)

    async def _take_storage(self, submission: Submission) -> None:
        """Count what is stored of a submission, or refuse it. What is refused must not be known already."""
        size, quota = submission.stored_bytes, self._storage_quota
        is_call = submission.origin is Origin.CALL
        if size >= COUNTED_BYTES and not quota.take_at_once(submission.tenant, size, is_call=is_call):
            await self._unless_known(submission, lambda: quota.take(submission.tenant, size, is_call=is_call))

    async def _unless_known(self, submission: Submission, check: Callable[[], None]) -> None:
        """Check a request, unless it has no items, or its Idempotency-Key shows that it was accepted earlier."""
        if submission.total_items == 0:
            return
        try:
            await self._threads.sql_of(submission.tenant, check)
        except RequestError:
            key = submission.idempotency
            tenant = submission.tenant
            if key is None or not await self._threads.sql_of(tenant, is_known, self._database, tenant, key):
                raise

    def _check_call(self, submission: Submission, timeout: float) -> None:
        compatibility = self._compatibility.check(waits=False)
        _check_weights(submission, compatibility)
        _check_time(submission, timeout, compatibility, self._calls.get())

    def _check_whole_job(self, submission: Submission) -> None:
        self.admit_upload(submission)
        self.refuse_other_weights(submission)

    def _check_room(self, tenant: str) -> None:
        most = self._settings.max_waiting_chunks
        always = min(int(most * ALWAYS_SHARE), MOST_ALWAYS)
        if self._too_many.get() and has_more_than(self._database, always, (self._model, tenant)):
            raise _overloaded(f"more than {most} chunks wait already", RETRY_SECONDS[1])


def too_many_chunks(database: Database, settings: ApiSettings) -> ThrottledValue[bool]:
    """Return whether more chunks wait than may, of all models together."""
    most = settings.max_waiting_chunks
    return ThrottledValue(lambda: has_more_than(database, most), GOOD_FOR_SECONDS, MAX_GOOD_FOR_SECONDS)


def _check_weights(submission: Submission, compatibility: Compatibility) -> None:
    """Refuse a request whose calibration or threshold was made for other weights than the live workers have.

    The weights of a model with an adapter are not known here; its name was compared before.
    """
    options = submission.options
    if options.artefact is None or options.adapter is not None:
        return
    live = {worker.weights_fingerprint for worker in compatibility.matching}
    for rule in read_rules(options.artefact).values():
        if live and rule.weights not in live:
            message = f"the artefact {quote(rule.name)} is for another model: for other weights of the same name"
            raise RequestError(ErrorCode.INVALID_ARTEFACT, message, param=rule.field)


def _check_time(submission: Submission, timeout: float, compatibility: Compatibility, waiting: WaitingWork) -> None:
    """Refuse a call if the calls that wait already take too long."""
    seconds = _estimated_seconds(waiting, compatibility, submission, timeout)
    if seconds > timeout and waiting.oldest_seconds(submission.tenant) >= WAITED_SECONDS:
        raise _overloaded(
            f"calls wait about {seconds:.0f} s now, and this one would for {timeout:g} s at most;"
            " jobs sent to /v1/jobs wait longer",
            seconds - timeout,
        )


def _estimated_seconds(
    waiting: WaitingWork, compatibility: Compatibility, submission: Submission, limit: float
) -> float:
    """Estimate how long the matching workers need for the work that is claimed before a submission.

    It is 0 if none of them has measured its pace. limit: the estimate is only compared with this.
    """
    rate = compatibility.tokens_per_second
    if not rate:
        return 0.0
    seconds_of_all = waiting.tokens / rate
    if seconds_of_all <= limit:
        return seconds_of_all  # the estimate for any tenant is at most this, and the submission need not be measured
    new_tokens = work_of_group(len(submission.prefix), submission.chunks)
    return waiting.tokens_ahead(submission.tenant, new_tokens) / rate


def _overloaded(message: str, excess_seconds: float) -> RequestError:
    least, greatest = RETRY_SECONDS
    seconds = min(greatest, max(least, excess_seconds)) * random.uniform(1.0, 1.0 + JITTER)
    return RequestError(ErrorCode.OVERLOADED, message, retry_after=seconds)
