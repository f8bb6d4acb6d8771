"""Have the service score a labelled file for some systems, all at once, by runs that can be resumed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from scoreline.client import AsyncClient, Model
from scoreline.exit_codes import CommandError
from scoreline.judging.labelled import LabelledFile
from scoreline.judging.systems import System
from scoreline.runs.beginning import run
from scoreline.runs.formats import Format
from scoreline.runs.plan import LABEL_MASS, RELEVANCE, Plan, new_columns
from scoreline.runs.run import first_of
from scoreline.runs.windows import WINDOW
from scoreline.templates import model_of

PREFIX = "scoreline:"
"""What the columns of scores begin with, so that they do not meet those of the file."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What a system says of the rows of a file."""

    name: str
    labels: tuple[str, ...]  # as the column of true labels calls them
    shares: list[list[float] | None]  # of each label; None: the row could not be scored
    relevance: list[float | None] | None = None  # what the template makes of them; None: it makes nothing
    model: Mapping[str, Any] | None = None  # its fingerprints
    prompt: Mapping[str, Any] | None = None  # None: the scores were in the file
    masses: list[float | None] | None = None  # the label mass of each row; None: it is not known
    flips: list[float | None] | None = None  # of the orders of options, the share with another answer; None: one order


@dataclass(frozen=True, slots=True)
class _Job:
    """A system, and the run that scores the file for it."""

    system: System
    plan: Plan
    labels: tuple[str, ...]

    @property
    def done(self) -> Path:
        """The file that says that the run is finished, and by which model."""
        return Path(self.plan.target + ".done.json")


class Scoring:
    """The runs of one command, in a folder beside the file, which is removed once all is known."""

    def __init__(
        self,
        labelled: LabelledFile,
        systems: Sequence[System],
        remedies: Mapping[str, Any],
        concurrency: int,
        *,
        ranking: bool = False,
    ) -> None:
        """remedies: what becomes of rows that can't be scored, as fields of a Plan.

        ranking: whether rows are ranked, so that their scores need not be shares.
        """
        self._labelled, self._systems, self._ranking = labelled, systems, ranking
        self._remedies, self._concurrency = remedies, max(1, concurrency // len(systems))
        self.folder = Path(labelled.name + ".scoring")

    async def called(self, client: AsyncClient) -> list[tuple[str, ...]]:
        """Return what the labels of each system are called. Raises CommandError and ScorelineError."""
        models = await client.models()
        return [job.system.called(job.labels) for job in self._jobs(models)]

    async def score(self, client: AsyncClient, console: Console) -> list[Scored]:
        """Return the scores of each system. Raises CommandError and ScorelineError, after which it can go on."""
        jobs = self._jobs(await client.models())
        self.folder.mkdir(exist_ok=True)
        try:
            async with asyncio.TaskGroup() as tasks:
                several = len(jobs) > 1
                for job in jobs:
                    shown = _NamedConsole(job.system.name) if several and not console.quiet else console
                    tasks.create_task(_run(job, client, shown))
        except BaseExceptionGroup as group:
            raise first_of(group) from None
        found = [self._read(job) for job in jobs]
        for job in jobs:
            for path in (*job.plan.touched, job.done):
                path.unlink(missing_ok=True)
        with suppress(OSError):  # another command scores the same file
            self.folder.rmdir()
        return found

    def _jobs(self, models: Sequence[Model]) -> list[_Job]:
        found = []
        for system in self._systems:
            plan = self._plan(system)
            labels = plan.of_served(models)[1]
            if self._ranking and not _has_shares(model_of(models, system.options.get("model")), labels):
                options = {name: value for name, value in system.options.items() if name != "apply_softmax"}
                system = replace(system, options=options)
                plan = self._plan(system)
            found.append(_Job(system, plan, labels))
        return found

    def _plan(self, system: System) -> Plan:
        plan = Plan(
            source=self._labelled.name,
            source_format=self._labelled.format,
            target="",
            target_format=Format.JSON_LINES,
            columns=system.columns,
            labels=system.labels,
            options=system.options,
            window=WINDOW,
            questions=system.questions,
            with_probabilities=bool(system.questions),
            prefix=PREFIX,
            concurrency=self._concurrency,
            **self._remedies,
        )
        # Another prompt, or another file of this name, has another output, so that nothing is mistaken for its scores.
        content = json.dumps([self._labelled.digest, plan.fingerprint(), self._remedies], default=str).encode()
        digest = hashlib.blake2b(content, digest_size=6).hexdigest()
        name = re.sub(r"[^A-Za-z0-9._-]", "_", system.name)
        return replace(plan, target=str(self.folder / f"{name}-{digest}.jsonl"))

    def _read(self, job: _Job) -> Scored:
        """Return what a finished run has written. Raises CommandError."""
        with open(job.plan.target, encoding="utf-8", newline="\n") as file:
            rows = [json.loads(line) for line in file]
        if len(rows) != len(self._labelled.rows):
            raise CommandError(f"{self._labelled.name} has changed while it was scored: give the command again")
        called, names = job.system.called(job.labels), [*new_columns(job.plan, job.labels, ())]
        shares: list[list[float] | None]
        flips: list[float | None] | None = None
        if job.system.questions:
            answers, flips, masses = ([row[name] for row in rows] for name in names)
            shares = [None if one is None else [one[name] for name in job.system.asked_options] for one in answers]
        else:
            cells = [[row[name] for name in names[: len(called)]] for row in rows]
            shares = [None if None in row else row for row in cells]
            masses = [row.get(PREFIX + LABEL_MASS) for row in rows]
        relevance = [row[PREFIX + RELEVANCE] for row in rows] if job.plan.has_relevance else []
        made = relevance if any(one is not None for one in relevance) else None  # of its own labels alone
        model = json.loads(job.done.read_text(encoding="utf-8"))
        return Scored(job.system.name, called, shares, made, model, job.system.prompt, masses, flips)


def _has_shares(model: Model, labels: Sequence[str]) -> bool:
    """Return whether labels share one probability: those of independent outputs do not, and one alone has all of it."""
    classes = model.raw.get("classes")
    return len(labels) > 1 and (classes is None or classes.get("activation") == "softmax")


async def _run(job: _Job, client: AsyncClient, console: Console) -> None:
    if job.done.exists():
        return  # an earlier command was interrupted after it
    target = Path(job.plan.target)
    if job.plan.journal is not None and not job.plan.journal.exists():
        target.unlink(missing_ok=True)  # the command was killed before it said what the model was
    finished = await run(job.plan, client, console)
    job.done.write_text(json.dumps(finished.model), encoding="utf-8")


class _NamedConsole(Console):
    """A console whose lines begin with the name of a system."""

    def __init__(self, name: str) -> None:
        super().__init__(stderr=True, force_terminal=False)
        self._name = name

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(f"{self._name}:", *objects, **options)
